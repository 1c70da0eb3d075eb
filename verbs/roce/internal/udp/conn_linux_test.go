package udp

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// openPair opens two on the IPv4 loopback address.
func openPair(t testing.TB) (a, b *Conn) {
	t.Helper()
	local := loopbacks()["IPv4"]
	return open(t, Config{Local: local}), open(t, Config{Local: local})
}

// to is a destination of a Conn.
func to(t testing.TB, from, peer *Conn) *Destination {
	t.Helper()
	d, err := from.NewDestination(peer.LocalAddr(), Way{})
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
		if errors.Is(err, ErrAgain) {
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
			if n, err := batch.Recv(); n != 0 || !errors.Is(err, ErrAgain) || len(batch.Datagrams) != 0 {
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

// Datagrams longer than a buffer are dropped and counted; what stands before and behind them
// arrives, also of a burst that is longer than a buffer.
func TestTruncated(t *testing.T) {
	for name, c := range map[string]struct {
		lengths   []int
		burst     bool
		buffer    int
		whole     []int // the packets that arrive
		truncated uint64
	}{
		"some":    {[]int{500, 1001, 1000, 2000, 2000, 2000, 2000, 2000, 1}, false, 1000, []int{0, 2, 8}, 6},
		"a burst": {[]int{400, 400, 400, 400}, true, 1000, []int{0, 1}, 1},
		"all":     {[]int{400, 400, 500}, false, 300, nil, 3},
	} {
		eachFamily(t, func(t *testing.T, local netip.AddrPort) {
			a, b := open(t, Config{Local: local, DisableGSO: !c.burst}), open(t, Config{Local: local})
			if c.burst && (!a.gso || !b.gro) {
				t.Skip("this kernel has no GSO or GRO for UDP")
			}
			batch := b.NewBatch(4, c.buffer)
			packets, whole := packetsOf(c.lengths...)
			send(t, to(t, a, b), packets, c.burst)
			for i, got := range receive(t, b, batch, len(c.whole)) {
				if !bytes.Equal(got.data, whole[c.whole[i]]) {
					t.Errorf("%s: datagram %d has %d bytes, not packet %d", name, i, len(got.data),
						c.whole[i])
				}
			}
			if n, err := batch.Recv(); n != 0 || !errors.Is(err, ErrAgain) || len(batch.Datagrams) != 0 {
				t.Errorf("%s: more than is whole: %d, %v", name, n, err)
			}
			if n := b.Stats().RecvTruncated; n != c.truncated {
				t.Errorf("%s: %d truncated, not %d", name, n, c.truncated)
			}
		})
	}
}

// A receiver that does not read loses packets, and counts them.
func TestReceiveBufferFull(t *testing.T) {
	a, b := openPair(t)
	err := b.raw.Control(func(fd uintptr) {
		setBuffer(int(fd), unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, 65536)
	})
	if err != nil {
		t.Fatal(err)
	}
	packets, _ := packetsOf(many(200, 4112)...)
	send(t, to(t, a, b), packets, false)
	batch, received := b.NewBatch(0, 0), 0
	for {
		n, err := batch.Recv()
		if errors.Is(err, ErrAgain) {
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
	a, b := openPair(t)
	packets, _ := packetsOf(1, 2, 3, 4, 5)
	send(t, to(t, a, b), packets, false)
	batch := b.NewBatch(2, 0)
	for i, want := range []struct {
		n    int
		more bool
	}{{2, true}, {2, true}, {1, false}, {0, false}} {
		if n, _ := batch.Recv(); n != want.n || batch.More() != want.more {
			t.Errorf("Recv %d: %d, more %t; not %d, %t", i, n, batch.More(), want.n, want.more)
		}
	}
}
