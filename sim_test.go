package ibverbx_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var (
	simSeeds = flag.Int("sim.seeds", 1500, "seeds that TestSimulation runs")
	simSeed  = flag.Int("sim.seed", -1, "the one seed that TestSimulation replays, with a trace")
)

// TestSimulation drives two virtual queue pairs over a stepped fabric from a seed: both ends post, poll, fail and close at
// random moments, the fabric executes and reveals in random order, and a model checks what is promised. A failing seed
// prints the command that replays it.
func TestSimulation(t *testing.T) {
	if *simSeed >= 0 {
		newSim(t, uint64(*simSeed), true).run()
		return
	}
	seeds := *simSeeds
	if testing.Short() {
		seeds = min(seeds, 200)
	}
	for seed := range seeds {
		if ok := t.Run(fmt.Sprint(seed), func(t *testing.T) { newSim(t, uint64(seed), false).run() }); !ok {
			t.Fatalf("replay: go test -run 'TestSimulation$' . -args -sim.seed %d", seed)
		}
	}
}

const (
	simBuffer = 256 << 10
	simSpare  = 100_000 // behind it: where the receives go that finish posts
)

// sim is one run. Each end is a sender and a receiver.
type sim struct {
	t        *testing.T
	rng      *rand.Rand
	l        *link
	trace    bool
	faulty   bool
	faults   []*soft.Injection
	ends     [2]*simEnd
	closed   bool
	scramble bool
}

// simEnd is an end and the model's view of it.
type simEnd struct {
	*end
	name     string
	to       *simEnd
	sends    []simSend
	done     int  // sends completed
	failed   bool // a send completed with an error
	recvs    []simRecv
	received int
	torn     bool  // a receive completed with an error
	notes    []int // indices of the peer's sends that are notifications, in order
	messages []int // indices of the peer's sends that are SENDs, in order
	checked  int   // the peer's writes before this one were seen to be there
	source   uint64
	spare    uint64
	free     uint64 // next unused byte of the buffer: every request has a target of its own
}

type simSend struct {
	op       verbs.Opcode
	from, at uint64 // offsets in the sender's and the receiver's buffer
	length   uint64
}

type simRecv struct {
	message bool
	at      uint64
}

func newSim(t *testing.T, seed uint64, trace bool) *sim {
	rng := rand.New(rand.NewPCG(seed, 3))
	s := &sim{t: t, rng: rng, trace: trace, faulty: rng.IntN(2) == 0}
	cfg := ibverbx.Config{
		Scheme:         ibverbx.Scheme(rng.IntN(2)),
		QPsPerDevice:   1 + rng.IntN(3),
		MaxMsgSize:     uint32([]int{1, 7, 64, 500}[rng.IntN(4)]),
		MaxMsgCntPerQP: 1 + rng.IntN(5),
		Credits:        1 + rng.IntN(6),
		MaxBanked:      1 + rng.IntN(8),
		Conn:           ibverbx.ConnConfig{RetryCount: 1 + uint8(rng.IntN(3))},
	}
	nics := 1 + rng.IntN(3)
	if nics*cfg.QPsPerDevice == 1 {
		cfg.QPsPerDevice = 2
	}
	s.scramble = rng.IntN(3) == 0
	s.l = newLink(t, linkConfig{nics: nics, qp: cfg, buffer: simBuffer + simSpare, fabric: soft.Config{Stepped: true, Seed: seed, Scramble: s.scramble}})
	for i, e := range []*end{s.l.a, s.l.b} {
		s.ends[i] = &simEnd{end: e, name: string(rune('a' + i)), source: 16 << 10}
		s.ends[i].free = s.ends[i].source
		fill := rand.New(rand.NewPCG(seed, uint64(i)))
		for j := range s.ends[i].source {
			e.buf[j] = byte(1 + fill.IntN(255)) // never zero, as targets are at first
		}
	}
	s.ends[0].to, s.ends[1].to = s.ends[1], s.ends[0]
	s.logf("seed %d: %d nics, %+v, faults %v", seed, nics, cfg, s.faulty)
	return s
}

