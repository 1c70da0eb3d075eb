package lab

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"ibverbx/verbs"
)

// NetworkPlan is a network that loses, repeats, delays, overtakes and changes packets, in virtual
// time.
type NetworkPlan struct {
	Seed    uint64
	NICs    int
	Latency time.Duration // of a packet that nothing happens to
	// Shares of all packets.
	Lose, Repeat, Delay, Corrupt float64
	// Forge is the share of packets of which a third NIC sends a false copy.
	Forge float64
	// Liars: programs may connect queue pairs to others than their peers.
	Liars bool
	// Foreign: some NICs are as those of other makers.
	Foreign bool
	// IPv6, OddPorts and Bursts: how the NICs send.
	IPv6, OddPorts, Bursts bool
	// Patience is after how much time without a completion nothing comes of what still happens: a
	// receiver that is not ready is asked again for ever.
	Patience time.Duration
}

// DrawNetwork draws a network.
func DrawNetwork(rng *rand.Rand, seed uint64, nics int) *NetworkPlan {
	share := func(most float64) float64 { return max(0, rng.Float64()*2*most-most) }
	p := &NetworkPlan{Seed: seed, NICs: nics, Latency: time.Duration(1+rng.IntN(50)) * time.Microsecond,
		Patience: networkPatience, Foreign: rng.IntN(3) == 0, IPv6: rng.IntN(2) == 0,
		Bursts: rng.IntN(2) == 0, OddPorts: rng.IntN(3) == 0}
	if rng.IntN(5) != 0 {
		p.Lose, p.Repeat, p.Delay, p.Corrupt = share(0.06), share(0.1), share(0.3), share(0.03)
		p.Forge = share(0.05)
	}
	if p.Foreign {
		p.OddPorts = false
	}
	p.OddPorts = p.OddPorts && !p.IPv6
	return p
}

// String describes the network.
func (p *NetworkPlan) String() string {
	s := fmt.Sprintf("a network of %v, which loses %.1f %%, repeats %.1f %%, delays %.1f %%, "+
		"changes %.1f %% and forges %.1f %% of all packets",
		p.Latency, 100*p.Lose, 100*p.Repeat, 100*p.Delay, 100*p.Corrupt, 100*p.Forge)
	if p.Foreign {
		s += ", foreign peers"
	}
	return s
}

// The timers of queue pairs on a network. What a fault does to packets for a moment is over long
// before the retries are used up, even where the network loses as many as it may: so it must not
// fail anything.
const (
	NetworkTimeout  = 12 // the code of 16.8 ms
	NetworkRetries  = 7
	moment          = 8 * time.Millisecond
	networkPatience = 300 * time.Millisecond
)

// Network is a fabric of NICs that send packets.
type Network interface {
	Fabric
	// Describe has what happens described from now on.
	Describe(bool)
	// Check says what is wrong with a NIC, beside what its users see; nil when nothing is.
	Check() error
}

// NetworkNIC is a NIC of a network, and what may happen to its packets.
type NetworkNIC interface {
	Device
	// Lose has all packets lost that come in or go out, for some time, or until stop is called if
	// that is 0.
	Lose(in, out bool, d time.Duration) (stop func())
	// Hold holds what goes out for some time.
	Hold(d time.Duration)
	// Clog has the send buffer full so many times.
	Clog(times int)
}

