package rc

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// The memory of an end: what its peer writes to, where it receives, a counter, what the peer reads,
// what it sends from, where answers land, and the same again that lies in a region that may be
// closed.
const (
	areaLen     = 20 << 10
	writeArea   = 0
	recvArea    = writeArea + areaLen
	counterArea = recvArea + areaLen
	readArea    = counterArea + 64
	watched     = readArea // what lies before it changes by what the peer asks for alone
	sourceArea  = readArea + areaLen
	landArea    = sourceArea + areaLen
	victimArea  = landArea + areaLen
	simMemory   = victimArea + areaLen
)

const (
	simDepth = 8
	simMax   = 1900 // the longest message, bytes
)

// world is a run of the simulation.
type world struct {
	*network
	seed   uint64
	rng    *rand.Rand
	shape  shape
	step   int
	actors [2]*actor
	late   []datagram // copies of some packets, for the next connection
	broken *broken

	ops      []verbs.Opcode
	bad      int    // one request in so many is wrong; 0 is none
	outages  int    // one step in so many begins a blackout; 0 is none
	pauses   int    // one step in so many takes an end to SQD
	closings int    // one step in so many closes a region
	forger   int    // one step in so many brings a forged packet
	forged   int    // packets
	vanish   int    // the step in which the network goes down for good; 0 is never
	perfect  bool   // the network harms nothing, but for the order of packets
	marks    uint64 // it marks one packet in so many; 0 is none
	paused   bool   // an end went to SQD behind a packet that did not ask to be acknowledged
	most     int64  // the longest blackout
}

// violate notes a broken promise, unless one was broken before.
func (w *world) violate(rule, format string, args ...any) {
	if w.broken == nil {
		w.broken = &broken{w.seed, w.step, rule, fmt.Sprintf(format, args...) +
			fmt.Sprintf("\n%v\n%v", w.ends[0], w.ends[1])}
	}
}

// chance is one in n; 0 is never.
func (w *world) chance(n int) bool { return n != 0 && w.rng.IntN(n) == 0 }

// newWorld draws a world.
func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 99))
	w := &world{seed: seed, rng: rng}
	mtus := []verbs.MTU{verbs.MTU256, verbs.MTU256, verbs.MTU512, verbs.MTU1024}
	w.shape = shape{ours: rng.IntN(2) == 0, memory: simMemory, reads: uint8(1 + rng.IntN(6)), rndSeed: seed,
		timeout: uint8(10 + rng.IntN(4)), cqDepth: 256, mtu: mtus[rng.IntN(len(mtus))], queueDepth: simDepth}
	s := &w.shape
	if !s.ours { // both find out that they are ours, one is and the peer ignores it, or neither
		s.announce = [2]bool{seed*2654435761>>20&3 != 0, seed*2654435761>>22&3 != 0}
	}
	if rng.IntN(2) == 0 {
		s.retries, s.rnrRetry = uint8(1+rng.IntN(7)), uint8(1+rng.IntN(7))
	}
	if rng.IntN(8) == 0 {
		s.rate = 1e6 * float64(1+rng.IntN(100))
	}
	if rng.IntN(12) == 0 {
		rights := []verbs.AccessFlags{verbs.AccessRemoteRead, verbs.AccessRemoteWrite,
			verbs.AccessRemoteAtomic}
		s.access[rng.IntN(2)] = verbs.AccessAll &^ rights[rng.IntN(3)]
	}
	for i := range s.psn {
		s.psn[i] = rng.Uint32N(1 << 24)
		if rng.IntN(3) == 0 {
			s.psn[i] = psnMask - rng.Uint32N(50)
		}
	}
	w.perfect = rng.IntN(6) == 0
	reorders := w.perfect && s.ours && rng.IntN(2) == 0
	if reorders {
		s.mtu = verbs.MTU1024 // of a READ that is held up two numbers at most are missing: see doubt
	}
	if s.defaults(); seed%4 == 0 {
		s.window = 3 * s.mtu.Bytes()
	}
	w.network = newNetwork(t, seed, *s)
	w.marks = [...]uint64{0, 1, 8, 64}[rng.IntN(4)]
	switch {
	case !w.perfect:
		share := func(most float64) float64 {
			if rng.IntN(2) == 0 {
				return 0
			}
			return rng.Float64() * most
		}
		w.harm = harm{lose: share(0.1), repeat: share(0.1), delay: share(0.2)}
		if w.chance(4) {
			w.outages, w.most = 200, int64(verbs.AckTimeout(s.timeout))*int64(1+rng.IntN(4))
		}
		if w.chance(6) {
			w.vanish = 1 + rng.IntN(600)
		}
	case reorders: // no packet is late, nor its answer
		w.harm = harm{delay: 0.5, hold: w.latency / 4}
	}
	if w.harm.hold == 0 && w.chance(3) {
		w.lazy = 2 + rng.IntN(8)
	}
	if w.ops = simOps; w.chance(4) {
		w.ops = simOps[len(simOps)-3:] // what is answered
	}
	if w.chance(3) {
		w.bad = 20 + rng.IntN(60)
	}
	if w.chance(4) {
		w.pauses = 100
	}
	if w.chance(4) {
		w.closings = 300
	}
	if w.outages == 0 && !reorders && w.chance(3) {
		w.forger = 1 + rng.IntN(20)
	}
	for i := range w.actors {
		w.actors[i] = newActor(w, w.ends[i])
	}
	w.actors[0].peer, w.actors[1].peer = w.actors[1], w.actors[0]
	w.seen = w.packetArrives
	w.left = func(from int, h *wire.Header) { w.actors[from].leaves(h) }
	w.begin()
	return w
}

