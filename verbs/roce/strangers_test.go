package roce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

// stranger is a UDP socket of somebody, with what it takes to make packets that are whole.
type stranger struct {
	t    testing.TB
	conn *net.UDPConn
	at   netip.AddrPort
	from netip.AddrPort // of what it has heard last
}

func newStranger(t testing.TB, at string) *stranger {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &stranger{t: t, conn: conn, at: conn.LocalAddr().(*net.UDPAddr).AddrPort()}
}

// seal makes a packet, whole, from one address to another.
func seal(from, to netip.AddrPort, h wire.Header, payload []byte) []byte {
	flow := wire.NewFlow(from, to)
	h.PKey, h.Pad = 0xffff, wire.PadOf(len(payload))
	b := make([]byte, wire.MaxHeader)
	b = append(b[:h.Put(b)], payload...)
	header := b[:h.Len()]
	sum := flow.Sum(0, header, payload, int(h.Pad))
	return binary.LittleEndian.AppendUint32(append(b, make([]byte, h.Pad)...), sum)
}

func (s *stranger) send(to *Device, packet []byte) {
	s.t.Helper()
	_, err := s.conn.WriteToUDPAddrPort(packet, to.local)
	must(s.t, err)
}

// hears is what the socket gets within some time.
func (s *stranger) hears(within time.Duration) []byte {
	b := make([]byte, 1<<16)
	_ = s.conn.SetReadDeadline(time.Now().Add(within))
	n, from, _ := s.conn.ReadFromUDPAddrPort(b)
	s.from = from
	return b[:n]
}

// Packets of whoever is not the peer are dropped and counted by what is wrong with them. They get
// no answer, whatever they say; nothing completes, no memory changes, and the connection that they
// aim at goes on.
func TestStrangers(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 64)
	a, b := pair[0], pair[1]
	a.post(t, a.write(b, 1, 64))
	a.succeed(t)
	attr, err := b.qp.Query()
	must(t, err)
	_, err = b.qp.PostRecv([]verbs.RecvWR{{}, {}})
	must(t, err)
	next := attr.RQPSN + 1
	forged := wire.Header{Opcode: wire.WriteOnlyImm, DestQP: b.qp.Num(), PSN: next, AckReq: true,
		Addr: b.mr.Addr(), RKey: b.mr.RKey(), Length: 4}
	to := func(f func(h *wire.Header)) wire.Header {
		h := forged
		f(&h)
		return h
	}
	far := newStranger(t, "127.0.0.3:0")  // of another host
	near := newStranger(t, "127.0.0.1:0") // another process of the peer's host
	garbage := bytes.Repeat([]byte{0xa5}, 1000)
	whole := seal(far.at, b.dev.local, forged, []byte("evil"))
	broken := bytes.Clone(whole)
	broken[len(broken)-1] ^= 1
	unknown := to(func(h *wire.Header) { h.DestQP ^= 0x10 })
	for name, x := range map[string]struct {
		from   *stranger
		packet []byte
		count  func(*Counters) *uint64
	}{
		"of another host":    {far, whole, strangers},
		"with a wrong ICRC":  {far, broken, strangers},
		"of the peer's host": {near, seal(near.at, b.dev.local, forged, []byte("evil")), strangers},
		"unknown queue pair": {far, seal(far.at, b.dev.local, unknown, []byte("evil")), noQP},
		"queue pair 0": {far, seal(far.at, b.dev.local, wire.Header{Opcode: wire.SendOnly}, nil),
			noQP},
		"empty":               {far, nil, malformed},
		"one byte":            {far, []byte{0}, malformed},
		"no ICRC":             {far, whole[:12], malformed},
		"cut off":             {far, whole[:len(whole)-9], malformed},
		"not of RC":           {far, garbage, malformed},
		"of another version":  {far, append([]byte{4, 0x4f}, whole[2:]...), malformed},
		"too long for a NIC":  {far, seal(far.at, b.dev.local, forged, make([]byte, 60_000)), strangers},
		"an ACK with more":    {near, seal(near.at, b.dev.local, ackOf(b, next), garbage), malformed},
		"a NAK for the peer":  {near, seal(near.at, b.dev.local, nakOf(b, next), nil), strangers},
		"an answer to a read": {near, seal(near.at, b.dev.local, readOf(b, next), garbage), strangers},
	} {
		t.Run(name, func(t *testing.T) {
			before := b.dev.Counters()
			x.from.send(b.dev, x.packet)
			want := before
			*x.count(&want)++
			end := time.Now().Add(10 * time.Second)
			for b.dev.Counters() == before && time.Now().Before(end) {
				time.Sleep(100 * time.Microsecond)
			}
			if got := b.dev.Counters(); got != want {
				t.Errorf("counted %+v\nwant    %+v", got, want)
			}
		})
	}
	for _, s := range []*stranger{far, near} {
		if heard := s.hears(10 * time.Millisecond); len(heard) != 0 {
			t.Errorf("%v gets an answer: %x", s.at, heard)
		}
	}
	var wcs [1]verbs.WC
	if n, err := b.cq.Poll(wcs[:]); n != 0 || err != nil {
		t.Errorf("polled %v, %v", wcs[:n], err)
	}
	if !bytes.Equal(b.buf, make([]byte, 64)) {
		t.Error("memory was written to")
	}
	copy(a.buf, "still here")
	a.post(t, a.write(b, 2, 64))
	a.succeed(t)
	if !bytes.Equal(a.buf, b.buf) {
		t.Error("the connection does not go on")
	}
}

