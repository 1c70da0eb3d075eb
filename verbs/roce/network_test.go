package roce

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"ibverbx/test/sim"
	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/rc"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
)

// network carries packets between NICs of this package in virtual time, and harms them. It takes
// the place of the sockets, the clock and the goroutines: nothing in it happens by itself, and
// everything follows from its plan.
type network struct {
	plan     *sim.NetworkPlan
	rng      *rand.Rand
	now      int64
	useful   int64 // when something last came of what happened
	nics     []*networkNIC
	at       map[netip.AddrPort]*networkNIC
	coming   happenings
	number   uint64 // of the next happening
	describe bool
	blind    bool          // nobody looks at the NICs from within, which takes long for many queue pairs
	pace     time.Duration // that a NIC takes to receive a packet
	provider Provider
	broken   error // the first thing that was wrong with a NIC
	scratch  rc.Batch
}

// happening is something that happens at its time.
type happening struct {
	at     int64
	number uint64 // orders those of one time
	what   occasion
	nic    *networkNIC
	packet udp.Datagram // that arrives
}

// occasion is the kind of a happening.
type occasion uint8

const (
	arrives  occasion = iota // a packet, at the socket
	received                 // the goroutine that receives gets to run
	rings                    // the alarm
	hasRoom                  // the send buffer has room again
)

// networkNIC is a NIC on a network, the link of that NIC, and its alarm.
type networkNIC struct {
	*Device
	net    *network
	source netip.AddrPort // where its packets seem to come from
	inbox  []udp.Datagram // what has arrived and was not received
	taken  []udp.Datagram // by the last Recv
	buffer int            // bytes that its queue pairs believe that an inbox holds
	narrow int            // bytes that those towards one peer share at most, and half of a buffer has
	room   int            // bytes that the inbox holds; 0 is no bound
	filled int            // bytes in the inbox
	// What comes to the NIC passes a link of rate bytes a second, if that is not 0, behind a queue
	// of so many bytes, and has passed it at free. What finds more than mark bytes in the queue is
	// marked, unless mark is 0.
	rate  float64
	queue int
	mark  int
	free  int64
	// dropped counts what found the inbox, or the link's queue, full.
	dropped int
	awake   bool  // the receiving goroutine will run
	ringAt  int64 // when the alarm goes off; rc.Never if it is not set
	clogs   int   // how many times the send buffer is full
	held    int64 // until when what goes out is held
	losses  []*loss
	done    uint64 // what its queue pairs have done when somebody last looked
}

// loss is a time in which packets are lost.
type loss struct {
	in, out bool
	until   int64
}

// newNetwork makes a network with NICs.
func newNetwork(plan *sim.NetworkPlan) sim.Network {
	n := &network{plan: plan, rng: rand.New(rand.NewPCG(plan.Seed, 0x77697265)), now: 1,
		at: map[netip.AddrPort]*networkNIC{}}
	for i := range plan.NICs {
		x := n.newNIC(i)
		n.nics = append(n.nics, x)
		n.at[x.local] = x
		n.provider.devices = append(n.provider.devices, x.Device)
	}
	return n
}

func (n *network) newNIC(i int) *networkNIC {
	addr := netip.AddrFrom4([4]byte{10, 99, 0, byte(1 + i)})
	if n.plan.IPv6 {
		addr = netip.AddrFrom16([16]byte{0xfd, 1, 15: byte(1 + i)})
	}
	port := uint16(Port)
	if n.plan.OddPorts && n.rng.IntN(2) == 0 {
		port = uint16(40000 + i)
	}
	x := &networkNIC{net: n, ringAt: rc.Never, buffer: 1 << (16 + n.rng.IntN(5))}
	x.Device = &Device{id: verbs.DeviceID(i), link: x, local: netip.AddrPortFrom(addr, port), netDev: "sim",
		clock: func() int64 { return n.now }, cfg: Config{Window: 1 << (12 + n.rng.IntN(9))}}
	x.source = x.local
	if n.plan.Foreign && n.rng.IntN(2) == 0 {
		x.cfg.Strict = true
		x.source = netip.AddrPortFrom(addr, 0xc000+uint16(n.rng.IntN(1<<14)))
	}
	if n.rng.IntN(6) == 0 {
		x.cfg.Rate = 1e7 * float64(1+n.rng.IntN(100))
	}
	x.mtu = [...]verbs.MTU{verbs.MTU512, verbs.MTU1024, verbs.MTU4096}[n.rng.IntN(3)]
	x.narrow = leastGrant << ((i + int(n.plan.Seed)) % 3)
	x.init(n.rng.Uint32)
	close(x.recv.ended)
	x.timers.alarm = x
	x.sender.awaitRoom = func() { n.soon(hasRoom, x) }
	return x
}

