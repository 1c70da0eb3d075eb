// Package api_test tests virtual queue pairs through the public API, over software NICs, stepped
// ones, NICs whose calls fail, and the null provider: what is refused and with which words, what is
// reported when something fails, what waits, and how an end closes. What every provider can play is
// in test/vqp.
package api_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

const (
	trafficSlots = 128  // requests outstanding
	slotBytes    = 2048 // bytes of the longest request
	sourceBytes  = 64 << 10
	// Layout of either buffer: a source that never changes, a slot for each outstanding request,
	// and a slot for each receive.
	slotsAt    = sourceBytes
	receivesAt = slotsAt + trafficSlots*slotBytes
)

// traffic is a sender that keeps requests outstanding while a test takes queue pairs and NICs away.
// It checks what each request has done. It posts no atomics, whose answers may be lost.
type traffic struct {
	l        *vqptest.Link
	rng      *rand.Rand
	reqs     [trafficSlots]trafficRequest
	posted   uint64
	done     uint64
	recvs    [trafficSlots]trafficRequest // in the order of posting
	expected uint64                       // receives posted
	received uint64
	wcs      [64]ibverbx.WC
	harm     func() // run calls it before each post
}

type trafficRequest struct {
	op     verbs.Opcode
	from   uint64 // offset of the source
	length uint64
	id     uint64 // of the send, for a receive
}

func newTraffic(l *vqptest.Link, seed uint64) *traffic {
	vqptest.FillRandom(l.A.Buf[:sourceBytes], seed)
	vqptest.FillRandom(l.B.Buf[:sourceBytes], seed+1)
	return &traffic{l: l, rng: rand.New(rand.NewPCG(seed, 2))}
}

func (s *traffic) run(t *testing.T, total int) {
	warm := total / 4
	var before runtime.MemStats
	deadline := time.Now().Add(time.Minute)
	for s.done < uint64(total) {
		for s.posted < uint64(total) && s.posted-s.done < trafficSlots &&
			s.expected-s.received < trafficSlots {
			s.harm()
			s.post(t)
		}
		s.collect(t, deadline)
		if warm != 0 && s.done >= uint64(warm) {
			runtime.GC()
			runtime.ReadMemStats(&before)
			warm = 0
		}
	}
	for s.received < s.expected {
		s.collect(t, deadline)
	}
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("memory grew by %d bytes over %d requests", grown, total)
	}
	for _, e := range []*vqptest.End{s.l.A, s.l.B} {
		if err := e.Err(); err != nil {
			t.Error(err)
		}
		if st := e.Stats(); st.SendWindow != 0 || st.RecvWindow != 0 || st.Banked != 0 ||
			st.StaleEvents != 0 || st.OutOfOrder != 0 {
			t.Errorf("not quiet at the end: %+v", st)
		}
	}
}

// post posts the next request, after the receive that it needs at the peer.
func (s *traffic) post(t *testing.T) {
	a, b := s.l.A, s.l.B
	ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend,
		verbs.OpSendWithImm}
	r := trafficRequest{op: ops[s.rng.IntN(len(ops))], length: 1 + s.rng.Uint64N(slotBytes), id: s.posted}
	if s.rng.IntN(2) == 0 {
		r.length = 1 + s.rng.Uint64N(64)
	}
	r.from = s.rng.Uint64N(sourceBytes - r.length)
	slot := s.posted % trafficSlots
	slotAt := slotsAt + slot*slotBytes
	wr := ibverbx.SendWR{ID: s.posted, Opcode: r.op, Flags: verbs.SendSignaled, Imm: uint32(s.posted)}
	switch r.op {
	case verbs.OpRDMARead:
		wr.Local, wr.Remote = a.MR.Slice(slotAt, r.length), a.Peer.Slice(r.from, r.length)
	default:
		wr.Local = a.MR.Slice(r.from, r.length)
		if cut := s.rng.Uint64N(r.length); cut > 0 && s.rng.IntN(4) == 0 {
			wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{a.MR.Slice(r.from, cut),
				a.MR.Slice(r.from+cut, r.length-cut)}
		}
		if !r.op.IsSend() {
			wr.Remote = a.Peer.Slice(slotAt, r.length)
		}
		if r.op != verbs.OpRDMAWrite {
			recv := ibverbx.RecvWR{ID: s.expected}
			if r.op.IsSend() {
				recv.Local = b.MR.Slice(receivesAt+s.expected%trafficSlots*slotBytes, slotBytes)
			}
			if _, err := b.PostRecv(recv); err != nil {
				t.Fatal(err)
			}
			s.recvs[s.expected%trafficSlots] = r
			s.expected++
		}
	}
	s.reqs[slot] = r
	if _, err := a.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	s.posted++
}

// collect polls both ends and checks what completes.
func (s *traffic) collect(t *testing.T, deadline time.Time) {
	n, err := s.l.A.CQ().Poll(s.wcs[:])
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.wcs[:n] {
		s.checkSend(t, &s.wcs[i])
	}
	m, err := s.l.B.CQ().Poll(s.wcs[:])
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.wcs[:m] {
		s.checkRecv(t, &s.wcs[i])
	}
	if n+m == 0 {
		runtime.Gosched()
		if time.Now().After(deadline) {
			t.Fatalf("stuck: %+v, %v\n%+v, %v", s.l.A.Stats(), s.l.A.Err(), s.l.B.Stats(), s.l.B.Err())
		}
	}
}

