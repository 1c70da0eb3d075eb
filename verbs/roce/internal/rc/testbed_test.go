package rc

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/wire"
)

// end is one end of a connection: a queue pair with its NIC, and its completions.
type end struct {
	t     testing.TB
	id    int
	lock  nic.Lock
	open  nic.Objects
	dev   nic.Device
	pd    nic.PD
	cq    nic.CQ
	q     *QP
	mr    nic.MR
	mem   []byte
	raise []verbs.EventType
	batch Batch
	wcs   [256]verbs.WC
	peer  *end
	// overruns makes the completion queue lose what completes, as one that is full does.
	overruns bool
}

func (e *end) Complete(c *nic.Completion) {
	switch {
	case !e.overruns:
		e.q.CQs[c.Dir].Add(c)
	case e.q.State != verbs.StateErr:
		e.q.Fail()
	}
}

func (e *end) Raise(t verbs.EventType) { e.raise = append(e.raise, t) }

// shape says how a testbed differs from the default.
type shape struct {
	mtu        verbs.MTU // default 256
	ours       bool
	announce   [2]bool   // the ends announce themselves
	psn        [2]uint32 // of the first packets of the two ends
	reads      uint8     // outstanding; default 4
	timeout    uint8     // default 10: 4 ms
	retries    uint8     // default 7
	rnrRetry   uint8     // default 7
	memory     int       // default 1 MiB
	rate       float64
	window     int // bytes; default 1 MiB
	rndSeed    uint64
	queueDepth int
	cqDepth    int                  // default 16384
	access     [2]verbs.AccessFlags // of the queue pairs; default all
}

func (s *shape) defaults() {
	set := func(to *uint8, v uint8) {
		if *to == 0 {
			*to = v
		}
	}
	set(&s.reads, 4)
	set(&s.timeout, 10)
	set(&s.retries, 7)
	set(&s.rnrRetry, 7)
	if s.mtu == 0 {
		s.mtu = verbs.MTU256
	}
	if s.memory == 0 {
		s.memory = 1 << 20
	}
	if s.cqDepth == 0 {
		s.cqDepth = 1 << 14
	}
	for i := range s.access {
		if s.access[i] == 0 {
			s.access[i] = verbs.AccessAll
		}
	}
	if s.queueDepth == 0 {
		s.queueDepth = 64
	}
}

func newEnd(t testing.TB, id int, s *shape) *end {
	e := &end{t: t, id: id}
	e.dev = nic.Device{
		Lock: &e.lock, Name: fmt.Sprintf("end%d", id), GIDs: 1, Open: &e.open,
		Limits: nic.Limits{MaxQPWR: 4096, MaxCQE: 1 << 16, MaxSGE: 8, MaxInline: 256, MaxMsgSize: 1 << 30,
			MaxRDAtomic: maxReads},
		Keys: nic.NewKeys(verbs.DeviceID(id), nil),
	}
	e.must(e.pd.Init(&e.dev))
	e.must(e.cq.Init(&e.dev, nil, verbs.CQConfig{Depth: s.cqDepth}))
	e.mem = make([]byte, s.memory)
	e.must(e.mr.Register(&e.pd, e.mem, verbs.AccessAll))
	q := &nic.QP{Num: uint32(100 + id), CQs: [2]*nic.CQ{&e.cq, &e.cq}}
	var err error
	e.lock.Lock()
	q.Cap, err = e.pd.CheckQP(verbs.QPCap{MaxSendWR: s.queueDepth,
		MaxRecvWR: s.queueDepth, MaxInline: 64}, &e.cq, &e.cq)
	e.must(err)
	q.Init(&e.pd)
	e.lock.Unlock()
	e.q = New(Config{QP: q, MaxMsgSize: 1 << 30, Sink: e, Rand: rand.New(rand.NewPCG(s.rndSeed, 7)),
		Rate: s.rate, Window: s.window, Announce: s.announce[id]})
	if s.ours {
		e.q.PeerIsOurs()
	}
	return e
}

