package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// loopbacks are the local addresses that the tests use.
func loopbacks() map[string]netip.AddrPort {
	return map[string]netip.AddrPort{"IPv4": netip.MustParseAddrPort("127.0.0.1:0"),
		"IPv6": netip.MustParseAddrPort("[::1]:0")}
}

// eachFamily runs a test over IPv4 and IPv6.
func eachFamily(t *testing.T, test func(t *testing.T, local netip.AddrPort)) {
	for name, local := range loopbacks() {
		t.Run(name, func(t *testing.T) {
			if name == "IPv6" {
				probe, err := net.ListenPacket("udp6", "[::1]:0")
				if err != nil {
					t.Skip("this system has no IPv6 loopback address")
				}
				probe.Close()
			}
			test(t, local)
		})
	}
}

// open listens until the test ends.
func open(t testing.TB, cfg Config) *Conn {
	t.Helper()
	c, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// to is a destination of a Conn.
func to(t testing.TB, from, peer *Conn) *Destination {
	t.Helper()
	d, err := from.NewDestination(peer.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// packetsOf makes packets of the given lengths, in three pieces where they are long enough;
// together they are bytes that differ from packet to packet.
func packetsOf(lengths ...int) (packets []Packet, whole [][]byte) {
	for i, length := range lengths {
		data := make([]byte, length)
		for j := range data {
			data[j] = byte(i*31 + j*7 + j>>8)
		}
		head, tail := min(12, length), max(min(12, length), length-4)
		packets = append(packets, Packet{Header: bytes.Clone(data[:head]),
			Payload: bytes.Clone(data[head:tail]),
			Trailer: bytes.Clone(data[tail:])})
		whole = append(whole, data)
	}
	return packets, whole
}

// arrived is one datagram received, with its memory its own.
type arrived struct {
	data          []byte
	from          netip.AddrPort
	index, bundle uint8
}

// receive waits for so many datagrams.
func receive(t testing.TB, c *Conn, b *Batch, count int) (all []arrived) {
	t.Helper()
	for len(all) < count {
		n, err := b.Recv()
		if err == ErrAgain {
			if err = c.WaitReadable(time.Now().Add(10 * time.Second)); err == nil {
				continue
			}
		}
		if err != nil {
			t.Fatalf("after %d of %d datagrams: %v", len(all), count, err)
		}
		if n != len(b.Datagrams) {
			t.Fatalf("Recv says %d datagrams and has %d", n, len(b.Datagrams))
		}
		for _, d := range b.Datagrams {
			if cap(d.Data) != len(d.Data) {
				t.Error("appending to a datagram would write over the next")
			}
			all = append(all, arrived{bytes.Clone(d.Data), d.From, d.Index, d.Bundle})
		}
	}
	return all
}

// send sends all packets at once.
func send(t testing.TB, d *Destination, packets []Packet, segment bool) {
	t.Helper()
	if n, err := d.Send(packets, segment); n != len(packets) || err != nil {
		t.Fatalf("sent %d of %d: %v", n, len(packets), err)
	}
}

// Packets of every mixture of lengths arrive whole, in order and with their source, whatever the
// two ends can do.
func TestSendRecv(t *testing.T) {
	lengths := [][]int{
		{1}, {0}, {12}, {4112}, {65000},
		{4128, 4112, 4112, 4112, 900},
		{0, 5, 0, 0, 7},
		{100, 200, 300, 200, 100, 100},
		many(200, 150), many(40, 4112), append(many(31, 4112), 20),
	}
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		for mode := range 8 {
			segment := mode&4 != 0
			a := open(t, Config{Local: local, DisableGSO: mode&1 != 0})
			b := open(t, Config{Local: local, DisableGRO: mode&2 != 0})
			batch, dest := b.NewBatch(0, 0), to(t, a, b)
			for _, lengths := range lengths {
				packets, whole := packetsOf(lengths...)
				send(t, dest, packets, segment)
				name := fmt.Sprintf("GSO %t %t, GRO %t, %d packets from %d bytes on", a.gso, segment, b.gro,
					len(lengths), lengths[0])
				for i, got := range receive(t, b, batch, len(whole)) {
					if !bytes.Equal(got.data, whole[i]) {
						t.Fatalf("%s: datagram %d has %d bytes, not the %d that were sent, or others", name,
							i,
							len(got.data), len(whole[i]))
					}
					if got.from != a.LocalAddr() {
						t.Fatalf("%s: from %v, not %v", name, got.from, a.LocalAddr())
					}
				}
			}
			if n, err := batch.Recv(); n != 0 || err != ErrAgain || len(batch.Datagrams) != 0 {
				t.Errorf("more than was sent: %d, %v", n, err)
			}
			if s := b.Stats(); s.RecvDropped+s.RecvTruncated != 0 {
				t.Errorf("lost something: %+v", s)
			}
		}
	})
}

// many is count times the same number.
func many(count, value int) []int {
	list := make([]int, count)
	for i := range list {
		list[i] = value
	}
	return list
}

// Over loopback a burst arrives as it left: Index is the place that gives the identification.
func TestBundles(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
		if !a.Stats().GSO || !b.Stats().GRO {
			t.Skip("this kernel has no GSO or GRO for UDP")
		}
		packets, _ := packetsOf(append([]int{4128}, append(many(17, 4112), 900, 900)...)...)
		send(t, to(t, a, b), packets, true)
		var want []arrived
		for rest := packets; len(rest) > 0; {
			burst := Burst(rest)
			for i := range burst {
				want = append(want, arrived{index: uint8(i), bundle: uint8(burst)})
			}
			rest = rest[burst:]
		}
		// 4128 and a shorter one; 15 of 4112; 4112 and 900; 900.
		for i, got := range receive(t, b, b.NewBatch(0, 0), len(packets)) {
			if got.index != want[i].index || got.bundle != want[i].bundle {
				t.Errorf("datagram %d is %d of %d, not %d of %d", i, got.index, got.bundle, want[i].index,
					want[i].bundle)
			}
		}
	})
}