func strangers(c *Counters) *uint64 { return &c.Strangers }
func noQP(c *Counters) *uint64      { return &c.NoQP }
func malformed(c *Counters) *uint64 { return &c.Malformed }

func ackOf(n *node, psn uint32) wire.Header {
	return wire.Header{Opcode: wire.Acknowledge, DestQP: n.qp.Num(), PSN: psn, Syndrome: wire.Ack}
}

func nakOf(n *node, psn uint32) wire.Header {
	h := ackOf(n, psn)
	h.Syndrome = wire.NakRemoteAccess
	return h
}

func readOf(n *node, psn uint32) wire.Header {
	h := ackOf(n, psn)
	h.Opcode = wire.ReadResponseOnly
	return h
}

// foreign is a peer that is no end of this package, as a NIC or rdma_rxe: it sends from another
// port than it receives at.
type foreign struct {
	*stranger // sends
	listens   *stranger
	qpn       uint32
	psn       uint32 // of its next request
	of        *node
}

// newForeign connects a queue pair to a peer that the test plays, which sends from a port.
func newForeign(t testing.TB, n *node, addr string, port uint16) *foreign {
	t.Helper()
	f := &foreign{listens: newStranger(t, addr+":4791"), qpn: 0x123456, psn: 0xffffff, of: n}
	if f.stranger = f.listens; port != Port {
		f.stranger = newStranger(t, fmt.Sprintf("%s:%d", addr, port))
	}
	must(t, verbstest.ToRTS(n.qp, verbs.QPAttr{Port: 1, Access: verbs.AccessAll, PathMTU: verbs.MTU1024,
		DestQPNum: f.qpn, RQPSN: f.psn, SQPSN: 0xfffffe, MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 1,
		Timeout: 14, RetryCount: 7, RNRRetry: 7,
		AH: verbs.AH{Global: true, Port: 1, HopLimit: 64, DGID: verbs.GID(f.at.Addr().As16())}}))
	overWire(n)
	return f
}

// say sends a packet to the queue pair.
func (f *foreign) say(h wire.Header, payload []byte) {
	f.t.Helper()
	h.DestQP = f.of.qp.Num()
	f.send(f.of.dev, seal(f.at, f.of.dev.local, h, payload))
}

// listen is the next packet of the queue pair.
func (f *foreign) listen() (wire.Header, []byte) {
	f.t.Helper()
	var h wire.Header
	b := f.listens.hears(10 * time.Second)
	packetsOrder()
	payload, err := wire.Parse(b, &h)
	must(f.t, err)
	if flow := wire.NewFlow(f.listens.from, f.listens.at); !flow.Check(0, b) {
		f.t.Errorf("the ICRC of %+v is wrong for a peer that checks it", h)
	}
	if h.DestQP != f.qpn {
		f.t.Errorf("a packet for queue pair %#x", h.DestQP)
	}
	return h, payload
}

// A READ that comes again reads memory again, as IBTA 9.7.5.1.2 says. The peer may have completed
// it, so the program may write there meanwhile. The race detector does not report that, since the
// peer drops the second answer.
func TestReadComesAgain(t *testing.T) {
	const size = 1000
	p := openNICs(t, Config{}, "127.0.0.1")
	n := newNode(t, p.Device(0), size)
	f := newForeign(t, n, ownAddr(2), 0)
	read := wire.Header{Opcode: wire.ReadRequest, PSN: f.psn, Addr: n.mr.Addr(), RKey: n.mr.RKey(),
		Length: size}
	for i := range byte(3) {
		n.buf[0], n.buf[size-1] = i, i
		if i == 0 {
			packetsOrder() // the first read is behind this write, and no other one
		}
		f.say(read, nil)
		if h, payload := f.listen(); h.Opcode != wire.ReadResponseOnly || h.PSN != f.psn ||
			!bytes.Equal(payload, n.buf) {
			t.Errorf("read %d is answered by %+v, %.20x", i+1, h, payload)
		}
	}
}

