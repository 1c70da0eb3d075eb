package perftest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// someKeys are those of the golden message.
var someKeys = keys{lid: 0x12, reads: 128, qp: 0x11, psn: 0xabc123, rkey: 0x2001, addr: 0x7f00aabbccdd,
	gid: verbs.GID(netip.MustParseAddr("10.10.0.1").As16())}

// TestGolden holds every message byte for byte.
func TestGolden(t *testing.T) {
	r := report{Size: 65536, Messages: 5000, Average: 1.5, Rate: -2}
	figures := slices.Collect(r.figures())
	for _, tt := range []struct {
		name string
		got  []byte
		want string
	}{
		{"version", encodeVersion("6.06"), "362e3036" + strings.Repeat("00", 12)},
		{"number", encodeNumber(4096), "00001000"},
		{"MTU", encodeMTU(verbs.MTU1024), "3300"},
		{"keys", someKeys.encode(), hex.EncodeToString([]byte("0012:0080:000011:abc123:00002001:" +
			"00007f00aabbccdd:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:0a:00:01:00000000:\x00"))},
		{"size", figures[0], "0000000000010000"},
		{"messages", figures[1], "0000000000001388"},
		{"peak", figures[2], "0000000000000000"},
		{"average", figures[3], "3ff8000000000000"},
		{"rate", figures[4], "c000000000000000"},
		{"farewell", []byte(farewell), "646f6e6500"},
	} {
		if got := hex.EncodeToString(tt.got); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if len(someKeys.encode()) != keysSize {
		t.Errorf("KEYS have %d bytes", len(someKeys.encode()))
	}
}

// TestDecode reads what encode writes.
func TestDecode(t *testing.T) {
	if k, err := decodeKeys(someKeys.encode()); err != nil || k != someKeys {
		t.Errorf("%+v, %v", k, err)
	}
	r := report{1, 2, 3, 4.25, 5}
	if got, err := decodeReport(bytes.Join(slices.Collect(r.figures()), nil)); err != nil || got != r {
		t.Errorf("%+v, %v", got, err)
	}
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if got, err := decodeMTU(encodeMTU(m)); err != nil || got != m {
			t.Errorf("%v, %v", got, err)
		}
	}
	text, number, err := decodeVersion([]byte("6.29\x00garbage....")[:versionSize])
	if err != nil || text != "6.29" || number != 6.29 {
		t.Errorf("%q, %v, %v", text, number, err)
	}
	if n, err := decodeNumber(encodeNumber(65536), "page size", 1<<26); err != nil || n != 65536 {
		t.Errorf("%d, %v", n, err)
	}
}