// NetworkFaults is everything that goes wrong with NICs on a network. Of [Faults] it lacks what
// only package soft can do to a request (fail a send, after its data or at the receiver, queue pair
// dies at a request, link cut at a request), completion queues that overrun, and NICs that die.
var NetworkFaults = []Fault{
	{Name: "packets held", Gentle: true, act: func(t *Testbed, q *QP) func() {
		q.network().Hold(t.someTime(4 * moment))
		return nil
	}},
	{Name: "all packets lost for a moment", Gentle: true, act: func(t *Testbed, q *QP) func() {
		q.network().Lose(true, true, t.someTime(moment))
		return nil
	}},
	{Name: "packets of one direction lost for a moment", Gentle: true, act: func(t *Testbed, q *QP) func() {
		in := t.OneIn(2)
		q.network().Lose(in, !in, t.someTime(moment))
		return nil
	}},
	{Name: "send buffer full", Gentle: true, act: func(t *Testbed, q *QP) func() {
		q.network().Clog(t.Pick(1, 2, 5))
		return nil
	}},
	{Name: RefuseSends, Gentle: true, atPost: true, act: refuse(transientErrors, 1, 2, 5)},
	{Name: RefuseReceives, Gentle: true, atPost: true, act: refuseRecv(transientErrors, 1, 2, 5)},
	{Name: "refuse sends permanently", atPost: true, act: refuse(permanentErrors, 1)},
	{Name: "refuse receives permanently", atPost: true, act: refuseRecv(permanentErrors, 1)},
	{Name: QPDies, act: killQP},
	{Name: "link down", Scope: OneLink, act: cutLink},
	{Name: LinkFlaps, Scope: OneLink, act: flapLink},
	{Name: "all packets lost", Scope: OneLink, act: func(_ *Testbed, q *QP) func() {
		return q.network().Lose(true, true, 0)
	}},
	{Name: "packets of one direction lost", Scope: OneLink, act: func(t *Testbed, q *QP) func() {
		in := t.OneIn(2)
		return q.network().Lose(in, !in, 0)
	}},
}

// NetworkRailFaults are those of [RailFaults] that NICs on a network have.
var NetworkRailFaults = []Fault{
	{Name: "sends are refused in ERR", atPost: true, act: refuse([]error{verbs.ErrState}, 1)},
	{Name: "sends are refused by a NIC that is gone", atPost: true,
		act: refuse([]error{verbs.ErrDeviceGone}, 1)},
	{Name: "receives are refused in ERR", atPost: true, act: refuseRecv([]error{verbs.ErrState}, 1)},
	{Name: QPDies, act: killQP},
	{Name: "link down", Scope: OneLink, act: cutLink},
	{Name: "all packets lost", Scope: OneLink, act: func(_ *Testbed, q *QP) func() {
		return q.network().Lose(true, true, 0)
	}},
	{Name: "packets of one direction lost", Scope: OneLink, act: func(t *Testbed, q *QP) func() {
		in := t.OneIn(2)
		return q.network().Lose(in, !in, 0)
	}},
}

func (t *Testbed) someTime(most time.Duration) time.Duration {
	return time.Duration(1 + t.Rng.Int64N(int64(most)))
}

func (q *QP) network() NetworkNIC { return q.NIC.Device.(NetworkNIC) }

func refuse(with []error, times ...int) func(*Testbed, *QP) func() {
	return func(t *Testbed, q *QP) func() { return q.QP.(*networkQP).sends.begin(t, with, times) }
}

func refuseRecv(with []error, times ...int) func(*Testbed, *QP) func() {
	return func(t *Testbed, q *QP) func() { return q.QP.(*networkQP).recvs.begin(t, with, times) }
}

// networkQP is a queue pair on a network behind what package soft does by itself: it refuses posts
// and alters requests as faults say. And it translates packet sequence numbers: the library draws
// them, and here they decide which late packets are taken for what, so they must follow from the
// seed.
type networkQP struct {
	verbs.QP
	psns         *psns
	sends, recvs refusals
	alter        func(*verbs.SendWR)
	altered      int // requests that alter still changes; the first skip pass
	skip         int
}

// refusals are posts to be refused.
type refusals struct {
	skip, left int
	err        error
}

func (r *refusals) begin(t *Testbed, with []error, times []int) (undo func()) {
	*r = refusals{skip: t.Rng.IntN(4), left: t.Pick(times...), err: with[t.Rng.IntN(len(with))]}
	return func() { r.left = 0 }
}