// A foreign peer talks the plain protocol, whatever port it sends from; what it does not send,
// since only ends of this package do, is dropped. Of announcements it sees those of requests,
// before it has answered.
func TestForeignPeer(t *testing.T) {
	for name, port := range map[string]uint16{"as rdma_rxe": 0, "from our port": Port} {
		t.Run(name, func(t *testing.T) { testForeignPeer(t, port) })
	}
}

func testForeignPeer(t *testing.T, port uint16) {
	p := openNICs(t, Config{}, "127.0.0.1")
	n := newNode(t, p.Device(0), 64)
	f := newForeign(t, n, ownAddr(2), port)
	write := wire.Header{Opcode: wire.WriteOnly, PSN: f.psn, AckReq: true, Addr: n.mr.Addr(),
		RKey: n.mr.RKey(), Length: 4}
	f.say(write, []byte("good"))
	if h, _ := f.listen(); h.Opcode != wire.Acknowledge || h.PSN != f.psn || !h.Syndrome.IsAck() ||
		h.Reserved != 0 {
		t.Errorf("a write is answered by %+v", h)
	}
	f.say(write, []byte("evil")) // replayed: acknowledged again, not carried out
	if h, _ := f.listen(); h.PSN != f.psn || !h.Syndrome.IsAck() {
		t.Errorf("a write that comes again is answered by %+v", h)
	}
	if string(n.buf[:4]) != "good" {
		t.Errorf("memory holds %q", n.buf[:4])
	}

	n.post(t, verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
	h, _ := f.listen()
	if h.Opcode != wire.SendOnly || h.PSN != 0xfffffe || !h.AckReq {
		t.Fatalf("a send is %+v", h)
	}
	ack := wire.Header{Opcode: wire.Acknowledge, PSN: h.PSN, Syndrome: wire.Ack}
	before := n.dev.Counters()
	ahead := ack
	ahead.PSN = 100 // of a packet that was never sent
	f.say(ahead, nil)
	f.say(ack, []byte("more"))
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if c := n.dev.Counters(); c.Malformed+c.Unexpected >= before.Malformed+before.Unexpected+2 {
			break
		}
	}
	c := n.dev.Counters()
	if c.Malformed != before.Malformed+1 || c.Unexpected != before.Unexpected+1 {
		t.Errorf("counted %+v", c)
	}
	var wcs [1]verbs.WC
	if k, _ := n.cq.Poll(wcs[:]); k != 0 {
		t.Fatalf("completed by an answer that no NIC gives: %+v", wcs[0])
	}
	f.say(ack, nil)
	n.succeed(t)
	n.post(t, verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
	if h, _ := f.listen(); h.Reserved != 0 {
		t.Errorf("a request after the first answer is %+v", h)
	}
	if n.qp.engine.IsOurs() {
		t.Error("the peer is taken for an end of this package")
	}
}

// An end of this package may send from any port, as a NIC does. Once it has shown to be one, only
// what comes from that port is of it: other processes of its host are strangers until the queue
// pair is reset.
func TestPeerKeepsItsPort(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1")
	n := newNode(t, p.Device(0), 64)
	f := newForeign(t, n, ownAddr(2), 0)
	other := newStranger(t, ownAddr(2)+":0")
	write := wire.Header{Opcode: wire.WriteOnly, PSN: f.psn, AckReq: true, Addr: n.mr.Addr(),
		RKey: n.mr.RKey(), Length: 4, Reserved: wire.FromRequester}
	f.say(write, []byte("good"))
	if h, _ := f.listen(); h.Reserved != wire.FromResponder || !h.Syndrome.IsAck() {
		t.Errorf("answered by %+v", h)
	}
	before := n.dev.Counters()
	write.PSN, write.DestQP = 0, n.qp.Num()
	for _, from := range []*stranger{other, f.listens} {
		from.send(n.dev, seal(from.at, n.dev.local, write, []byte("evil")))
	}
	f.say(write, []byte("fine"))
	if h, _ := f.listen(); h.PSN != 0 || !h.Syndrome.IsAck() {
		t.Errorf("answered by %+v", h)
	}
	if c := n.dev.Counters(); string(n.buf[:4]) != "fine" || c.Strangers != before.Strangers+2 {
		t.Errorf("%d strangers, and memory holds %q", c.Strangers-before.Strangers, n.buf[:4])
	}
	must(t, n.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState))
	if n.qp.peerPort != 0 || n.qp.path.to != nil {
		t.Error("a queue pair in RESET knows its peer")
	}
}