// TestDecodeRefuses takes nothing that no peer writes.
func TestDecodeRefuses(t *testing.T) {
	change := func(at int, to byte) []byte {
		b := someKeys.encode()
		b[at] = to
		return b
	}
	wrong := map[string]error{}
	for name, b := range map[string][]byte{"short": someKeys.encode()[:107],
		"long":  append(someKeys.encode(), 0),
		"empty": nil, "no separator": change(4, '0'), "capitals": change(17, 'A'), "a sign": change(0, '-'),
		"a space": change(0, ' '), "no end": change(107, ':'), "a space at the end": change(106, ' '),
		"binary": bytes.Repeat([]byte{0xff}, keysSize)} {
		_, wrong["keys: "+name] = decodeKeys(b)
	}
	for _, v := range []string{"", "6.x", "6.0.6", "-6", "0123456789abcdef", "6.06"} {
		_, _, wrong["version "+v] = decodeVersion([]byte(v))
	}
	_, _, wrong["version without end"] = decodeVersion(bytes.Repeat([]byte("1"), versionSize))
	_, _, wrong["version of words"] = decodeVersion(encodeVersion("six"))
	for _, m := range []string{"0\x00", "6\x00", "11", "1", ""} {
		_, wrong["mtu "+m] = decodeMTU([]byte(m))
	}
	for _, n := range []int32{0, -1, 1 << 27} {
		_, wrong["number"] = decodeNumber(encodeNumber(n), "page size", 1<<26)
	}
	_, wrong["short number"] = decodeNumber([]byte{1}, "page size", 1<<26)
	_, wrong["report"] = decodeReport([]byte{1})
	for name, err := range wrong {
		if !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReportOfAllQPs takes reports of as many messages as the queue pairs together can have,
// and no more.
func TestReportOfAllQPs(t *testing.T) {
	for _, tt := range []struct {
		messages uint64
		qps      int
		refused  bool
	}{
		{0, 1, true}, {1, 1, false}, {maxMessages, 1, false}, {maxMessages + 1, 1, true},
		{64 * 2000000, 64, false}, {64 * maxMessages, 64, false}, {64*maxMessages + 1, 64, true},
	} {
		r := report{Size: 64, Messages: tt.messages, Average: 1, Rate: 1}
		if err := r.check(tt.qps); errors.Is(err, ErrMessage) != tt.refused {
			t.Errorf("%d messages of %d queue pairs: %v", tt.messages, tt.qps, err)
		}
	}
}

// TestPeerAddress allows GIDs of the peer's own address, and all where no address is asked for.
func TestPeerAddress(t *testing.T) {
	for _, tt := range []struct {
		peer, gid string
		allowed   bool
	}{
		{"10.0.0.1", "::ffff:10.0.0.1", true},
		{"::ffff:10.0.0.1", "::ffff:10.0.0.1", true},
		{"10.0.0.1", "fd69:6276:7278:0:1234:ffff:10.0.0.1", true},
		{"10.0.0.1", "::ffff:10.0.0.2", false},
		{"10.0.0.1", "fd69:6276:7278:0:1234:ffff:10.0.0.2", false},
		{"10.0.0.1", "fd69:6276:7279:0:1234:ffff:10.0.0.1", false},
		{"10.0.0.1", "fd69:6276:7278:0:1234:fffe:10.0.0.1", false},
		{"10.0.0.1", "::ffff:127.0.0.1", false},
		{"fd00::1", "fd00::1", true},
		{"fd00::1%eth0", "fd00::1", true},
		{"fd00::1", "fd00::2", false},
		{"127.0.0.1", "::ffff:127.0.0.9", true},
		{"127.0.0.1", "fd69:6276:7278:0:1234:ffff:127.0.0.9", true},
		{"::1", "::ffff:127.0.0.1", true},
		{"127.0.0.1", "::ffff:10.0.0.1", false},
		{"", "::ffff:10.0.0.1", true},
	} {
		cfg := Config{}
		if tt.peer != "" {
			cfg.Peer = netip.MustParseAddr(tt.peer)
		}
		err := cfg.checkAddress(netip.MustParseAddr(tt.gid).As16())
		if (err == nil) != tt.allowed || err != nil && !errors.Is(err, ErrMismatch) {
			t.Errorf("peer at %q with GID %s: %v", tt.peer, tt.gid, err)
		}
	}
	at := netip.MustParseAddr("127.0.0.33")
	p, err := roce.Open(roce.Config{Addresses: []netip.Addr{at}, Port: 4001})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	cfg := Config{Peer: at}
	if g, err := p.Device(0).QueryGID(1, 0); err != nil || g.GID.IsIPv4() || cfg.checkAddress(g.GID) != nil {
		t.Errorf("GID %v of %v: %v, %v", g.GID, at, err, cfg.checkAddress(g.GID))
	}
}

// FuzzMessages: whatever a peer writes is refused, or is what this end would write for it.
func FuzzMessages(f *testing.F) {
	f.Add(someKeys.encode())
	f.Add(encodeVersion(Version))
	f.Add(encodeMTU(verbs.MTU4096))
	f.Add(encodeNumber(64))
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := decodeKeys(b); err == nil && !bytes.Equal(k.encode(), b) {
			t.Errorf("%q reads %+v", b, k)
		}
		if m, err := decodeMTU(b); err == nil && !bytes.Equal(encodeMTU(m), b) {
			t.Errorf("%q reads %v", b, m)
		}
		if n, err := decodeNumber(b, "number", 1<<20); err == nil && !bytes.Equal(encodeNumber(int32(n)), b) {
			t.Errorf("%q reads %v", b, n)
		}
		if text, n, err := decodeVersion(b); err == nil &&
			(n < 0 || !strings.HasPrefix(string(b), text+"\x00")) {
			t.Errorf("%q reads %q, %v", b, text, n)
		}
	})
}