// Without segmentation the IP identification is 0 and DF is set, and with it the packets of a burst
// have 0, 1, 2 on IPv4. What a raw socket needs privilege to see is seen here where there is some.
func TestIdentification(t *testing.T) {
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		t.Skip("a raw socket takes privilege")
	}
	defer unix.Close(raw)
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local, TrafficClass: 0x68}), open(t, Config{Local: local})
	packets, _ := packetsOf(100, 100, 100)
	send(t, to(t, a, b), packets, false)
	buf := make([]byte, 2048)
	_ = unix.SetsockoptTimeval(raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	for seen := 0; seen < 3; {
		n, _, err := unix.Recvfrom(raw, buf, 0)
		if err != nil {
			t.Fatal(err)
		}
		if port := uint16(buf[20])<<8 | uint16(buf[21]); n != 128 || port != a.LocalAddr().Port() {
			continue
		}
		seen++
		if id := uint16(buf[4])<<8 | uint16(buf[5]); id != 0 || buf[6] != 0x40 || buf[1] != 0x68 {
			t.Errorf("identification %d, flags %#x, traffic class %#x", id, buf[6], buf[1])
		}
	}
}

// Datagrams longer than a buffer are dropped and counted; what stands before and behind them is
// not.
func TestTruncated(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		a, b := open(t, Config{Local: local, DisableGSO: true}), open(t, Config{Local: local})
		batch, dest := b.NewBatch(4, 1000), to(t, a, b)
		packets, whole := packetsOf(500, 1001, 1000, 2000, 2000, 2000, 2000, 2000, 1)
		send(t, dest, packets, false)
		got := receive(t, b, batch, 3)
		for i, sent := range []int{0, 2, 8} {
			if !bytes.Equal(got[i].data, whole[sent]) {
				t.Errorf("datagram %d has %d bytes, not packet %d", i, len(got[i].data), sent)
			}
		}
		if n := b.Stats().RecvTruncated; n != 6 {
			t.Errorf("%d truncated, not 6", n)
		}
	})
}

// Of a burst that is longer than a buffer the datagrams that are whole arrive.
func TestTruncatedBurst(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	if !a.gso || !b.gro {
		t.Skip("this kernel has no GSO or GRO for UDP")
	}
	packets, whole := packetsOf(400, 400, 400, 400)
	send(t, to(t, a, b), packets, true)
	got := receive(t, b, b.NewBatch(4, 1000), 2)
	if len(got) != 2 || !bytes.Equal(got[0].data, whole[0]) || !bytes.Equal(got[1].data, whole[1]) {
		t.Errorf("%d datagrams, not the two that are whole", len(got))
	}
	if n := b.Stats().RecvTruncated; n != 1 {
		t.Errorf("%d truncated, not 1", n)
	}
}