func (s *traffic) checkSend(t *testing.T, wc *ibverbx.WC) {
	r := &s.reqs[s.done%trafficSlots]
	if wc.ID != s.done || wc.Status != verbs.StatusSuccess || wc.Opcode != r.op.WCOpcode() {
		t.Fatalf("send %d: %+v; %v", s.done, *wc, s.l.A.Err())
	}
	slot := slotsAt + s.done%trafficSlots*slotBytes
	s.done++
	switch {
	case r.op == verbs.OpRDMARead:
		vqptest.MustEqual(t, fmt.Sprint("request ", wc.ID), s.l.A.Buf[slot:slot+r.length],
			s.l.B.Buf[r.from:r.from+r.length])
	case !r.op.IsSend():
		vqptest.MustEqual(t, fmt.Sprint("request ", wc.ID), s.l.B.Buf[slot:slot+r.length],
			s.l.A.Buf[r.from:r.from+r.length])
	}
}

func (s *traffic) checkRecv(t *testing.T, wc *ibverbx.WC) {
	r := &s.recvs[s.received%trafficSlots]
	if wc.ID != s.received || wc.Status != verbs.StatusSuccess {
		t.Fatalf("receive %d: %+v; %v", s.received, *wc, s.l.B.Err())
	}
	if r.op != verbs.OpSend && wc.Imm != uint32(r.id) {
		t.Fatalf("receive %d: immediate %d, want %d", s.received, wc.Imm, r.id)
	}
	if r.op.IsSend() {
		at := receivesAt + s.received%trafficSlots*slotBytes
		vqptest.MustEqual(t, fmt.Sprint("request ", wc.ID), s.l.B.Buf[at:at+r.length],
			s.l.A.Buf[r.from:r.from+r.length])
	}
	s.received++
}

// timedLink is a link with failover over two NICs an end, whose clock is the test's own.
type timedLink struct {
	*vqptest.Link
	now    time.Time
	events []ibverbx.RailEvent // of end a
}

func newTimedLink(t *testing.T, cfg ibverbx.Config) *timedLink {
	t.Helper()
	l := &timedLink{now: time.Unix(0, 0)}
	cfg.QPsPerDevice, cfg.FragmentSize, cfg.Failover = 2, 512, true
	cfg.Testing.Clock = func() time.Time { return l.now }
	peer := cfg
	cfg.Events.Rail = func(e ibverbx.RailEvent) { l.events = append(l.events, e) }
	l.Link = vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: cfg, PeerQP: &peer})
	return l
}

// after lets time pass, and both ends poll. Nothing is sent.
func (l *timedLink) after(d time.Duration) {
	l.now = l.now.Add(d)
	for range 20 {
		l.A.Pump(l.TB)
		l.B.Pump(l.TB)
	}
}

// eitherEnd plays a test in both schemes, with what goes wrong at either end of a link: the first
// one leads, and sends.
func eitherEnd(t *testing.T,
	play func(t *testing.T, scheme ibverbx.Scheme, at func(*vqptest.Link) *vqptest.End)) {
	t.Helper()
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for who, at := range map[string]func(*vqptest.Link) *vqptest.End{
			"first":  func(l *vqptest.Link) *vqptest.End { return l.A },
			"second": func(l *vqptest.Link) *vqptest.End { return l.B },
		} {
			t.Run(fmt.Sprintf("%v/%s", scheme, who), func(t *testing.T) { play(t, scheme, at) })
		}
	}
}

const kb = 1000

// The notifications of Spray do not wait for each other: all whose data has arrived are on the way
// at a time.
func TestNotificationsArePipelined(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb})
	const notify = 2
	for id := range uint64(4) {
		l.B.ExpectRecv(t, 100+id)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, kb))
	}
	for rail := range 2 {
		l.Complete(l.A, rail)
		l.Complete(l.A, rail)
	}
	l.Reports(l.A)
	if s := l.A.Stats().Rails[notify]; s.Outstanding != 4 {
		t.Fatalf("four notifications are on the way at a time, got %d", s.Outstanding)
	}
	for range 4 {
		l.Complete(l.A, notify)
	}
	l.Reports(l.A, 0, 1, 2, 3)
	l.Reports(l.B, 100, 101, 102, 103)
}

// fragments lists how many fragments each rail of an end was given.
func fragments(e *vqptest.End) (list []uint64) {
	for _, r := range e.Stats().Rails {
		list = append(list, r.Fragments)
	}
	return list
}

// Waiting requests go first to the rail that freed a slot last, then round robin over the others.
func TestFreedRailIsServedFirst(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{FragmentSize: 1000, MaxMsgCntPerQP: 2})
	for id := range uint64(5) {
		// two on each rail; one more waits, next in turn for rail 0
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 8))
	}
	l.Complete(l.A, 0)
	l.Complete(l.A, 1)
	// One CQ reports both completions; the slot on rail 1 is freed last.
	l.A.Pump(t)
	if got := fragments(l.A); got[0] != 2 || got[1] != 3 {
		t.Fatalf("fragments %v, want 2 and 3", got)
	}
}