// soon has something happen to a NIC within a few latencies.
func (n *network) soon(what occasion, x *networkNIC) {
	n.push(happening{at: n.now + n.rng.Int64N(3*int64(n.plan.Latency)), what: what, nic: x})
}

func (n *network) push(h happening) {
	n.number++
	h.number = n.number
	heap.Push(&n.coming, h)
}

// Device is a NIC by its number.
func (n *network) Device(i int) sim.Device { return n.nics[i] }

// Describe has what happens described from now on.
func (n *network) Describe(on bool) { n.describe = on }

// Movable is 1 while something is to happen.
func (n *network) Movable() int { return min(len(n.coming), 1) }

// Step lets the next thing happen.
func (n *network) Step(*sim.Testbed) string { return n.step() }

// Run lets up to limit things happen, until nothing has come of any for long.
func (n *network) Run(limit int) (moves int) {
	for _, x := range n.nics {
		x.crowd.own = min(x.crowd.own, x.narrow)
		for _, s := range x.shares {
			s.limit = min(s.limit, x.narrow)
		}
		n.look(x)
		n.inspect(x)
	}
	for moves < limit && len(n.coming) != 0 && n.now-n.useful < int64(n.plan.Patience) {
		n.step()
		moves++
	}
	return moves
}

// look notes whether the queue pairs of a NIC have got on.
func (n *network) look(x *networkNIC) {
	if n.blind {
		return
	}
	done := uint64(0)
	for _, q := range x.qps.All {
		c := &q.core
		done = done*31 + c.SQ.Posted + c.SQ.Acked + c.RQ.Posted + c.RQ.Consumed + uint64(c.State)<<32
	}
	if done != x.done {
		x.done, n.useful = done, n.now
	}
}

// step lets the next thing happen.
func (n *network) step() (what string) {
	h := heap.Pop(&n.coming).(happening)
	n.now = max(n.now, h.at)
	if n.describe {
		what = h.String()
	}
	x := h.nic
	switch h.what {
	case arrives:
		x.arrive(h.packet)
	case received:
		x.awake = false
		x.recv.napping.Store(false)
		n.receive(x)
		if len(x.inbox) != 0 {
			x.wake()
		}
	case rings:
		if x.ringAt == h.at {
			x.ringAt = rc.Never
			x.tick()
		}
	case hasRoom:
		if x.sender.roomAgain(nil) {
			n.soon(hasRoom, x)
		}
	}
	n.look(x)
	n.inspect(x)
	return what
}

// receive has a NIC receive what has arrived. While its link is down nothing may come of that.
func (n *network) receive(x *networkNIC) {
	n.look(x)
	before := x.done
	_ = x.recv.receive()
	if n.look(x); x.down && x.done != before && n.broken == nil {
		n.broken = fmt.Errorf("%s has got on by what it received, and its link is down", x.Name())
	}
}

// arrive takes a packet that has come to the NIC's socket.
func (x *networkNIC) arrive(g udp.Datagram) {
	if x.loses(func(l *loss) bool { return l.in }) {
		return
	}
	x.wake()
	if x.room != 0 && x.filled+len(g.Data) > x.room {
		x.dropped++
		return
	}
	x.inbox, x.filled = append(x.inbox, g), x.filled+len(g.Data)
}