func (s *sim) logf(format string, args ...any) {
	if s.trace {
		s.t.Logf(format, args...)
	}
}

func (s *sim) run() {
	for range 40 + s.rng.IntN(400) {
		e := s.ends[s.rng.IntN(2)]
		switch n := s.rng.IntN(20); {
		case n < 2:
			s.postSends(e)
		case n < 5:
			s.postRecv(e)
		case n < 9:
			s.poll(e, 1+s.rng.IntN(5))
		case n == 9 && s.faulty && s.rng.IntN(8) == 0:
			s.strike()
		case n == 10 && s.rng.IntN(60) == 0:
			if !s.reset() {
				s.finish()
				return
			}
		default:
			for range 1 + s.rng.IntN(4) {
				if a, ok := s.l.fabric.Step(); ok {
					s.logf("%v", a)
				}
			}
		}
	}
	s.finish()
}

// postSends posts a few requests of random kinds.
func (s *sim) postSends(e *simEnd) {
	var wrs []ibverbx.SendWR
	var reqs []simSend
	for range 1 + s.rng.IntN(4) {
		wr, r, ok := s.makeSend(e, uint64(len(e.sends)+len(reqs)))
		if !ok {
			break
		}
		wrs, reqs = append(wrs, wr), append(reqs, r)
	}
	n, err := e.PostSend(wrs...)
	if n < len(wrs) && e.Err() == nil {
		s.t.Fatalf("%s: post refused: %v", e.name, err)
	}
	if n > 0 {
		s.logf("%s posts %d sends from id %d: %v", e.name, n, len(e.sends), reqs[:n])
	}
	for _, r := range reqs[:n] {
		switch {
		case r.op.IsSend():
			e.to.messages = append(e.to.messages, len(e.sends))
		case r.op == verbs.OpRDMAWriteWithImm:
			e.to.notes = append(e.to.notes, len(e.sends))
		}
		e.sends = append(e.sends, r)
	}
}

func (s *sim) makeSend(e *simEnd, id uint64) (wr ibverbx.SendWR, r simSend, ok bool) {
	frag := uint64(e.Config().MaxMsgSize)
	length := []uint64{1, frag - 1, frag, frag + 1, 2 * frag, 1 + s.rng.Uint64N(5*frag)}[s.rng.IntN(6)]
	length = max(length, 1)
	if e.to.free+length > simBuffer-1000 || e.free+length > simBuffer-1000 {
		return wr, r, false
	}
	ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend, verbs.OpSendWithImm}
	r = simSend{op: ops[s.rng.IntN(len(ops))], length: length}
	r.from = s.rng.Uint64N(e.source - length)
	wr = ibverbx.SendWR{ID: id, Opcode: r.op, Flags: verbs.SendSignaled, Imm: uint32(id)}
	if s.rng.IntN(8) == 0 {
		wr.Flags |= verbs.SendFence
	}
	switch {
	case r.op == verbs.OpRDMARead:
		r.at, e.free = e.free, e.free+length
		wr.Local, wr.Remote = e.mr.Slice(r.at, length), e.peer.Slice(r.from, length)
		return wr, r, true
	case r.op.IsSend():
		r.length = min(length, 100)
	default:
		r.at, e.to.free = e.to.free, e.to.free+length
		wr.Remote = e.peer.Slice(r.at, length)
	}
	wr.Local = e.mr.Slice(r.from, r.length)
	if cut := s.rng.Uint64N(r.length); s.rng.IntN(3) == 0 {
		wr.SGL, wr.Local = []ibverbx.Segment{e.mr.Slice(r.from, cut), e.mr.Slice(r.from+cut, r.length-cut)}, ibverbx.Segment{}
	}
	return wr, r, true
}