// begin begins a connection.
func (w *world) begin() {
	for i, a := range w.actors {
		a.begin(w.shape.psn[i])
	}
}

// playWorld plays the world of a seed, and returns the promise that was broken first.
func playWorld(t *testing.T, seed uint64) (stats Stats, b *broken) {
	w := newWorld(t, seed)
	defer func() {
		if p := recover(); p != nil {
			b = &broken{seed, w.step, "panic", fmt.Sprintf("%v\n%s", p, debug.Stack())}
		}
	}()
	for range 1 + w.rng.IntN(3)/2 { // a second connection in one world of three
		w.play()
		if w.broken != nil {
			return stats, w.broken
		}
		if w.rng.IntN(2) == 0 { // of what is under way, a part arrives in the next connection
			w.reconnect()
		}
	}
	for _, e := range w.ends {
		stats.add(e.q.Stats())
	}
	return stats, nil
}

// play plays a connection to its end.
func (w *world) play() {
	const limit = 60000
	for from := w.step; w.broken == nil; w.step++ {
		w.events()
		moved := w.network.step()
		w.after()
		if w.step-from > limit {
			w.violate("it ends", "%d steps", limit)
		}
		if moved {
			continue
		}
		if w.over() {
			w.finish()
			return
		}
		if w.idle() {
			w.violate("it ends", "nothing happens any more")
		}
	}
}

// events lets programs and owners do something.
func (w *world) events() {
	if w.vanish != 0 && w.step == w.vanish {
		w.dark = Never
	}
	if w.chance(w.outages) && w.now >= w.dark {
		w.dark = w.now + w.rng.Int64N(w.most)
	}
	atEnd := w.actors[0].left+w.actors[1].left == 0 // what goes wrong then is not repaired by what follows
	if w.chance(w.forger) || w.forger != 0 && atEnd && w.chance(2) {
		w.forge()
	}
	for _, a := range w.actors {
		for range 4 {
			if w.rng.IntN(6) == 0 {
				a.post()
			}
		}
		if w.rng.IntN(10) == 0 {
			a.receive()
		}
		a.pause()
		a.closeRegion()
		if w.lazy == 0 {
			w.flush(a.e.id)
		}
		a.hear()
		a.fresh = 0
	}
}