// pass has a packet of some bytes pass the link to the NIC. It returns when it has, or false if the
// queue was full.
func (x *networkNIC) pass(now int64, size int) (at int64, ok bool) {
	if x.rate == 0 {
		return now, true
	}
	if x.backlog(now)+size > x.queue {
		x.dropped++
		return 0, false
	}
	x.free = max(x.free, now) + int64(float64(size)/x.rate*1e9)
	return x.free, true
}

// backlog is how many bytes wait to pass the link.
func (x *networkNIC) backlog(now int64) int { return int(float64(max(x.free-now, 0)) * x.rate / 1e9) }

// marks is whether the network marks a packet to the NIC. Without a slow link it marks some.
func (x *networkNIC) marks(now int64) bool {
	if x.rate == 0 {
		return x.net.rng.IntN(64) == 0
	}
	return x.mark != 0 && x.backlog(now) > x.mark
}

// wake has the receiving goroutine run soon.
func (x *networkNIC) wake() {
	if !x.awake {
		x.awake = true
		x.recv.napping.Store(true)
		x.net.soon(received, x)
	}
}

// loses says whether packets are lost now of the kind that is asked for.
func (x *networkNIC) loses(kind func(*loss) bool) bool {
	x.losses = slices.DeleteFunc(x.losses, func(l *loss) bool { return l.until <= x.net.now })
	return slices.ContainsFunc(x.losses, kind)
}

// Lose has packets lost for some time, or until stop is called.
func (x *networkNIC) Lose(in, out bool, d time.Duration) (stop func()) {
	l := &loss{in, out, x.net.now + int64(d)}
	if d == 0 {
		l.until = rc.Never
	}
	x.losses = append(x.losses, l)
	return func() { l.until = 0 }
}

// Hold holds what goes out for some time.
func (x *networkNIC) Hold(d time.Duration) { x.held = x.net.now + int64(d) }

// Clog has the send buffer full so many times.
func (x *networkNIC) Clog(times int) { x.clogs = times }

// Reset sets the alarm.
func (x *networkNIC) Reset(after time.Duration) bool {
	x.ringAt = x.net.now + max(int64(after), 0)
	x.net.push(happening{at: x.ringAt, what: rings, nic: x})
	return true
}

// Stop takes the alarm back.
func (x *networkNIC) Stop() bool { x.ringAt = rc.Never; return true }

// The NIC's link.

// NewDestination is an address, of the NIC's own family.
func (x *networkNIC) NewDestination(to netip.AddrPort, way udp.Way) (destination, error) {
	if to.Addr().Is4() != x.local.Addr().Is4() || !to.Addr().IsValid() || to.Addr().IsUnspecified() {
		return nil, fmt.Errorf("%w: there is no way to %v", verbs.ErrUnreachable, to)
	}
	p := &networkPath{from: x, to: to, source: x.local, seems: x.source}
	if way.SourcePort != 0 {
		p.source = netip.AddrPortFrom(x.local.Addr(), way.SourcePort)
	}
	if x.source == x.local {
		p.seems = p.source
	}
	p.flow, p.seeming = wire.NewFlow(p.source, to), wire.NewFlow(p.seems, to)
	return p, nil
}

// MTU is room for the largest packets.
func (x *networkNIC) MTU(netip.AddrPort) (udp.PathMTU, error) {
	return udp.PathMTU{IP: 9000, Payload: 8900}, nil
}

// NewBatch receives from the inbox.
func (x *networkNIC) NewBatch() batch { return x }

// Recv receives some of what has arrived.
func (x *networkNIC) Recv() (int, error) {
	if len(x.inbox) == 0 {
		return 0, udp.ErrAgain
	}
	n := min(1+x.net.rng.IntN(16), len(x.inbox))
	x.taken = append(x.taken[:0], x.inbox[:n]...)
	x.inbox = x.inbox[:copy(x.inbox, x.inbox[n:])]
	for i := range x.taken {
		x.filled -= len(x.taken[i].Data)
	}
	x.net.now += int64(n) * int64(x.net.pace)
	return n, nil
}

// More is whether there is more.
func (x *networkNIC) More() bool { return len(x.inbox) != 0 }

// Received is what the last Recv has taken.
func (x *networkNIC) Received() []udp.Datagram { return x.taken }