// Where nothing of what arrived is whole there is nothing.
func TestTruncatedAll(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	packets, _ := packetsOf(400, 400, 500)
	send(t, to(t, a, b), packets, true)
	batch := b.NewBatch(4, 300)
	if n, err := batch.Recv(); n != 0 || err != ErrAgain || len(batch.Datagrams) != 0 {
		t.Errorf("%d, %v", n, err)
	}
}

// The options without which peers would drop what is sent are set.
func TestOptions(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		c := open(t, Config{Local: local, TrafficClass: 0x68})
		_ = c.raw.Control(func(fd uintptr) {
			for _, option := range required(Config{Local: local, TrafficClass: 0x68}) {
				got, err := unix.GetsockoptInt(int(fd), option.level, option.name)
				if got != option.value || err != nil {
					t.Errorf("%s is %d, not %d (%v)", option.text, got, option.value, err)
				}
			}
		})
	})
	for family, want := range map[string]string{
		"IPv4": "IP_MTU_DISCOVER=2 IP_TOS=104 ",
		"IPv6": "IPV6_V6ONLY=1 IPV6_MTU_DISCOVER=2 IPV6_TCLASS=104 UDP_NO_CHECK6_RX=1 ",
	} {
		got := ""
		for _, option := range required(Config{Local: loopbacks()[family], TrafficClass: 0x68}) {
			got += fmt.Sprintf("%s=%d ", option.text, option.value)
		}
		if got != want {
			t.Errorf("%s: %s", family, got)
		}
	}
}

// Pieces that lie side by side in memory travel as one, within a message alone.
func TestGather(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	dest, packets := to(t, a, b), message()[:3]
	for segment, pieces := range map[bool]int{true: 7, false: 9} {
		if dest.stage(packets, segment); len(dest.iov) != pieces {
			t.Errorf("segment %t: %d pieces, not %d", segment, len(dest.iov), pieces)
		}
	}
	whole := []byte("header and payload|the same|and again")
	side := []Packet{{Header: whole[:7], Payload: whole[7:19]}, {Header: whole[19:28]}, {Header: whole[28:]}}
	send(t, dest, side, true)
	var got []byte
	for _, d := range receive(t, b, b.NewBatch(0, 0), len(side)) {
		got = append(got, d.data...)
	}
	if !bytes.Equal(got, whole) {
		t.Errorf("%q", got)
	}
}

// An IPv4 address in IPv6 clothes is the IPv4 address.
func TestMappedAddress(t *testing.T) {
	c := open(t, Config{Local: netip.MustParseAddrPort("[::ffff:127.0.0.1]:0")})
	if got := c.LocalAddr().Addr(); got != netip.MustParseAddr("127.0.0.1") {
		t.Error(got)
	}
}

// A receiver that does not read loses packets, and counts them.
func TestReceiveBufferFull(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local, RecvBuffer: 65536})
	packets, _ := packetsOf(many(200, 4112)...)
	send(t, to(t, a, b), packets, false)
	batch, received := b.NewBatch(0, 0), 0
	for {
		n, err := batch.Recv()
		if err == ErrAgain {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		received += n
	}
	if dropped := b.Stats().RecvDropped; received == 0 || dropped == 0 || received+int(dropped) != 200 {
		t.Errorf("received %d, dropped %d, of 200", received, dropped)
	}
}

// More says when to ask again: as long as the batch was full.
func TestMore(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	packets, _ := packetsOf(1, 2, 3, 4, 5)
	send(t, to(t, a, b), packets, false)
	batch := b.NewBatch(2, 0)
	for i, want := range []struct {
		n    int
		more bool
	}{{2, true}, {2, true}, {1, false}, {0, false}} {
		if n, _ := batch.Recv(); n != want.n || batch.More != want.more {
			t.Errorf("Recv %d: %d, more %t; not %d, %t", i, n, batch.More, want.n, want.more)
		}
	}
}

// fake stands before the kernel.
type fake struct {
	calls  []string // "1 64": bursts of one packet and of 64
	refuse func(call int, segmented bool) (int, syscall.Errno)
}

