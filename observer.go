package ibverbx

import (
	"context"
	"math"
	"runtime/trace"
	"time"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/ring"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// traceRing is how many events a virtual CQ keeps: 128 KiB. It is a power of two.
const traceRing = 4096

// recentEvents is how many events FailedError.Recent has.
const recentEvents = 64

// recorder has the clock of a virtual CQ's observers, and the ring of their events. Its owner is
// that of the virtual CQ; others get a copy through VirtualCQ.Trace.
//
// Invariant: the events count-1, count-2, ... down to first, traceRing at most, are in
// events[n%traceRing].
type recorder struct {
	begin        time.Time
	clock        func() time.Time // nil: time since begin, which costs half of time.Now
	at           time.Duration    // the time of the round, unless it has lapsed
	lapsed       bool
	events       *[traceRing]TraceEvent // nil while no virtual queue pair has Config.Trace
	count, first uint64
	observers    uint64 // made so far
}

// lapse begins another round: the next event reads the clock.
func (r *recorder) lapse() { r.lapsed = true }

// now returns the time of the round.
func (r *recorder) now() time.Duration {
	if r.lapsed {
		r.lapsed = false
		if r.clock != nil {
			r.at = r.clock().Sub(r.begin)
		} else {
			r.at = time.Since(r.begin)
		}
	}
	return r.at
}

// add records an event at the time of the round.
func (r *recorder) add(e TraceEvent) {
	e.At = r.now()
	r.events[r.count%traceRing] = e
	r.count++
}

// takeBack removes the newest event.
func (r *recorder) takeBack() {
	if r.count > traceRing {
		r.first = max(r.first, r.count-traceRing) // the event has replaced that one
	}
	r.count--
}

// oldest returns the number of the oldest event that is left.
func (r *recorder) oldest() uint64 {
	if r.count > traceRing {
		return max(r.first, r.count-traceRing)
	}
	return r.first
}

// copied returns a copy of the ring.
func (r *recorder) copied() *Trace {
	t := &Trace{Begin: r.begin, Lost: r.oldest(), Events: make([]TraceEvent, 0, r.count-r.oldest())}
	for n := r.oldest(); n != r.count; n++ {
		t.Events = append(t.Events, r.events[n%traceRing])
	}
	return t
}

// observer watches a virtual queue pair with Config.Timing or Config.Trace. It is called once for a
// call of the program, a post to a NIC, or a batch of completions, and then looks at all requests
// that these have moved: so a virtual queue pair without an observer pays for a test of a pointer
// in each of these, and for nothing in the loops inside.
//
// Invariant: requests before sent and receives before received were seen as reported; those before
// ordered as acknowledged in order. queued has the timed requests not wholly given to rails,
// outstanding those not reported. next is the request that is timed next.
type observer struct {
	recorder *recorder
	num      uint32  // of the virtual queue pair
	events   bool    // Config.Trace
	timing   *Timing // nil without Config.Timing

	next                    uint64
	random                  uint64
	queued, outstanding     ring.FIFO[timedRequest]
	posting                 []postedBatch // of the post under way
	sent, ordered, received uint64
	// messagesOut and messagesIn count the messages on this connection that take a receive, other
	// than those with DQPLB's numbers: notifications, and SENDs.
	messagesOut, messagesIn [2]uint64
	signaled                uint64 // of a single queue pair: signaled sends that were accepted
	// signals has those that have not succeeded, with Config.Trace. A queue completes in order, so
	// the next success is that of the first.
	signals ring.FIFO[signaledSend]
}

// signaledSend is what the trace says of a signaled send of a single queue pair.
type signaledSend struct {
	request, tag uint64
	part         FailedPart
}

// timedRequest is a request that is timed.
type timedRequest struct {
	request uint64 // of a single queue pair: which signaled one it is
	at      time.Duration
	bytes   uint64
	task    *trace.Task // of runtime/trace; nil while that is off
}

// timedEach is how many requests one is timed of, on average.
const timedEach = 64

func newObserver(r *recorder, cfg *Config, num uint32) *observer {
	o := &observer{recorder: r, num: num, events: cfg.Trace, next: 1, sent: 1, ordered: 1, received: 1,
		random: r.observers} // or all would time the same steps
	r.observers++
	if cfg.Timing {
		o.timing = &Timing{}
	}
	return o
}

// restart begins a connection. Nothing is outstanding, and everything that was is reported.
func (o *observer) restart() {
	o.messagesOut, o.messagesIn = [2]uint64{}, [2]uint64{}
	for o.queued.Len() != 0 {
		o.queued.Drop()
	}
	if o.events {
		o.recorder.lapse()
		o.event(TraceReset, 0, 0, 0, 0)
	}
}

// draw chooses the next request that is timed, at a distance of 1 to 127: 64 on average.
func (o *observer) draw() {
	o.random = o.random*6364136223846793005 + 1442695040888963407
	o.next += 1 + o.random>>32%(2*timedEach-1)
}

// begin begins to time a request that was just accepted.
func (o *observer) begin(request, bytes uint64) {
	t := timedRequest{request: request, at: o.recorder.now(), bytes: bytes}
	if trace.IsEnabled() {
		_, t.task = trace.NewTask(context.Background(), "ibverbx request")
	}
	o.outstanding.Push(t)
	o.draw()
}

// end ends the time of the oldest timed request.
func (o *observer) end(ok bool) {
	t := o.outstanding.Pop()
	if ok && o.timing != nil {
		o.timing.Request.add(uint64(o.recorder.now() - t.at))
		o.timing.Size.add(t.bytes)
	}
	if t.task != nil {
		t.task.End()
	}
}

// region begins a region of runtime/trace, if that is on.
func region(name string) *trace.Region {
	if !trace.IsEnabled() {
		return nil
	}
	return trace.StartRegion(context.Background(), name)
}

// event records an event of no rail.
func (o *observer) event(kind TraceKind, request, tag, bytes uint64, code uint32) {
	o.recorder.add(TraceEvent{Kind: kind, Request: uint32(request), Tag: tag, Bytes: clamp(bytes),
		Code: uint8(min(code, math.MaxUint8)), VirtualQP: o.num, Rail: NoRail})
}

// work records an event of a work request.
func (o *observer) work(kind TraceKind, rl *rail, request, tag, bytes uint64, part FailedPart, code uint32) {
	o.recorder.add(TraceEvent{Kind: kind, Request: uint32(request), Tag: tag, Bytes: clamp(bytes),
		Code: uint8(min(code, math.MaxUint8)), Part: part, VirtualQP: o.num, Rail: uint8(rl.index())})
}

func clamp(bytes uint64) uint32 { return uint32(min(bytes, math.MaxUint32)) }

// accepted sees the newest n requests of the window.
func (o *observer) accepted(s *sender, n int) {
	o.recorder.lapse()
	for o.next < s.win.Tail {
		o.begin(o.next, s.win.At(o.next).length)
		o.queued.Push(*o.outstanding.Back())
	}
	if o.events {
		for i := s.win.Tail - uint64(n); i != s.win.Tail; i++ {
			r := s.win.At(i)
			o.event(TraceAccepted, i, r.id, r.length, uint32(r.opcode))
		}
	}
}

// staged sees what was given to the rails since the last call, before it is posted.
func (o *observer) staged(s *sender) {
	for o.queued.Len() != 0 && o.queued.Front().request < s.next {
		t := o.queued.Pop()
		given := t.request >= s.win.Head && s.win.At(t.request).status == verbs.StatusSuccess
		if given && o.timing != nil { // and not passed over, because the connection has failed
			o.timing.Wait.add(uint64(o.recorder.now() - t.at))
		}
	}
	if !o.events {
		return
	}
	o.inOrder(s)
	o.posting = o.posting[:0]
	for _, rl := range s.staged {
		b := rl.batch
		for ; b.seen < b.tail; b.seen++ {
			o.workRequest(TraceStaged, s, rl, &b.wrs[b.seen])
		}
		o.posting = append(o.posting, postedBatch{rl, b, b.head, b.tail})
	}
	o.recorder.lapse() // posting takes time
}

// postedBatch is a batch that is being posted, and what waited in it before.
type postedBatch struct {
	rail       *rail
	batch      *sendBatch
	head, tail int
}

// posted sees the work requests that the NICs have taken since staged. Those of a batch that is
// empty are still in its memory, which nobody has borrowed again.
func (o *observer) posted(s *sender) {
	for i := 0; o.events && i < len(o.posting); i++ {
		p := &o.posting[i]
		if p.rail.batch != nil && p.batch.tail != 0 {
			p.tail = p.batch.head
		}
		for n := p.head; n < p.tail; n++ {
			o.workRequest(TracePosted, s, p.rail, &p.batch.wrs[n])
		}
	}
}

// workRequest records an event of a work request that waits or was posted.
func (o *observer) workRequest(kind TraceKind, s *sender, rl *rail, wr *verbs.SendWR) {
	n, _ := s.resolve(wr.ID)
	r := s.win.At(n)
	if k := wrid.Kind(wr.ID); (k == wrid.Final || k == wrid.Message) && r.firstNum == 0 {
		// Such a request has no number of DQPLB. Its message keeps the count if it is sent again.
		r.firstNum = uint32(count(&o.messagesOut, r.opcode.IsSend()))
	}
	part, tag := s.placeOf(r, wr.ID)
	o.work(kind, rl, n, tag, wr.Bytes(), part, 0)
}

// reposted sees that the work request with an id goes out again.
func (o *observer) reposted(s *sender, rl *rail, n, id uint64) {
	if o.events {
		part, tag := s.placeOf(s.win.At(n), id)
		o.work(TraceReposted, rl, n, tag, 0, part, 0)
	}
}

// placeOf returns what a work request of request r carries, and its tag in a trace.
func (s *sender) placeOf(r *sendReq, id uint64) (part FailedPart, tag uint64) {
	switch wrid.Kind(id) {
	case wrid.Data:
		return PartFragment, uint64(wrid.Aux(id))
	case wrid.Numbered:
		if r.markers != 0 && r.isMarker(wrid.Aux(id), uint64(s.rails.maxFragment)) {
			return PartMarker, uint64(wrid.Aux(id))
		}
		return PartFragment, uint64(wrid.Aux(id))
	case wrid.Imm:
		return PartImmediate, 0
	}
	if r.opcode.IsSend() {
		return PartMessage, uint64(r.firstNum)
	}
	return PartNotification, uint64(r.firstNum)
}

// count counts a message among the notifications or the SENDs.
func count(of *[2]uint64, send bool) uint64 {
	i := 0
	if send {
		i = 1
	}
	of[i]++
	return of[i]
}

// completed sees a completion of a rail among several before it is handled. The caller takes the
// event back if the completion fits nothing. It reports whether there is one.
func (o *observer) completed(s *sender, rl *rail, wc *verbs.WC) (recorded bool) {
	switch wrid.Kind(wc.ID) {
	case wrid.Recv, wrid.Credit, wrid.Control:
		return false
	}
	n, ok := s.resolve(wc.ID)
	if ok {
		part, tag := s.placeOf(s.win.At(n), wc.ID)
		o.work(TraceCompleted, rl, n, tag, 0, part, uint32(wc.Status))
	}
	return ok
}

// inOrder sees the requests whose data is acknowledged together with all earlier data.
func (o *observer) inOrder(s *sender) {
	for ; o.ordered < s.dataDone; o.ordered++ {
		r := s.win.At(o.ordered)
		o.event(TraceInOrder, o.ordered, 0, 0, uint32(r.status))
	}
}

// reported sees the requests and receives that were just reported: their slots still have them.
func (o *observer) reported(s *sender, v *receiver) {
	for o.outstanding.Len() != 0 && o.outstanding.Front().request < s.win.Head {
		o.end(s.win.At(o.outstanding.Front().request).status == verbs.StatusSuccess)
	}
	if !o.events {
		o.recorder.lapse()
		return
	}
	o.inOrder(s)
	for ; o.sent < s.win.Head; o.sent++ {
		r := s.win.At(o.sent)
		o.event(TraceReported, o.sent, r.id, r.length, uint32(r.status))
	}
	for ; o.received < v.win.Head; o.received++ {
		r := v.win.At(o.received)
		o.event(TraceReceived, o.received, r.id, r.bytes, uint32(r.status))
	}
	o.recorder.lapse()
}

// arrived sees the next message on a rail's own receives, a numbered one of DQPLB.
func (o *observer) arrived(rl *rail, imm, bytes uint32) {
	if !o.events {
		return
	}
	if part := PartFragment; rl.inbox.AwaitsImm() {
		o.work(TraceArrived, rl, 0, 0, uint64(bytes), PartImmediate, 0)
	} else {
		o.work(TraceArrived, rl, 0, uint64(dqplb.Number(imm)), uint64(bytes), part, 0)
	}
}

// released sees that receive n has got a notification of DQPLB.
func (o *observer) released(n uint64, got dqplb.Notification) {
	if o.events {
		o.event(TraceReleased, n, uint64(got.Number), got.Bytes, 0)
	}
}

// took sees that receive n has taken a message that has no number.
func (o *observer) took(rl *rail, n uint64, wc *verbs.WC) {
	if !o.events {
		return
	}
	part, send := PartNotification, wc.Opcode == verbs.WCRecv
	if send {
		part = PartMessage
	}
	tag := count(&o.messagesIn, send)
	o.work(TraceArrived, rl, n, tag, uint64(wc.ByteLen), part, 0)
	o.work(TraceReleased, rl, n, tag, uint64(wc.ByteLen), part, 0)
}

// forwarding begins the round in which a single queue pair takes n requests, and reads the clock if
// it may be needed: software NICs move the data meanwhile.
func (o *observer) forwarding(n int) {
	if o.recorder.lapse(); o.events || o.signaled+uint64(n) >= o.next {
		o.recorder.now()
	}
}

// forwarded sees requests that a single queue pair has taken, the last of which is request last.
func (o *observer) forwarded(rl *rail, wrs []SendWR, last uint64) {
	signaled := o.signaled
	for i := range wrs {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			o.signaled++
		}
	}
	for i := 0; o.signaled >= o.next; i++ {
		if wrs[i].Flags&verbs.SendSignaled != 0 {
			if signaled++; signaled == o.next {
				o.begin(signaled, wrs[i].length())
			}
		}
	}
	if !o.events {
		return
	}
	first := last + 1 - uint64(len(wrs))
	for i := range wrs {
		wr := &wrs[i]
		o.event(TraceAccepted, first+uint64(i), wr.ID, wr.length(), uint32(wr.Opcode))
	}
	o.recorder.lapse()
	for i := range wrs {
		wr, part, tag := &wrs[i], PartMessage, uint64(0)
		if wr.Opcode == verbs.OpRDMAWriteWithImm {
			part = PartNotification
		}
		if wr.Opcode.IsSend() || part == PartNotification {
			tag = count(&o.messagesOut, wr.Opcode.IsSend())
		}
		o.work(TracePosted, rl, first+uint64(i), tag, wr.length(), part, 0)
		if wr.Flags&verbs.SendSignaled != 0 {
			o.signals.Push(signaledSend{first + uint64(i), tag, part})
		}
	}
}