var errNoGoroutine = errors.New("nothing waits on a network in virtual time")

// WaitReadable is never called.
func (x *networkNIC) WaitReadable(time.Time) error { return errNoGoroutine }

// WaitWritable is never called.
func (x *networkNIC) WaitWritable(time.Time) error { return errNoGoroutine }

// Yield does nothing: nobody else could run.
func (x *networkNIC) Yield() {}

// Stats is a socket's.
func (x *networkNIC) Stats() udp.Stats {
	return udp.Stats{RecvBuffer: x.buffer, SendBuffer: 1 << 20}
}

// Close does nothing.
func (x *networkNIC) Close() error { return nil }

// networkPath is a way to an address.
type networkPath struct {
	from    *networkNIC
	to      netip.AddrPort
	source  netip.AddrPort
	seems   netip.AddrPort // the source, as its packets have it
	ect     bool
	flow    wire.Flow
	seeming wire.Flow // of what seems to come from the source
}

// Addr is the address.
func (p *networkPath) Addr() netip.AddrPort { return p.to }

// Source is the address that packets leave from.
func (p *networkPath) Source() netip.AddrPort { return p.source }

// SetECT says whether the network may mark the packets.
func (p *networkPath) SetECT(on bool) { p.ect = on }

// Close does nothing.
func (p *networkPath) Close() {}

// Segments says whether packets leave in bursts.
func (p *networkPath) Segments() bool { return p.from.net.plan.Bursts }

// of returns the queue pair that has a way; nil if it has another one by now.
func (x *networkNIC) of(p *networkPath) *QP {
	for _, q := range x.qps.All {
		if q.path.to == p {
			return q
		}
	}
	return nil
}

// Send puts packets on their way. When the send buffer is full it takes some of them.
func (p *networkPath) Send(packets []udp.Packet, segment bool) (int, error) {
	x := p.from
	if q := x.of(p); x.net.broken == nil && q != nil && len(x.sender.backlog) == 0 &&
		p.ect != q.engine.WantsECT() {
		x.net.broken = fmt.Errorf("%s qp %d: the network may mark packets: %v", x.Name(), q.Num(), p.ect)
	}
	n := len(packets)
	if x.clogs > 0 {
		x.clogs--
		n = x.net.rng.IntN(n)
	}
	for rest := packets[:n]; len(rest) != 0; {
		burst := 1
		if segment {
			burst = udp.Burst(rest)
		}
		for i := range rest[:burst] {
			p.carry(i, slices.Concat(rest[i].Header, rest[i].Payload, rest[i].Trailer))
		}
		rest = rest[burst:]
	}
	if n < len(packets) {
		return n, udp.ErrAgain
	}
	return n, nil
}

// carry puts a packet on its way, the i-th of a burst, unless it is lost.
func (p *networkPath) carry(i int, packet []byte) {
	x, n := p.from, p.from.net
	plan, rng := n.plan, n.rng
	if n.broken == nil && !p.flow.Check(uint16(i), packet) { // i is what the kernel identifies it by
		n.broken = fmt.Errorf("%s sends packet %d of a burst with a wrong ICRC", x.Name(), i)
	}
	to := n.at[p.to]
	if to == nil || x.loses(func(l *loss) bool { return l.out }) || rng.Float64() < plan.Lose {
		return
	}
	if p.seems != p.source {
		p.disguise(packet)
	}
	if rng.Float64() < plan.Forge {
		p.forge(to, packet)
	}
	g := udp.Datagram{Data: packet, From: p.seems, Bundle: 1}
	if rng.IntN(2) == 0 { // the burst comes whole
		g.Index, g.Bundle = uint8(i), uint8(i+1)
	}
	leaves := max(n.now, x.held)
	if p.ect && to.marks(leaves) {
		g.ECN = udp.CE
	}
	sent, ok := to.pass(leaves, len(packet))
	if !ok {
		return
	}
	copies := 1
	if rng.Float64() < plan.Repeat {
		copies = 1 + rng.IntN(3)
	}
	for range copies {
		at := sent + int64(plan.Latency)
		if rng.Float64() < plan.Delay {
			at += rng.Int64N(20 * int64(plan.Latency))
		}
		g.Data = packet
		if rng.Float64() < plan.Corrupt {
			g.Data = p.corrupt(packet)
		}
		n.push(happening{at: at, what: arrives, nic: to, packet: g})
	}
}