// String is the state of an end, for a person.
func (e *end) String() string {
	r, p := &e.q.req, &e.q.resp
	s := fmt.Sprintf("%v, %d of %d requests ended, under way", e.q.State, e.q.SQ.Acked, e.q.SQ.Posted)
	for n := r.una; n < r.next; n++ {
		s += fmt.Sprintf(" %c", "?fkld"[r.at(n).state])
	}
	s += fmt.Sprintf(", %d not sent, reads %+v, timers %+v, window %+v", r.end-r.next, r.reads[:r.nreads],
		r.timers, r.window)
	return s + fmt.Sprintf("\n\texpects %d of the peer, silent %v, nak %v, %d answers, %d kept, "+
		"message %+v, %d receives", p.expected-e.peer.q.req.una, p.silent, p.nak,
		len(p.answers.list)-p.answers.first, p.ahead.n, p.message, e.q.RQ.Posted-e.q.RQ.Consumed)
}

func (e *end) must(err error) {
	if err != nil {
		e.t.Helper()
		e.t.Fatal(err)
	}
}

// modify changes the queue pair as a provider does.
func (e *end) modify(now int64, attr verbs.QPAttr, mask verbs.QPAttrMask) {
	e.t.Helper()
	ours := e.q.ours
	next, err := e.q.CheckModify(&attr, mask)
	e.must(err)
	nic.Apply(&e.q.Attr, &attr, mask)
	e.q.Enter(now, next)
	if ours {
		e.q.PeerIsOurs()
	}
}

// connect takes the queue pair to RTS.
func (e *end) connect(now int64, s *shape, peer, psn, peerPSN uint32) {
	e.t.Helper()
	e.modify(now, verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: s.access[e.id]},
		verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrPKeyIndex|verbs.QPAttrAccess)
	e.modify(now, verbs.QPAttr{State: verbs.StateRTR, PathMTU: s.mtu, DestQPNum: peer, RQPSN: peerPSN,
		MaxDestRDAtomic: s.reads, MinRNRTimer: 1,
		AH: verbs.AH{Global: true, Port: 1, DGID: verbs.GID{15: 1}}},
		verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPNum|verbs.QPAttrRQPSN|
			verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer)
	e.modify(now, verbs.QPAttr{State: verbs.StateRTS, Timeout: s.timeout, RetryCount: s.retries,
		RNRRetry: s.rnrRetry, SQPSN: psn, MaxRDAtomic: s.reads},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|
			verbs.QPAttrSQPSN|verbs.QPAttrMaxRDAtomic)
}

func (e *end) send(wrs ...verbs.SendWR) {
	e.t.Helper()
	for i := range wrs {
		e.must(e.q.MaySend())
		e.must(e.q.CheckSend(&wrs[i]))
		e.q.SQ.Push(&wrs[i])
	}
	e.q.Posted()
}

func (e *end) recv(wrs ...verbs.RecvWR) {
	e.t.Helper()
	for i := range wrs {
		e.must(e.q.MayReceive())
		e.must(e.q.CheckRecv(&wrs[i]))
		e.q.RQ.Push(&wrs[i])
	}
	e.q.Posted()
}

// poll returns the completions that there are; they are overwritten by the next call.
func (e *end) poll() []verbs.WC {
	n, err := e.cq.Poll(e.wcs[:])
	e.must(err)
	return e.wcs[:n]
}

func (e *end) sge(offset, n int) []verbs.SGE {
	return []verbs.SGE{{Addr: e.mr.Addr() + uint64(offset), Length: uint32(n), LKey: e.mr.LKey()}}
}

// network carries packets between two ends, in virtual time, and harms them.
type network struct {
	t       testing.TB
	ends    [2]*end
	now     int64
	rng     *rand.Rand
	flight  []datagram
	next    int // number of the next packet
	latency int64
	harm    harm
	holds   int64 // until when a packet is held up; see harm.hold
	dark    int64 // until when all packets are lost
	lazy    int   // of packets that arrive in a row, one in so many is answered at once; 0 is each
	acted   int   // the end that did something in the last step
	// drop says which packets are lost, besides those that harm takes.
	drop func(to int, h *wire.Header) bool
	seen func(to int, h *wire.Header, payload []byte)
	left func(from int, h *wire.Header) // a packet leaves
}

// harm is what the network does to packets: shares of all packets.
type harm struct {
	lose, repeat, delay float64
	// hold, if it is not 0, is the longest delay, and packets are held up one at a time; otherwise
	// the longest is 20 latencies.
	hold int64
}

type datagram struct {
	to, number int
	at         int64
	bytes      []byte
}