// among counts requests that are posted, and returns which is refused; n if none is.
func (r *refusals) among(n int) (int, error) {
	if r.left == 0 || r.skip >= n {
		r.skip -= min(n, r.skip)
		return n, nil
	}
	at := r.skip
	r.skip = 0
	r.left--
	return at, fmt.Errorf("injected: %w", r.err)
}

// PostSend posts what no fault refuses.
func (q *networkQP) PostSend(wrs []verbs.SendWR) (int, error) {
	ok, refusal := q.sends.among(len(wrs))
	wrs = wrs[:ok]
	if q.altered != 0 {
		wrs = slices.Clone(wrs)
		for i := range wrs {
			q.change(&wrs[i])
		}
	}
	if n, err := q.QP.PostSend(wrs); err != nil {
		return n, err
	}
	return ok, refusal
}

// change alters a request that has an immediate, if its turn has come.
func (q *networkQP) change(wr *verbs.SendWR) {
	switch {
	case q.altered == 0 || !wr.Opcode.HasImm():
	case q.skip > 0:
		q.skip--
	default:
		q.altered--
		q.alter(wr)
	}
}

// PostRecv posts what no fault refuses.
func (q *networkQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	ok, refusal := q.recvs.among(len(wrs))
	if n, err := q.QP.PostRecv(wrs[:ok]); err != nil {
		return n, err
	}
	return ok, refusal
}

// Modify translates the first packet sequence numbers.
func (q *networkQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	a := *attr
	if mask&verbs.QPAttrRQPSN != 0 {
		a.RQPSN = q.psns.translate(a.DestQPNum, a.RQPSN)
	}
	if mask&verbs.QPAttrSQPSN != 0 {
		a.SQPSN = q.psns.translate(q.Num(), a.SQPSN)
	}
	return q.QP.Modify(&a, mask)
}

// psns replaces each packet sequence number that the library has drawn by one that follows from
// the seed. As with the library's, those of one queue pair are far apart: an end cannot tell
// packets of an earlier connection from those of a later one if their numbers fit.
type psns struct {
	rng   *rand.Rand
	known map[drawnPSN]uint32
	of    map[uint32][]uint32 // by the number of the queue pair that sends
}

// drawnPSN is a number that the library has drawn for a queue pair that sends. Two queue pairs may
// draw the same number, by chance and not by the seed, so each has a translation of its own.
type drawnPSN struct{ qpNum, psn uint32 }

func newPSNs(seed uint64) *psns {
	return &psns{rng: rand.New(rand.NewPCG(seed, 0x70736e)), known: map[drawnPSN]uint32{},
		of: map[uint32][]uint32{}}
}

// translate returns the number that replaces one that the library has drawn for a queue pair that
// sends. Some are near the wrap.
func (p *psns) translate(qpNum, psn uint32) uint32 {
	drawn := drawnPSN{qpNum, psn}
	to, ok := p.known[drawn]
	if ok {
		return to
	}
	near := func(earlier uint32) bool { return !PSNsApart(earlier, to, 1<<14) }
	for again := true; again; again = slices.ContainsFunc(p.of[qpNum], near) {
		if to = p.rng.Uint32N(1 << 24); p.rng.IntN(3) == 0 {
			to = 1<<24 - 1 - to%64
		}
	}
	p.known[drawn] = to
	p.of[qpNum] = append(p.of[qpNum], to)
	return to
}

// PSNsApart says whether two packet sequence numbers are so far from each other, around the wrap.
func PSNsApart(a, b, far uint32) bool {
	ahead := (a - b) % (1 << 24)
	return far <= ahead && ahead <= 1<<24-far
}

// Alter has some of the requests with an immediate altered that a queue pair of a network posts.
func (t *Testbed) Alter(name string, c *Conn, q *QP, skip, count int, change func(*verbs.SendWR)) {
	n := q.QP.(*networkQP)
	n.skip, n.altered, n.alter = skip, count, change
	t.Strikes = append(t.Strikes, &Strike{Fault: &Fault{Name: name}, Conn: c, nic: q.NIC,
		undo: func() { n.altered = 0 }})
}