// returned sees completions that a single queue pair is about to report.
func (o *observer) returned(rl *rail, wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status == verbs.StatusSuccess && wc.Opcode.IsRecv():
			o.took(rl, 0, wc)
			o.event(TraceReceived, 0, wc.ID, uint64(wc.ByteLen), 0)
		case wc.Status == verbs.StatusSuccess && o.signals.Len() != 0:
			s := o.signals.Pop()
			o.work(TraceCompleted, rl, s.request, s.tag, 0, s.part, 0)
			o.event(TraceReported, s.request, wc.ID, 0, 0)
		default: // if it failed, it is unknown what it was
			o.work(TraceCompleted, rl, 0, wc.ID, 0, PartMessage, uint32(wc.Status))
			o.event(TraceReported, 0, wc.ID, 0, uint32(wc.Status))
		}
	}
}

// forwardedDone sees how many signaled sends of a single queue pair have succeeded.
func (o *observer) forwardedDone(done uint64) {
	for o.outstanding.Len() != 0 && o.outstanding.Front().request <= done {
		o.end(true)
	}
	for o.signals.Len() != 0 && o.signaled-uint64(o.signals.Len()) < done {
		o.signals.Drop() // it has completed beside a probe, and was not recorded
	}
}

// forget drops what a single queue pair had outstanding before a reset; done is how many signaled
// sends have succeeded until then.
func (o *observer) forget(done uint64) {
	for o.outstanding.Len() != 0 {
		o.end(false)
	}
	for o.signals.Len() != 0 {
		o.signals.Drop()
	}
	o.signaled, o.next = done, done+1
}

// recent returns the last events of the virtual queue pair; nil without Config.Trace.
func (o *observer) recent() (list []TraceEvent) {
	r := o.recorder
	if !o.events {
		return nil
	}
	n := r.count
	for n != r.oldest() && len(list) < recentEvents {
		n--
		if e := r.events[n%traceRing]; e.VirtualQP == o.num {
			list = append(list, e)
		}
	}
	for i, j := 0, len(list)-1; i < j; i, j = i+1, j-1 {
		list[i], list[j] = list[j], list[i]
	}
	return list
}