func (f *fake) sendmmsg(fd uintptr, msgs []unix.Mmsghdr) (int, syscall.Errno) {
	var call []string
	for i := range msgs {
		kind := "one"
		if msgs[i].Hdr.Controllen > 0 {
			kind = "burst"
		}
		call = append(call, kind)
	}
	f.calls = append(f.calls, strings.Join(call, " "))
	if n, errno := f.refuse(len(f.calls), msgs[0].Hdr.Controllen > 0); errno != 0 {
		return 0, errno
	} else if n > 0 {
		return sendmmsg(fd, msgs[:min(n, len(msgs))])
	}
	for i := range msgs {
		if i > 0 && msgs[i].Hdr.Controllen > 0 {
			return sendmmsg(fd, msgs[:i])
		}
	}
	return sendmmsg(fd, msgs)
}

// A kernel that refuses bursts gets the same packets one by one, none is lost or sent twice, and it
// is not asked again.
func TestBurstRefused(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EIO, unix.EINVAL, unix.EOPNOTSUPP} {
		eachFamily(t, func(t *testing.T, local netip.AddrPort) {
			a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
			if !a.gso {
				t.Skip("this kernel has no GSO for UDP")
			}
			f := &fake{refuse: func(_ int, segmented bool) (int, syscall.Errno) {
				if segmented {
					return 0, errno
				}
				return 0, 0
			}}
			a.sendmmsg = f.sendmmsg
			dest := to(t, a, b)
			packets, whole := packetsOf(200, 100, 100, 100, 100, 50, 60)
			send(t, dest, append(packets[:1:1], packets[2:]...), true)
			whole = append(whole[:1:1], whole[2:]...)
			if dest.Segments() {
				t.Error("still believes in bursts")
			}
			send(t, dest, packets[2:4], true)
			whole = append(whole, whole[1], whole[2])
			if last := f.calls[len(f.calls)-1]; last != "one one" {
				t.Errorf("after the refusal asked for %q", last)
			}
			for i, got := range receive(t, b, b.NewBatch(0, 0), len(whole)) {
				if !bytes.Equal(got.data, whole[i]) {
					t.Errorf("datagram %d is not the one sent", i)
				}
			}
			if s := a.Stats(); s.GSORefused != 1 {
				t.Errorf("%+v", s)
			}
			if other := to(t, a, b); !other.Segments() {
				t.Error("a refusal on one way is one on all")
			}
		})
	}
}

// Packets that are refused one by one as well do not take the bursts away.
func TestPacketRefused(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	f := &fake{refuse: func(int, bool) (int, syscall.Errno) { return 0, unix.EMSGSIZE }}
	a.sendmmsg = f.sendmmsg
	dest := to(t, a, b)
	packets, _ := packetsOf(300, 300)
	n, err := dest.Send(packets, true)
	if n != 0 || !errors.Is(err, ErrTooLarge) || !errors.Is(err, unix.EMSGSIZE) || dest.Segments() != a.gso {
		t.Fatalf("%d, %v, segments %t", n, err, dest.Segments())
	}
	if !strings.Contains(err.Error(), "300 bytes of UDP payload, the path takes 65507") {
		t.Error(err)
	}
}