func (s *sim) postRecv(e *simEnd) {
	r := simRecv{message: s.rng.IntN(3) == 0}
	wr := ibverbx.RecvWR{ID: uint64(len(e.recvs))}
	if r.message {
		if e.free+100 > simBuffer-1000 {
			return
		}
		r.at, e.free = e.free, e.free+100
		wr.Local = e.mr.Slice(r.at, 100)
	}
	if _, err := e.PostRecv(wr); err != nil {
		if e.Err() == nil {
			s.t.Fatalf("%s: receive refused: %v", e.name, err)
		}
		return
	}
	s.logf("%s posts receive %d, message %v", e.name, wr.ID, r.message)
	e.recvs = append(e.recvs, r)
}

// strike injects a fault.
func (s *sim) strike() {
	dev := s.l.fabric.Device(s.rng.IntN(len(s.l.a.nics) * 2))
	kinds := []soft.FaultKind{soft.FailSend, soft.FailAfterData, soft.FailRecv, soft.RefuseSend, soft.RefuseRecv, soft.StallQP, soft.Delay}
	statuses := []verbs.Status{verbs.StatusRemOpErr, verbs.StatusRetryExcErr, verbs.StatusLocProtErr, verbs.StatusRemAccessErr}
	switch n := s.rng.IntN(10); n {
	case 0:
		s.logf("link of %s down", dev.Name())
		dev.SetLink(false)
	case 1:
		s.logf("link of %s up", dev.Name())
		dev.SetLink(true)
	case 2:
		if s.rng.IntN(4) == 0 {
			s.logf("kill %s", dev.Name())
			dev.Kill()
		}
	default:
		f := soft.Fault{Device: dev, Skip: s.rng.IntN(5), Kind: kinds[s.rng.IntN(len(kinds))], Status: statuses[s.rng.IntN(len(statuses))]}
		if s.rng.IntN(6) == 0 && (f.Kind == soft.RefuseSend || f.Kind == soft.RefuseRecv) {
			f.Err = verbs.ErrNotSupported
		}
		s.logf("fault on %s: %+v", dev.Name(), f)
		s.faults = append(s.faults, s.l.fabric.Inject(f))
	}
}

// poll takes in up to n completions of an end and checks each.
func (s *sim) poll(e *simEnd, n int) int {
	wcs := make([]ibverbx.WC, n)
	n, err := e.cq.Poll(wcs)
	if err != nil && !s.faulty && !errors.Is(err, ibverbx.ErrClosed) {
		s.t.Fatalf("%s: poll: %v", e.name, err)
	}
	for i := range wcs[:n] {
		s.logf("%s completes %s", e.name, fmtWCs(wcs[i:i+1]))
		if wcs[i].Opcode.IsRecv() { // failed ones too
			s.checkRecv(e, &wcs[i])
		} else {
			s.checkSend(e, &wcs[i])
		}
	}
	return n
}

func (s *sim) checkSend(e *simEnd, wc *ibverbx.WC) {
	if e.done >= len(e.sends) || wc.ID != uint64(e.done) {
		s.t.Fatalf("%s: send %d of %d: %s", e.name, e.done, len(e.sends), fmtWCs([]ibverbx.WC{*wc}))
	}
	r := e.sends[e.done]
	e.done++
	if wc.Status != verbs.StatusSuccess {
		if !s.faulty && !s.closed {
			s.t.Fatalf("%s: send %d: %v without a fault; %v", e.name, wc.ID, wc.Status, e.Err())
		}
		if e.failed && wc.Status != verbs.StatusWRFlushErr {
			s.t.Fatalf("%s: send %d after the first error: %v", e.name, wc.ID, wc.Status)
		}
		var fe *ibverbx.FailedError
		if !e.failed && errors.As(e.Err(), &fe) && !fe.Recv && fe.HasID && fe.ID == wc.ID && fe.Rail >= 0 {
			if status := verbs.Status(0); errors.As(fe.Err, &status) && status != wc.Status {
				s.t.Fatalf("%s: send %d: %v, but the error is %v", e.name, wc.ID, wc.Status, fe)
			}
		}
		e.failed = true
		return
	}
	if e.failed {
		s.t.Fatalf("%s: send %d succeeded after an error", e.name, wc.ID)
	}
	switch {
	case r.op == verbs.OpRDMARead:
		s.mustHold("read", e, wc.ID, e.buf[r.at:r.at+r.length], e.to.buf[r.from:r.from+r.length])
	case !r.op.IsSend():
		s.mustHold("write", e, wc.ID, e.to.buf[r.at:r.at+r.length], e.buf[r.from:r.from+r.length])
	}
}

