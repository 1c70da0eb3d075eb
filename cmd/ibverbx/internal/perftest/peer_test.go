package perftest

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/tcptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// script is what a peer writes, message by message, and the beginning that a good one has.
func script(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func begin(version string) []byte {
	return script(encodeVersion(version), encodeNumber(4096), encodeNumber(64), encodeMTU(verbs.MTU1024))
}

// against runs the server against a peer that does what peer does, and returns its error.
func against(t *testing.T, cfg Config, peer func(nc net.Conn)) error {
	t.Helper()
	nic, _ := nics(t)
	a, b := tcptest.Pair(t)
	cfg.Kind = cmp.Or(cfg.Kind, WriteBW)
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	go peer(b)
	_, err := Run(t.Context(), a, false, nic, &cfg)
	return err
}

// says writes a text and waits until the other end has closed.
func says(text []byte) func(nc net.Conn) {
	return func(nc net.Conn) {
		_, _ = nc.Write(text)
		_, _ = io.Copy(io.Discard, nc)
		_ = nc.Close()
	}
}

// closes writes a text and closes.
func closes(text []byte) func(nc net.Conn) {
	return func(nc net.Conn) {
		_, _ = nc.Write(text)
		_ = nc.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, nc)
		_ = nc.Close()
	}
}

// TestBadPeers names what is wrong with a peer.
func TestBadPeers(t *testing.T) {
	t.Parallel()
	k := someKeys
	v6 := k
	v6.gid = verbs.GID{0xfd, 15: 1}
	nobody := k
	nobody.qp = 0
	nowhere := k
	nowhere.gid = verbs.GID{}
	plain := append([]byte("0001:0001:000011:abc123:00002001:00007f00aabbccdd:00000000"), 0)
	for _, tt := range []struct {
		name string
		peer func(net.Conn)
		is   error
		want string
	}{
		{"garbage", says(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 9)), ErrMessage, "is no version"},
		{"ibverbx perf", says([]byte("\x89ibverbx\x00\x00\x00\x09\x04perf")), ErrMismatch,
			`the other end is "ibverbx perf"`},
		{"old", says(begin("5.6")), ErrMismatch, "perftest 5.6, whose conversation is another one: it has " +
			"to be 5.70"},
		{"page size of 0", says(script(encodeVersion("6.06"), encodeNumber(0))), ErrMessage, "no page size"},
		{"page size beyond all", says(script(encodeVersion("6.06"), encodeNumber(1<<30))), ErrMessage,
			"no page size"},
		{"MTU", says(script(encodeVersion("6.06"), encodeNumber(1), encodeNumber(1), []byte("9\x00"))),
			ErrMessage,
			"no path MTU"},
		{"leaves at once", closes(nil), ErrGone, "version: its own output says why"},
		{"leaves within a message", closes([]byte("6.0")), ErrGone, "after 3 of the 16 bytes"},
		{"leaves later", closes(begin("6.06")), ErrGone, "keys of queue pair 0: its own output says why"},
		{"is silent", says(begin("6.06")), ErrTimeout, "keys of queue pair 0: waited 300ms, and 0 of 108"},
		{"is silent within a message", says(script(begin("6.06"), k.encode()[:50])), ErrTimeout,
			"50 of 108 bytes have come"},
		{"InfiniBand without a GID", says(script(begin("6.06"), plain)), ErrMismatch,
			"names no GID: its NIC is an InfiniBand one"},
		{"binary keys", says(script(begin("6.06"), make([]byte, keysSize))), ErrMessage, agree},
		{"no number", says(script(begin("6.06"), nobody.encode())), ErrMessage, "has number 0"},
		{"no GID", says(script(begin("6.06"), nowhere.encode())), ErrMessage, "has no GID"},
		{"other family", says(script(begin("6.06"), v6.encode())), verbs.ErrUnreachable,
			"and fd00::1 at the peer (-x chooses another)"},
	} {
		err := against(t, Config{Timeout: 300 * time.Millisecond}, tt.peer)
		if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestPeerOfSeveralPorts refuses queue pairs that have several GIDs.
func TestPeerOfSeveralPorts(t *testing.T) {
	k, other := someKeys, someKeys
	other.qp, other.gid[15] = 9, 9
	err := against(t, Config{QPs: 2, Timeout: time.Second},
		says(script(begin("6.06"), k.encode(), other.encode())))
	if !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "--dualport") {
		t.Error(err)
	}
	err = against(t, Config{Kind: ReadBW, Timeout: time.Second}, says(script(begin("6.06"),
		(&keys{qp: 1, gid: k.gid}).encode())))
	if !errors.Is(err, ErrMessage) || !strings.Contains(err.Error(), "serve no reads") {
		t.Error(err)
	}
}