func newNetwork(t testing.TB, seed uint64, s shape) *network {
	s.defaults()
	n := &network{t: t, rng: rand.New(rand.NewPCG(seed, 1)), latency: 5000, now: 1, acted: -1}
	for i := range n.ends {
		n.ends[i] = newEnd(t, i, &s)
	}
	n.ends[0].peer, n.ends[1].peer = n.ends[1], n.ends[0]
	n.connect(&s)
	return n
}

// connect takes both ends to RTS.
func (n *network) connect(s *shape) {
	n.ends[0].connect(n.now, s, 101, s.psn[0], s.psn[1])
	n.ends[1].connect(n.now, s, 100, s.psn[1], s.psn[0])
}

// transmit returns what an end has to send, packet by packet.
func (e *end) transmit(now int64) (packets [][]byte) {
	for more := true; more; {
		more = e.q.Transmit(now, &e.batch)
		for _, p := range e.batch.Packets() {
			clear(p.Trailer)
			packets = append(packets, slices.Concat(p.Header, p.Payload, p.Trailer))
		}
		e.batch.Reset()
	}
	return packets
}

// flush sends what an end has to send.
func (n *network) flush(from int) {
	for _, b := range n.ends[from].transmit(n.now) {
		n.carry(1-from, b)
	}
}

// carry puts a packet on its way, unless it is lost.
func (n *network) carry(to int, b []byte) {
	var h wire.Header
	if _, err := wire.Parse(b, &h); err != nil {
		n.t.Fatalf("a packet that nobody can read: %v", err)
	}
	if n.left != nil {
		n.left(1-to, &h)
	}
	if n.drop != nil && n.drop(to, &h) || n.now < n.dark {
		return
	}
	copies := 1
	switch {
	case n.rng.Float64() < n.harm.lose:
		return
	case n.rng.Float64() < n.harm.repeat:
		copies = 2
	}
	for range copies {
		at := n.now + n.latency
		if n.rng.Float64() < n.harm.delay && n.now >= n.holds {
			at += n.rng.Int64N(cmp.Or(n.harm.hold, 20*n.latency))
			if n.harm.hold != 0 {
				n.holds = at
			}
		}
		n.next++
		n.flight = append(n.flight, datagram{to, n.next, at, b})
	}
}

// step lets the next thing happen: a packet arrives or a timer runs out. It returns false if
// nothing is left to happen.
func (n *network) step() bool {
	n.acted = -1
	if n.lazy == 0 || n.rng.IntN(n.lazy) == 0 || !n.soon() {
		n.flushAll()
	}
	return n.happen()
}

// soon reports whether a packet arrives almost at once, so that it may share a batch with those
// before it.
func (n *network) soon() bool {
	for i := range n.flight {
		if n.flight[i].at <= n.now+n.latency/5 {
			return true
		}
	}
	return false
}

func (n *network) flushAll() {
	for i := range n.ends {
		n.flush(i)
	}
}

// happen lets the next thing happen that is waited for.
func (n *network) happen() bool {
	when, first := int64(Never), -1
	for i, d := range n.flight {
		if d.at < when || d.at == when && d.number < n.flight[first].number {
			when, first = d.at, i
		}
	}
	timer := -1
	for i, e := range n.ends {
		if at := e.q.Deadline(); at < when {
			when, timer = at, i
		}
	}
	switch {
	case timer >= 0:
		n.now = max(when, n.now)
		n.acted = timer
		n.ends[timer].q.Tick(n.now)
		n.flush(timer)
	case first >= 0:
		n.now = max(when, n.now)
		d := n.flight[first]
		n.acted = d.to
		n.flight[first] = n.flight[len(n.flight)-1]
		n.flight = n.flight[:len(n.flight)-1]
		var h wire.Header
		payload, err := wire.Parse(d.bytes, &h)
		if err != nil {
			n.t.Fatal(err)
		}
		if n.seen != nil {
			n.seen(d.to, &h, payload)
		}
		n.ends[d.to].q.Receive(n.now, &h, payload)
	default:
		return false
	}
	return true
}

// check checks the invariants of both ends.
func (n *network) check() {
	n.t.Helper()
	for _, e := range n.ends {
		if err := e.q.Check(); err != nil {
			n.t.Fatal(err)
		}
	}
}

// run steps until nothing happens any more.
func (n *network) run() {
	n.t.Helper()
	for range 2_000_000 {
		if !n.step() {
			return
		}
		n.check()
	}
	n.t.Fatal("it does not end")
}