func (s *sim) mustHold(what string, e *simEnd, id uint64, got, want []byte) {
	if !bytes.Equal(got, want) {
		s.t.Fatalf("%s: %s %d: its data is not there", e.name, what, id)
	}
}

func (s *sim) checkRecv(e *simEnd, wc *ibverbx.WC) {
	if e.received >= len(e.recvs) || wc.ID != uint64(e.received) {
		s.t.Fatalf("%s: receive %d of %d: %s", e.name, e.received, len(e.recvs), fmtWCs([]ibverbx.WC{*wc}))
	}
	r := e.recvs[e.received]
	e.received++
	if wc.Status != verbs.StatusSuccess {
		if !s.faulty && !s.closed {
			s.t.Fatalf("%s: receive %d: %v without a fault; %v", e.name, wc.ID, wc.Status, e.Err())
		}
		e.torn = true
		return
	}
	if e.torn {
		s.t.Fatalf("%s: receive %d succeeded after an error", e.name, wc.ID)
	}
	list := &e.notes
	if r.message {
		list = &e.messages
	}
	if len(*list) == 0 {
		s.t.Fatalf("%s: receive %d: nothing was sent", e.name, wc.ID)
	}
	n := (*list)[0]
	*list = (*list)[1:]
	sent := e.to.sends[n]
	if r.message {
		if wc.ByteLen != sent.length {
			s.t.Fatalf("%s: receive %d: %d bytes, sent %d", e.name, wc.ID, wc.ByteLen, sent.length)
		}
		s.mustHold("message", e, wc.ID, e.buf[r.at:r.at+sent.length], e.to.buf[sent.from:sent.from+sent.length])
	} else if wc.Imm != uint32(n) || e.Scheme() == ibverbx.DQPLB && wc.ByteLen != sent.length {
		s.t.Fatalf("%s: receive %d: %s, want the notification of send %d", e.name, wc.ID, fmtWCs([]ibverbx.WC{*wc}), n)
	}
	// Promise 4: every earlier write is there, and this one.
	for ; e.checked <= n; e.checked++ {
		if w := e.to.sends[e.checked]; w.op == verbs.OpRDMAWrite || w.op == verbs.OpRDMAWriteWithImm {
			s.mustHold(fmt.Sprintf("notified by %d: write", n), e, uint64(e.checked), e.buf[w.at:w.at+w.length], e.to.buf[w.from:w.from+w.length])
		}
	}
}

// finish lets everything end: to success when nothing has failed, by closing otherwise.
func (s *sim) finish() {
	for _, f := range s.faults {
		f.Remove()
	}
	for i := range len(s.l.a.nics) * 2 {
		s.l.fabric.Device(i).SetLink(true)
	}
	healthy := func() bool { return s.l.a.Err() == nil && s.l.b.Err() == nil }
	for i := 0; healthy() && i < 200_000; i++ {
		moved := s.l.fabric.Run(50)
		for _, e := range s.ends {
			if e.Err() != nil {
				continue
			}
			s.balance(e)
			moved += s.poll(e, 64)
		}
		if moved == 0 && s.quiet() {
			break
		}
	}
	if healthy() {
		s.checkQuiet()
	}
	s.closed = true
	for _, e := range s.ends {
		if err := e.Close(); err != nil {
			s.t.Fatalf("%s: close: %v", e.name, err)
		}
		for s.poll(e, 7) != 0 {
		}
		if e.done != len(e.sends) || e.received != len(e.recvs) {
			s.t.Fatalf("%s: %d of %d sends and %d of %d receives completed", e.name, e.done, len(e.sends), e.received, len(e.recvs))
		}
	}
}