// after compares both ends with the model after a step.
func (w *world) after() {
	for _, e := range w.ends {
		if err := e.q.Check(); err != nil {
			w.violate("invariants", "%v", err)
		}
		w.overdue(e)
	}
	for _, a := range w.actors {
		a.repeats()
		a.carryOut()
	}
	for _, a := range w.actors {
		a.events()
	}
	for _, a := range w.actors {
		a.observe()
	}
	if w.acted < 0 {
		return
	}
	a := w.actors[w.acted]
	if string(a.e.mem[:watched]) != string(a.shadow) {
		w.violate("memory", "%s", a.difference())
	}
}

// overdue checks that the oldest packet under way is looked after if a later one was answered, but
// for one that a forger has had answered before it left.
func (w *world) overdue(e *end) {
	r := &e.q.req
	if !w.shape.ours || r.una == r.next || r.order.at != Never || r.order.rtt == 0 {
		return
	}
	t, p := r.at(r.una), r.readOf(r.una)
	if t.state == flying && r.order.passes(r.una, t.sentAt) && (p == nil || !p.kept) {
		w.violate("late packets", "nobody will look after the oldest one of end %d", e.id)
	}
}

// idle reports whether no program can post anything.
func (w *world) idle() bool {
	for _, a := range w.actors {
		if a.dead == alive && (a.left > 0 && a.e.q.SQ.Acked == a.e.q.SQ.Posted || len(a.recvs) < simDepth ||
			a.e.q.State == verbs.StateSQD) {
			return false
		}
	}
	return true
}

// over reports whether both programs have come to their end.
func (w *world) over() bool {
	for _, a := range w.actors {
		sq := &a.e.q.SQ
		if a.dead == alive && (a.left != 0 || sq.Acked != sq.Posted) {
			return false
		}
	}
	return true
}

// finish checks the end of a connection.
func (w *world) finish() {
	var resent, rnr, timers uint64
	lives := true
	for _, a := range w.actors {
		a.finish()
		s := a.e.q.Stats()
		resent += s.Resent
		timers += s.Timeouts + s.Probes
		rnr += s.RNRNAKs
		lives = lives && a.dead == alive
	}
	if !w.perfect || w.shape.rate != 0 || !lives {
		return
	}
	if w.paused {
		return // the packet that would have asked for an acknowledgement may not leave: a probe does
	}
	if resent != 0 && rnr == 0 && w.forger == 0 { // a peer that misses a forged packet is sent others
		w.violate("a network without harm", "%d packets were sent again", resent)
	}
	if timers != 0 {
		w.violate("a network without harm", "%d answers were waited for in vain", timers)
	}
}

// reconnect begins another connection between the same queue pairs, while packets of the one before
// are under way.
func (w *world) reconnect() {
	for _, e := range w.ends {
		e.q.Enter(w.now, verbs.StateReset)
		e.raise = nil
	}
	w.dark, w.vanish, w.perfect = 0, 0, false
	s := &w.shape
	for i := range s.psn {
		s.psn[i] = (s.psn[i] + 1<<20 + w.rng.Uint32N(1<<23)) & psnMask
	}
	for i, e := range w.ends {
		e.connect(w.now, s, uint32(101-i), s.psn[i], s.psn[1-i])
		if s.ours {
			e.q.PeerIsOurs()
		}
	}
	for range 1 + w.rng.IntN(3) {
		for _, d := range w.late {
			w.next++
			d.at, d.number = w.now+w.rng.Int64N(50*w.latency), w.next
			w.flight = append(w.flight, d)
		}
	}
	w.begin()
}

// add adds what another QP has done.
func (s *Stats) add(o Stats) {
	s.Sent += o.Sent
	s.Received += o.Received
	s.Resent += o.Resent
	s.Timeouts += o.Timeouts
	s.Probes += o.Probes
	s.NAKs += o.NAKs
	s.RNRNAKs += o.RNRNAKs
	s.Duplicates += o.Duplicates
	s.Ahead += o.Ahead
	s.Unexpected += o.Unexpected
	s.Broken += o.Broken
	s.Marked += o.Marked
	s.CNPsSent += o.CNPsSent
	s.CNPs += o.CNPs
}