// Without room nothing is lost: Send says how far it came, and goes on from there.
func TestSendAgain(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	f := &fake{refuse: func(call int, _ bool) (int, syscall.Errno) {
		switch call {
		case 1:
			return 2, 0
		case 2:
			return 0, unix.EINTR
		case 3:
			return 0, unix.EAGAIN
		}
		return 0, 0
	}}
	a.sendmmsg = f.sendmmsg
	dest := to(t, a, b)
	packets, whole := packetsOf(10, 20, 30, 40, 50)
	n, err := dest.Send(packets, false)
	if n != 2 || err != ErrAgain {
		t.Fatalf("%d, %v", n, err)
	}
	if err := a.WaitWritable(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	send(t, dest, packets[n:], false)
	for i, got := range receive(t, b, b.NewBatch(0, 0), len(whole)) {
		if !bytes.Equal(got.data, whole[i]) {
			t.Errorf("datagram %d is not the one sent", i)
		}
	}
}

// A packet that the host drops is lost as one that the network drops.
func TestSendDropped(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	f := &fake{refuse: func(call int, _ bool) (int, syscall.Errno) {
		if call == 1 {
			return 0, unix.ENOBUFS
		}
		return 0, 0
	}}
	a.sendmmsg = f.sendmmsg
	packets, whole := packetsOf(10, 10, 20)
	send(t, to(t, a, b), packets, true)
	if got := receive(t, b, b.NewBatch(0, 0), 1); !bytes.Equal(got[0].data, whole[2]) {
		t.Error("not the packet behind the burst")
	}
	if s := a.Stats(); a.gso && s.SendDropped != 2 {
		t.Errorf("%+v", s)
	}
}

// Send keeps nothing of the packets' memory.
func TestSendForgets(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	dest := to(t, a, b)
	packets, _ := packetsOf(many(100, 100)...)
	send(t, dest, packets, false)
	for i, piece := range dest.iov[:cap(dest.iov)] {
		if piece.Base != nil {
			t.Fatalf("piece %d of the last Send is still held", i)
		}
	}
}

// Every way that Listen can be refused says in words what is wrong and what to do.
func TestListenRefused(t *testing.T) {
	taken := open(t, Config{Local: loopbacks()["IPv4"]})
	for name, test := range map[string]struct {
		cfg  Config
		is   error
		says string
	}{
		"no address": {Config{}, verbs.ErrInvalid, "no local address"},
		"unspecified": {Config{Local: netip.MustParseAddrPort("0.0.0.0:4791")}, verbs.ErrInvalid,
			"one concrete address"},
		"unspecified, mapped": {Config{Local: netip.MustParseAddrPort("[::ffff:0.0.0.0]:1")},
			verbs.ErrInvalid, "one concrete"},
		"multicast": {Config{Local: netip.MustParseAddrPort("224.0.0.1:4791")}, verbs.ErrInvalid,
			"multicast"},
		"buffers": {Config{Local: netip.MustParseAddrPort("127.0.0.1:0"), RecvBuffer: -1}, verbs.ErrInvalid,
			"cannot be negative"},
		"not local": {Config{Local: netip.MustParseAddrPort("203.0.113.9:0")}, ErrNotLocal,
			"no interface"},
		"not local v6": {Config{Local: netip.MustParseAddrPort("[2001:db8::9]:0")}, ErrNotLocal,
			"no interface"},
		"link-local": {Config{Local: netip.MustParseAddrPort("[fe80::dead]:0")}, ErrNotLocal,
			"no interface"},
		"zone": {Config{Local: netip.MustParseAddrPort("[fe80::1%none9]:0")}, ErrNotLocal,
			`no interface "none9"`},
		"port taken": {Config{Local: taken.LocalAddr()}, ErrPortTaken, "another process"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Listen(test.cfg)
			if err == nil {
				c.Close()
			}
			var typed *Error
			if !errors.Is(err, test.is) || !errors.As(err, &typed) ||
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Who may have port 4791 depends on whether rdma_rxe is there.
func TestListenErrorWords(t *testing.T) {
	local := netip.MustParseAddrPort("192.0.2.1:4791")
	v6 := netip.MustParseAddrPort("[2001:db8::1]:4791")
	rxe := fstest.MapFS{"module/rdma_rxe/refcnt": {}}
	for _, test := range []struct {
		local netip.AddrPort
		errno syscall.Errno
		sysfs fstest.MapFS
		is    error
		says  []string
	}{
		{local, unix.EADDRINUSE, rxe, ErrPortTaken, []string{"rdma_rxe is loaded", "another process",
			"another port"}},
		{local, unix.EADDRINUSE, nil, ErrPortTaken, []string{"rdma_rxe", "is not loaded", "another port"}},
		{local, unix.EACCES, nil, ErrPermission, []string{"privilege"}},
		{local, unix.EAFNOSUPPORT, nil, ErrFamily, []string{"no IPv4"}},
		{v6, unix.EAFNOSUPPORT, nil, ErrFamily, []string{"no IPv6"}},
		{local, unix.EMFILE, nil, unix.EMFILE, []string{"ulimit -n"}},
	} {
		err := listenError(test.local, test.errno, test.sysfs)
		if !errors.Is(err, test.is) || !errors.Is(err, test.errno) {
			t.Errorf("%v is not %v", err, test.is)
		}
		for _, says := range append(test.says, test.local.String(), test.errno.Error()) {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q does not say %q", err, says)
			}
		}
	}
}

// The environment turns the offloads off, and is checked.
func TestEnvironment(t *testing.T) {
	local := loopbacks()["IPv4"]
	for _, name := range []string{envDisableGSO, envDisableGRO} {
		for value, off := range map[string]bool{"": false, "0": false, "1": true, "true": true} {
			c, err := listen(Config{Local: local}, func(asked string) string {
				if asked == name {
					return value
				}
				return ""
			})
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if off && name == envDisableGSO && c.gso || off && name == envDisableGRO && c.gro {
				t.Errorf("%s=%s changes nothing", name, value)
			}
			if !off && !(c.gso && c.gro) {
				t.Logf("%s=%s: GSO %t, GRO %t", name, value, c.gso, c.gro)
			}
		}
		c, err := listen(Config{Local: local, DisableGSO: true, DisableGRO: true},
			func(string) string { return "0" })
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if c.gso || c.gro {
			t.Error("the environment turns on what the program has turned off")
		}
		_, err = listen(Config{Local: local}, func(string) string { return "perhaps" })
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "perhaps") {
			t.Error(err)
		}
	}
}

// What the kernel granted is reported as it was asked for.
func TestBuffers(t *testing.T) {
	c := open(t, Config{Local: loopbacks()["IPv4"], RecvBuffer: 100_000, SendBuffer: 50_000})
	if s := c.Stats(); s.RecvBuffer != 100_000 || s.SendBuffer != 50_000 {
		t.Errorf("%+v", s)
	}
}

// Destinations that cannot be are refused at once.
func TestDestinationRefused(t *testing.T) {
	c := open(t, Config{Local: loopbacks()["IPv4"]})
	for addr, is := range map[string]error{"[::1]:1": ErrFamily, "127.0.0.1:0": verbs.ErrInvalid,
		"0.0.0.0:1": verbs.ErrInvalid, "224.0.0.1:1": verbs.ErrInvalid} {
		_, err := c.NewDestination(netip.MustParseAddrPort(addr))
		if !errors.Is(err, is) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v", addr, err)
		}
		if _, err := c.MTU(netip.MustParseAddrPort(addr)); !errors.Is(err, is) {
			t.Errorf("MTU to %s: %v", addr, err)
		}
	}
	if _, err := c.NewDestination(netip.AddrPort{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := c.NewDestination(netip.MustParseAddrPort("[::ffff:127.0.0.1]:5")); err != nil {
		t.Error(err)
	}
}

// The path MTU is that of the link, and says which MTU of package verbs fits.
func TestMTU(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		c := open(t, Config{Local: local})
		path, err := c.MTU(c.LocalAddr())
		if err != nil {
			t.Fatal(err)
		}
		if path.IP < 65535 || path.IP > 65536 || path.Payload < 65535-48 || path.Verbs(36) != verbs.MTU4096 {
			t.Errorf("%+v, %v", path, path.Verbs(36))
		}
	})
	for ip, want := range map[int][2]verbs.MTU{
		9000: {verbs.MTU4096, verbs.MTU4096}, 4180: {verbs.MTU4096, verbs.MTU4096},
		4160: {verbs.MTU4096, verbs.MTU2048}, 4159: {verbs.MTU2048, verbs.MTU2048},
		1500: {verbs.MTU1024, verbs.MTU1024}, 576: {verbs.MTU512, verbs.MTU256}, 100: {0, 0}, 0: {0, 0},
	} {
		if v4, v6 := pathMTU(ip, false).Verbs(36), pathMTU(ip, true).Verbs(36); v4 != want[0] ||
			v6 != want[1] {
			t.Errorf("link %d: %v and %v, not %v", ip, v4, v6, want)
		}
	}
}

// A datagram beyond the path MTU is refused with what fits.
func TestTooLarge(t *testing.T) {
	eachFamily(t, func(t *testing.T, local netip.AddrPort) {
		a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
		dest := to(t, a, b)
		packets, _ := packetsOf(100, 65535)
		n, err := dest.Send(packets, true)
		if n != 1 || !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), "the path takes 65") {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// The addresses of the host have what a device list needs.
func TestLocalAddresses(t *testing.T) {
	list, err := LocalAddresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, local := range list {
		if local.Interface == "" || local.Index == 0 || !local.Addr.IsValid() || local.Addr.Is4In6() ||
			local.Speed < 0 {
			t.Errorf("%+v", local)
		}
		if local.Addr == netip.MustParseAddr("127.0.0.1") &&
			(!local.Loopback || !local.Up || local.MTU < 1500) {
			t.Errorf("%+v", local)
		}
		if zone := local.Addr.Zone(); local.Addr.Is6() && local.Addr.IsLinkLocalUnicast() &&
			zone != local.Interface {
			t.Errorf("%+v: zone %q", local, zone)
		}
		if !local.Up {
			continue
		}
		c, err := Listen(Config{Local: netip.AddrPortFrom(local.Addr, 0)})
		if err != nil {
			t.Errorf("cannot be bound: %v", err)
			continue
		}
		c.Close()
	}
}

// A link-local IPv6 address works with its zone and without, and its peers need none.
func TestLinkLocal(t *testing.T) {
	list, err := LocalAddresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, local := range list {
		if !local.Addr.Is6() || !local.Addr.IsLinkLocalUnicast() || !local.Up {
			continue
		}
		a := open(t, Config{Local: netip.AddrPortFrom(local.Addr, 0)})
		b := open(t, Config{Local: netip.AddrPortFrom(local.Addr.WithZone(""), 0)})
		for _, addr := range []netip.Addr{local.Addr, local.Addr.WithZone("")} {
			dest, err := a.NewDestination(netip.AddrPortFrom(addr, b.LocalAddr().Port()))
			if err != nil {
				t.Fatal(err)
			}
			packets, _ := packetsOf(10)
			send(t, dest, packets, true)
			got := receive(t, b, b.NewBatch(0, 0), 1)
			if want := netip.AddrPortFrom(local.Addr.WithZone(""),
				a.LocalAddr().Port()); got[0].from != want {
				t.Errorf("from %v, not %v", got[0].from, want)
			}
		}
		return
	}
	t.Skip("no interface has a link-local address")
}

// Everything that waits ends: by a datagram, the deadline, Wake and Close.
func TestWait(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	wait := func(deadline time.Time) chan error {
		done := make(chan error, 1)
		go func() { done <- b.WaitReadable(deadline) }()
		return done
	}
	if err := <-wait(time.Now().Add(-time.Second)); err != os.ErrDeadlineExceeded {
		t.Error("past deadline:", err)
	}
	if err := <-wait(time.Now().Add(5 * time.Millisecond)); err != os.ErrDeadlineExceeded {
		t.Error("deadline:", err)
	}
	b.Wake()
	b.Wake()
	if err := <-wait(time.Time{}); err != ErrWoken {
		t.Error("woken before:", err)
	}
	if err := <-wait(time.Now().Add(5 * time.Millisecond)); err != os.ErrDeadlineExceeded {
		t.Error("woken before that, and again:", err)
	}
	done := wait(time.Time{})
	parked(t, done)
	b.Wake()
	if err := <-done; err != ErrWoken {
		t.Error("woken while waiting:", err)
	}
	done = wait(time.Time{})
	parked(t, done)
	packets, _ := packetsOf(10)
	send(t, to(t, a, b), packets, false)
	if err := <-done; err != nil {
		t.Error("readable:", err)
	}
	if err := <-wait(time.Time{}); err != nil {
		t.Error("still readable:", err)
	}
	receive(t, b, b.NewBatch(0, 0), 1)
	done = wait(time.Time{})
	parked(t, done)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != verbs.ErrClosed {
		t.Error("closed while waiting:", err)
	}
}

// parked gives a wait time to begin, and fails the test if it ends by itself.
func parked(t *testing.T, done chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("the wait ended by itself: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
}

// After Close everything says so.
func TestClosed(t *testing.T) {
	local := loopbacks()["IPv4"]
	a, b := open(t, Config{Local: local}), open(t, Config{Local: local})
	dest, batch := to(t, a, b), a.NewBatch(0, 0)
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	packets, _ := packetsOf(10)
	_, sendErr := dest.Send(packets, false)
	_, recvErr := batch.Recv()
	for name, err := range map[string]error{"send": sendErr, "receive": recvErr,
		"readable": a.WaitReadable(time.Time{}), "writable": a.WaitWritable(time.Time{})} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a.Wake()
	_ = a.Stats()
}