// balance makes as many receives as messages of each kind: it posts the receives that are missing, and lets the peer send what
// is waited for in vain. A receive that nothing matches would hold up all behind it.
func (s *sim) balance(e *simEnd) {
	waiting := map[bool]int{}
	for _, r := range e.recvs[e.received:] {
		waiting[r.message]++
	}
	for message, sent := range map[bool]int{false: len(e.notes), true: len(e.messages)} {
		for range sent - waiting[message] {
			s.feed(e, message)
		}
		for range waiting[message] - sent {
			s.serve(e.to, message)
		}
	}
}

// reset takes both ends back to RESET, where everything outstanding must end, and connects them again. It reports false when a
// NIC that is gone forbids that.
func (s *sim) reset() bool {
	s.logf("reset")
	s.closed = true
	refused := false
	for _, e := range s.ends {
		if err := e.Reset(); err != nil {
			if !s.faulty {
				s.t.Fatalf("%s: reset: %v", e.name, err)
			}
			refused = true
		}
		for s.poll(e, 7) != 0 {
		}
		if e.done != len(e.sends) || e.received != len(e.recvs) {
			s.t.Fatalf("%s: after a reset %d of %d sends and %d of %d receives have completed", e.name, e.done, len(e.sends), e.received, len(e.recvs))
		}
	}
	if refused {
		return false
	}
	for _, e := range s.ends {
		e.failed, e.torn, e.notes, e.messages, e.checked = false, false, nil, nil, len(e.to.sends)
	}
	s.closed = false
	return s.l.reconnect() == nil || !s.faulty
}

// feed posts a receive.
func (s *sim) feed(e *simEnd, message bool) {
	r := simRecv{message: message}
	wr := ibverbx.RecvWR{ID: uint64(len(e.recvs))}
	if message {
		r.at, e.spare = simBuffer+e.spare, (e.spare+100)%simSpare
		wr.Local = e.mr.Slice(r.at, 100)
	}
	if _, err := e.PostRecv(wr); err != nil && e.Err() == nil {
		s.t.Fatal(err)
	} else if err == nil {
		e.recvs = append(e.recvs, r)
	}
}

// serve sends one byte: a message, or a write with notification.
func (s *sim) serve(e *simEnd, message bool) {
	r := simSend{op: verbs.OpRDMAWriteWithImm, length: 1, at: e.to.free}
	wr := ibverbx.SendWR{ID: uint64(len(e.sends)), Opcode: r.op, Flags: verbs.SendSignaled, Imm: uint32(len(e.sends)), Local: e.mr.Slice(0, 1), Remote: e.peer.Slice(r.at, 1)}
	if message {
		r.op, wr.Opcode, wr.Remote = verbs.OpSend, verbs.OpSend, ibverbx.RemoteSegment{}
	}
	if _, err := e.PostSend(wr); err != nil && e.Err() == nil {
		s.t.Fatal(err)
	} else if err != nil {
		return
	}
	if message {
		e.to.messages = append(e.to.messages, len(e.sends))
	} else {
		e.to.notes = append(e.to.notes, len(e.sends))
	}
	e.to.free++
	e.sends = append(e.sends, r)
}

func (s *sim) quiet() bool {
	for _, e := range s.ends {
		if e.done != len(e.sends) || e.received != len(e.recvs) || len(e.notes)+len(e.messages) != 0 {
			return false
		}
	}
	return true
}

// checkQuiet: with nothing failed, everything sent has arrived and every counter is back to nothing.
func (s *sim) checkQuiet() {
	for _, e := range s.ends {
		st := e.Stats()
		if !s.quiet() {
			s.t.Fatalf("%s: stuck: %d of %d sends, %d notifications and %d messages missing\n%+v", e.name, e.done, len(e.sends), len(e.to.notes), len(e.to.messages), st)
		}
		if st.SendWindow != 0 || st.OutOfOrder != 0 || st.Banked != 0 || st.StaleEvents != 0 || st.NumbersOpen != 0 {
			s.t.Fatalf("%s: not quiet: %+v", e.name, st)
		}
		for _, r := range st.Rails {
			if r.Outstanding != 0 {
				s.t.Fatalf("%s: rail %+v", e.name, r)
			}
		}
	}
}