// disguise makes a packet one that comes from the source, as a NIC of another maker would send it.
func (p *networkPath) disguise(packet []byte) {
	id := uint16(0)
	if p.to.Addr().Is4() {
		id = uint16(p.from.net.rng.Uint32())
	}
	end := len(packet) - wire.ICRCSize
	binary.LittleEndian.PutUint32(packet[end:], p.seeming.Sum(id, packet[:12], packet[12:end], 0))
}

// forge has another NIC send what this one sends, from the same port, but with other bytes, a
// little earlier.
func (p *networkPath) forge(to *networkNIC, packet []byte) {
	n := p.from.net
	forger := n.nics[n.rng.IntN(len(n.nics))]
	end := len(packet) - wire.ICRCSize
	if forger == p.from || end == 12 {
		return
	}
	b := slices.Clone(packet)
	b[12+n.rng.IntN(end-12)] ^= 1 << n.rng.IntN(8)
	source := netip.AddrPortFrom(forger.local.Addr(), p.seems.Port())
	flow := wire.NewFlow(source, p.to)
	binary.LittleEndian.PutUint32(b[end:], flow.Sum(0, b[:12], b[12:end], 0))
	n.push(happening{at: n.now, what: arrives, nic: to,
		packet: udp.Datagram{Data: b, From: source, Bundle: 1}})
}

// corrupt changes a few bits of a packet, or cuts it off. Of IPv4 it spares who receives it the one
// in 65,536 that is right for some identification.
func (p *networkPath) corrupt(packet []byte) []byte {
	rng := p.from.net.rng
	b := slices.Clone(packet)
	if rng.IntN(4) == 0 {
		return b[:rng.IntN(len(b))]
	}
	for ok := true; ok; _, ok = p.seeming.SolveID(b) {
		for range 1 + rng.IntN(4) {
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
	}
	return b
}

// Objects says what is open.
func (n *network) Objects() string {
	var s []string
	for _, x := range n.nics {
		s = append(s, fmt.Sprintf("%+v", x.open))
	}
	return strings.Join(s, ", ")
}

// Close closes the NICs, which must have nothing left to do.
func (n *network) Close() error {
	if err := n.provider.Close(); err != nil {
		return err
	}
	n.add()
	for _, x := range n.nics {
		s, r := &x.sender, &x.recv
		if len(x.timers.heap)+len(s.backlog)+len(s.waiting)+len(s.delayed)+len(r.dirty) != 0 {
			return fmt.Errorf("%s is closed and has %d timers, %d packets to send, %d queue pairs that wait "+
				"to send, %d that delay acknowledgements, %d with packets that were not dealt with", x.Name(),
				len(x.timers.heap), len(s.backlog), len(s.waiting), len(s.delayed), len(r.dirty))
		}
	}
	return nil
}

// String describes a happening.
func (h *happening) String() string {
	s := fmt.Sprintf("%v: %s ", time.Duration(h.at), h.nic.Name())
	switch h.what {
	case arrives:
		var w wire.Header
		payload, err := wire.Parse(h.packet.Data, &w)
		if err != nil {
			return s + fmt.Sprintf("gets a packet from %v: %v", h.packet.From, err)
		}
		return s + fmt.Sprintf("gets %v %d for %d of %d bytes from %v", w.Opcode, w.PSN, w.DestQP,
			len(payload), h.packet.From)
	case received:
		return s + fmt.Sprintf("receives %d packets", len(h.nic.inbox))
	case rings:
		return s + "looks at its timers"
	}
	return s + "has room to send again"
}

// happenings are what is to happen, the next one first.
type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is container/heap's.
func (h *happenings) Push(x any) { *h = append(*h, x.(happening)) }

// Pop is container/heap's.
func (h *happenings) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