// TestSlowPeer is patient with a peer whose messages come byte by byte, as long as they come.
func TestSlowPeer(t *testing.T) {
	k := keys{qp: 7, gid: someKeys.gid}
	copy(k.gid[12:], []byte{127, 0, 0, 1})
	text := script(begin("5.70"), k.encode(), k.encode(), k.encode(), k.encode(), // the last one: the end
		script(slices.Collect((&report{Size: 64, Messages: 10, Average: 100, Rate: 1}).figures())...),
		k.encode(), []byte(farewell))
	err := against(t, Config{Timeout: 10 * time.Second}, func(nc net.Conn) {
		defer nc.Close()
		defer func() { _, _ = io.Copy(io.Discard, nc) }()
		for i := range text {
			if _, err := nc.Write(text[i : i+1]); err != nil {
				t.Errorf("byte %d of %d: %v", i, len(text), err)
				return
			}
		}
		_ = nc.(*net.TCPConn).CloseWrite()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPeerLeavesDuringTraffic notices it while it waits for messages.
func TestPeerLeavesDuringTraffic(t *testing.T) {
	t.Parallel() // most of the time it waits
	k := keys{qp: 7, gid: someKeys.gid}
	copy(k.gid[12:], []byte{127, 0, 0, 1})
	err := against(t, Config{Kind: SendBW, Timeout: 20 * time.Second},
		closes(script(begin("6.06"), k.encode(),
			k.encode(), k.encode(), k.encode())))
	if !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "after 0 of 1000 messages") {
		t.Error(err)
	}
}

// stream of bytes as a connection.
type fakeConn struct {
	net.Conn
	in io.Reader
}

func (c fakeConn) Read(b []byte) (int, error)     { return c.in.Read(b) }
func (fakeConn) Write(b []byte) (int, error)      { return len(b), nil }
func (fakeConn) Close() error                     { return nil }
func (fakeConn) SetDeadline(time.Time) error      { return nil }
func (fakeConn) SetReadDeadline(time.Time) error  { return nil }
func (fakeConn) SetWriteDeadline(time.Time) error { return nil }
func (fakeConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// FuzzPeer has a peer write anything: the end fails or ends, and gives everything back.
func FuzzPeer(f *testing.F) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := fabric.Close(); err != nil {
			f.Error(err)
		}
	})
	k := someKeys
	gid, err := fabric.Device(1).QueryGID(1, 0)
	if err != nil {
		f.Fatal(err)
	}
	k.gid = gid.GID
	for i := range Kinds() {
		f.Add(uint8(i), script(begin("6.06"), k.encode(), k.encode(), k.encode(), k.encode(),
			make([]byte, 40),
			k.encode(), []byte(farewell)))
	}
	f.Fuzz(func(t *testing.T, kind uint8, text []byte) {
		// Where the end would wait for messages, nothing comes: it has to end by the timeout.
		cfg := Config{Kind: Kinds()[int(kind)%len(Kinds())], Messages: 2, Size: 64, Timeout: time.Millisecond}
		if cfg.Kind.Latency() || cfg.Kind == SendBW {
			text = text[:min(len(text), 24+3*keysSize)]
		}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		_, _ = Run(t.Context(), fakeConn{in: bytes.NewReader(text)}, false, fabric.Device(0), &cfg)
	})
}

// odd is a NIC whose port and GIDs are what a test makes of them.
type odd struct {
	verbs.Device
	port verbs.PortAttr
	gid  verbs.GIDEntry
	err  error
}

func (d odd) QueryPort(int) (verbs.PortAttr, error)     { return d.port, d.err }
func (d odd) QueryGID(int, int) (verbs.GIDEntry, error) { return d.gid, d.err }

// TestUnsuitableNICs says what a NIC or its flags lack before anything is made.
func TestUnsuitableNICs(t *testing.T) {
	nic, _ := nics(t)
	type conn = ibverbx.ConnConfig
	for want, change := range map[string]func(*odd, *conn){
		"":                      func(_ *odd, c *conn) { c.MTU = verbs.MTU256 },
		"no answer":             func(d *odd, _ *conn) { d.err = errors.New("no answer") },
		"is DOWN: it has to be": func(d *odd, _ *conn) { d.port.State = verbs.PortDown },
		"entry 2 of the GID":    func(d *odd, c *conn) { c.GIDIndex, d.gid.GID = 2, verbs.GID{} },
		"has no GID":            func(d *odd, _ *conn) { d.gid.GID = verbs.GID{} },
	} {
		cfg := Config{Kind: WriteBW, Size: 64}
		d := odd{Device: nic, port: verbs.PortAttr{State: verbs.PortActive, ActiveMTU: verbs.MTU1024,
			LinkLayer: verbs.LinkLayerEthernet, GIDTableLen: 1},
			gid: verbs.GIDEntry{GID: someKeys.gid, Type: verbs.GIDTypeRoCEv2}}
		change(&d, &cfg.Conn)
		e, err := probe(d, &cfg)
		if want == "" && (err != nil || e.mtu != verbs.MTU256) || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