// What does not come from the port that the peer's GID names is a stranger's, also before anything
// is known of the peer.
func TestPeerOnPrivatePort(t *testing.T) {
	p, at := openNICs(t, Config{}, ownAddr(5)), ownAddr(6)
	n, peer := newNode(t, p.Device(0), 64), newNode(t, openNICs(t, Config{Port: 45125}, at).Device(0), 64)
	must(t, verbstest.Connect(n.qp, peer.qp, verbstest.ConnectConfig{Port: 1}))
	attr, err := n.qp.Query()
	must(t, err)
	write := wire.Header{Opcode: wire.WriteOnly, DestQP: n.qp.Num(), PSN: attr.RQPSN, Addr: n.mr.Addr(),
		RKey: n.mr.RKey(), Length: 4}
	for i, port := range []uint16{0, Port} {
		s := newStranger(t, fmt.Sprintf("%s:%d", at, port))
		s.send(n.dev, seal(s.at, n.dev.local, write, []byte("evil")))
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			if n.dev.Counters().Strangers == uint64(i+1) {
				break
			}
		}
	}
	peer.post(t, peer.write(n, 1, 4))
	peer.succeed(t)
	if c := n.dev.Counters(); c.Strangers != 2 || c.Received != 1 {
		t.Errorf("counted %+v", c)
	}
}

// Bursts go to ends of this package, over IPv6 to everybody, and over IPv4 to foreign peers where
// the user asks for that: every packet of them is taken.
func TestBurstsToForeignPeers(t *testing.T) {
	for name, test := range map[string]struct {
		addr   string
		cfg    Config
		bursts bool
	}{
		"own":            {ownAddr(9), Config{}, true},
		"IPv4":           {ownAddr(9), Config{Strict: true}, false},
		"IPv4, asked":    {ownAddr(9), Config{Strict: true, ForeignGSO: true}, true},
		"IPv6":           {"::1", Config{Strict: true}, true},
		"IPv6, disabled": {"::1", Config{Strict: true, DisableGSO: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := openNICs(t, test.cfg, test.addr).Device(0)
			pair := newNodes(t, d, d, 1<<16)
			a, b := pair[0], pair[1]
			a.post(t, a.write(b, 1, 8)) // from here on ends of this package know each other
			a.succeed(t)
			bursts := false
			d.mu.Lock()
			put := d.sender.put
			d.sender.put = func(to destination, packets []udp.Packet, segment bool) (int, error) {
				bursts = bursts || segment && len(packets) > 1
				return put(to, packets, segment)
			}
			d.mu.Unlock()
			a.post(t, a.write(b, 2, 1<<16))
			a.succeed(t)
			if bad := d.Counters().BadICRC; bursts != test.bursts || bad != 0 {
				t.Errorf("bursts: %v; %d packets have a wrong checksum", bursts, bad)
			}
		})
	}
}

// A peer without the right to what it asks for is told so before its connection ends, and once.
func TestDeniedPeerIsTold(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1")
	n := newNode(t, p.Device(0), 64)
	events := make(chan verbs.Event, 4)
	defer n.dev.Watch(events)()
	f := newForeign(t, n, ownAddr(2), 0)
	write := wire.Header{Opcode: wire.WriteOnly, PSN: f.psn, AckReq: true, Addr: n.mr.Addr(),
		RKey: n.mr.RKey() ^ 0x10, Length: 4}
	f.say(write, []byte("evil"))
	if h, _ := f.listen(); h.Syndrome != wire.NakRemoteAccess || h.PSN != f.psn {
		t.Errorf("a wrong key is answered by %+v", h)
	}
	if e := <-events; e.Type != verbs.EventQPAccessErr || e.QPNum != n.qp.Num() {
		t.Errorf("event %+v", e)
	}
	f.say(write, []byte("evil"))
	if b := f.listens.hears(10 * time.Millisecond); len(b) != 0 {
		t.Errorf("a queue pair in ERR says %x", b)
	}
	if s := n.qp.State(); s != verbs.StateErr {
		t.Errorf("the queue pair is in %v", s)
	}
}

// Packets of strangers cost no memory, and neither do those that have come to harm.
func TestStrangersCostNoMemory(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 64)
	b := pair[1].dev
	from := netip.MustParseAddrPort("127.0.0.3:4791")
	write := wire.Header{Opcode: wire.WriteOnly, DestQP: pair[1].qp.Num(), Length: 64}
	packets := [][]byte{nil, make([]byte, 100), seal(from, b.local, write, make([]byte, 64))}
	b.recv.mu.Lock()
	defer b.recv.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.counts
	const rounds = 100
	for _, at := range []netip.AddrPort{from, pair[0].dev.local} { // for the peer the ICRC is wrong
		n := testing.AllocsPerRun(rounds-1, func() {
			for _, packet := range packets {
				b.recv.packet(0, &udp.Datagram{Data: packet, From: at, Bundle: 1})
			}
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	before.Malformed += 2 * rounds
	before.NoQP += 2 * rounds
	before.Strangers += rounds
	before.BadICRC += rounds
	if b.counts != before {
		t.Errorf("counted %+v\nwant    %+v", b.counts, before)
	}
}
