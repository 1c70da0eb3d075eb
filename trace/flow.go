package trace

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// flow is what has passed through a virtual queue pair.
type flow struct {
	end   *End
	num   uint32
	pid   int
	rails map[uint8]ibverbx.TraceRail

	requests map[uint32]*request
	order    []*request // as they were accepted
	work     map[workKey][]*work
	open     map[uint8][]*work // of a single queue pair: without a completion, in the queue's order
	onRail   map[uint8][]*work
	again    []ibverbx.TraceEvent
	arrivals []ibverbx.TraceEvent
	arrived  map[message]time.Duration
	notified []*notification
	waiting  map[uint32]*notification // by receive
}

// request is a request of PostSend.
type request struct {
	number   uint32
	accepted ibverbx.TraceEvent
	inOrder  time.Duration
	reported *ibverbx.TraceEvent
	ended    *ibverbx.TraceEvent // if it is not reported: the completion that covers it, or a reset
	work     []*work
	slice    *slice // on the track of posts
}

// workKey names a work request; one that goes out again has the same.
type workKey struct {
	request uint32
	rail    uint8
	part    ibverbx.FailedPart
	tag     uint64
}

// work is a work request.
type work struct {
	ibverbx.TraceEvent          // of the first step
	of                 *request // nil if it was accepted before the trace begins
	posted, completed  time.Duration
	out, done          bool // it was posted, and has completed
	reset              bool // its queue pair was reset before, at the time of completed
	status             verbs.Status
	slice              *slice
}

// message names what takes a receive at the other end, by what is the same at both ends.
type message struct {
	part ibverbx.FailedPart
	tag  uint64
}

// notification is a receive that has got its message.
type notification struct {
	of       message
	from     time.Duration
	received *ibverbx.TraceEvent
	slice    *slice
}

// flows sorts the events of an end by virtual queue pair.
func (f *file) flows(e *End) []*flow {
	list := map[uint32]*flow{}
	for _, ev := range e.Trace.Events {
		q := list[ev.VirtualQP]
		if q == nil {
			q = &flow{end: e, num: ev.VirtualQP, rails: map[uint8]ibverbx.TraceRail{},
				requests: map[uint32]*request{}, work: map[workKey][]*work{}, open: map[uint8][]*work{},
				onRail: map[uint8][]*work{}, arrived: map[message]time.Duration{},
				waiting: map[uint32]*notification{}}
			list[ev.VirtualQP] = q
		}
		ev.At += e.Begins
		q.take(ev)
	}
	for _, r := range e.Trace.Rails {
		if q := list[r.VirtualQP]; q != nil && r.Rail >= 0 && r.Rail < ibverbx.NoRail {
			q.rails[uint8(r.Rail)] = r
		}
	}
	var sorted []*flow
	for _, num := range slices.Sorted(maps.Keys(list)) {
		f.pid++
		list[num].pid = f.pid
		sorted = append(sorted, list[num])
	}
	return sorted
}

// take takes in an event.
func (q *flow) take(ev ibverbx.TraceEvent) {
	switch ev.Kind {
	case ibverbx.TraceAccepted:
		r := &request{number: ev.Request, accepted: ev}
		q.requests[ev.Request], q.order = r, append(q.order, r)
	case ibverbx.TraceStaged:
		q.newWork(ev)
	case ibverbx.TracePosted:
		w := first(q.work[keyOf(&ev)], func(w *work) bool { return !w.out })
		if w == nil {
			w = q.newWork(ev)
			q.open[ev.Rail] = append(q.open[ev.Rail], w)
		}
		w.out, w.posted = true, ev.At
	case ibverbx.TraceCompleted:
		q.completed(&ev)
	case ibverbx.TraceInOrder:
		if r := q.requests[ev.Request]; r != nil {
			r.inOrder = ev.At
		}
	case ibverbx.TraceReported:
		if r := q.requests[ev.Request]; r != nil {
			r.reported = &ev
		}
	case ibverbx.TraceReposted:
		q.again = append(q.again, ev)
	case ibverbx.TraceArrived:
		q.arrivals = append(q.arrivals, ev)
		q.arrived[message{ev.Part, ev.Tag}] = ev.At
	case ibverbx.TraceReleased:
		q.released(&ev)
	case ibverbx.TraceReceived:
		n := q.waiting[ev.Request]
		if n != nil && n.received == nil {
			n.received = &ev
		}
	case ibverbx.TraceReset:
		q.wasReset(&ev)
	}
}

// first returns the first of a list that fits; nil if none does.
func first[T any](list []*T, fits func(*T) bool) *T {
	if i := slices.IndexFunc(list, fits); i >= 0 {
		return list[i]
	}
	return nil
}

func keyOf(ev *ibverbx.TraceEvent) workKey { return workKey{ev.Request, ev.Rail, ev.Part, ev.Tag} }

func (q *flow) newWork(ev ibverbx.TraceEvent) *work {
	w := &work{TraceEvent: ev, of: q.requests[ev.Request]}
	if w.of != nil {
		w.of.work = append(w.of.work, w)
	}
	q.work[keyOf(&ev)] = append(q.work[keyOf(&ev)], w)
	q.onRail[ev.Rail] = append(q.onRail[ev.Rail], w)
	return w
}

// completed takes in a completion. One whose beginning the trace has lost is left out. A failed one
// of a single queue pair has only the ID, and the report comes at once.
func (q *flow) completed(ev *ibverbx.TraceEvent) {
	open := q.open[ev.Rail]
	w := first(q.work[keyOf(ev)], func(w *work) bool { return w.out && !w.done })
	if ev.Request == 0 {
		w = first(open, func(w *work) bool { return w.of != nil && w.of.accepted.Tag == ev.Tag })
	}
	if w == nil {
		return
	}
	w.done, w.completed, w.status = true, ev.At, ev.Status()
	if ev.Request == 0 {
		w.of.reported = ev
	}
	at := slices.Index(open, w)
	if at < 0 {
		return
	}
	// A queue completes in order: the unsignaled ones before have succeeded.
	for _, w := range open[:at] {
		w.end(ev)
		w.done = true
	}
	q.open[ev.Rail] = open[at+1:]
}

// wasReset ends what the queue pairs held when they were reset.
func (q *flow) wasReset(ev *ibverbx.TraceEvent) {
	for _, list := range q.work {
		for _, w := range list {
			if !w.done {
				w.end(ev)
				w.reset = true
			}
		}
	}
	clear(q.work)
	clear(q.open)
}

// end ends a work request that has no completion of its own.
func (w *work) end(by *ibverbx.TraceEvent) {
	w.completed = by.At
	if w.of != nil {
		w.of.ended = by
	}
}

// released takes in that a receive has got its message. Numbers of DQPLB are those of fragments.
func (q *flow) released(ev *ibverbx.TraceEvent) {
	n := &notification{of: message{ev.Part, ev.Tag}}
	if ev.Part == ibverbx.PartUnknown {
		n.of.part = ibverbx.PartFragment
	}
	n.from = ev.At
	if at, ok := q.arrived[n.of]; ok {
		n.from = at
	}
	q.notified = append(q.notified, n)
	q.waiting[ev.Request] = n
}

// lay shows everything but the arrows.
func (q *flow) lay(f *file) {
	f.name(q.pid, 0, fmt.Sprintf("%s: virtual qp %d", q.end.Name, q.num))
	q.layPosts(f)
	q.layRails(f)
	q.layNotifications(f)
}

// layPosts shows the requests, and until when they waited to be posted.
func (q *flow) layPosts(f *file) {
	if len(q.order) == 0 {
		return
	}
	f.name(q.pid, requestTrack, "requests")
	f.name(q.pid, postTrack, "posts")
	var list []*slice
	for _, r := range q.order {
		name := fmt.Sprintf("%v %d", r.accepted.Opcode(), r.accepted.Tag)
		args := map[string]any{"id": r.accepted.Tag, "number": r.number, "bytes": r.accepted.Bytes,
			"accepted_us": f.at(r.accepted.At)}
		if r.inOrder != 0 {
			args["in_order_us"] = f.at(r.inOrder)
		}
		end := f.last
		switch {
		case r.reported != nil:
			end = r.reported.At
			args["reported_us"], args["status"] = f.at(end), r.reported.Status().Name()
		case r.ended != nil:
			end = r.ended.At
		}
		f.flow++
		begins := event{Phase: "b", Ts: f.at(r.accepted.At), Args: args}
		for _, e := range []event{begins, {Phase: "e", Ts: f.at(end)}} {
			e.Name, e.Cat, e.Pid, e.Tid, e.ID = name, "request", q.pid, requestTrack, f.flow
			f.events = append(f.events, e)
		}
		posted := r.firstPosted()
		if posted < 0 {
			continue
		}
		r.slice = &slice{name: name, from: r.accepted.At, to: posted, args: args}
		list = append(list, r.slice)
	}
	f.show(q.pid, postTrack, "post", list)
}

// firstPosted returns when a NIC got the first work request; -1 if that has not happened.
func (r *request) firstPosted() (at time.Duration) {
	at = -1
	for _, w := range r.work {
		if w.out && (at < 0 || w.posted < at) {
			at = w.posted
		}
	}
	return at
}

// layRails shows the work requests, and where messages have arrived.
func (q *flow) layRails(f *file) {
	used := map[uint8]bool{}
	mark := func(ev *ibverbx.TraceEvent, what string) {
		used[ev.Rail] = true
		name := fmt.Sprintf("%s %v %d", what, ev.Part, ev.Tag)
		f.events = append(f.events, event{Name: name, Cat: ev.Kind.String(), Phase: "i", Scope: "t",
			Ts: f.at(ev.At), Pid: q.pid, Tid: railTrack + int(ev.Rail),
			Args: map[string]any{"bytes": ev.Bytes, "request": ev.Request}})
	}
	for i := range q.arrivals {
		mark(&q.arrivals[i], "arrived")
	}
	for i := range q.again {
		mark(&q.again[i], "again")
	}
	for rail, all := range q.onRail {
		used[rail] = true
		var list []*slice
		for _, w := range all {
			if w.out {
				list = append(list, w.show(f))
			}
		}
		f.show(q.pid, railTrack+int(rail), "work", list)
	}
	for rail := range used {
		name := fmt.Sprintf("rail %d", rail)
		if r, ok := q.rails[rail]; ok {
			name += fmt.Sprintf(": %s qp %d", r.Device, r.QPNum)
		}
		f.name(q.pid, railTrack+int(rail), name)
	}
}

// show returns the slice of a work request. One without a completion lasts until the end.
func (w *work) show(f *file) *slice {
	args := map[string]any{"request": w.Request, "bytes": w.Bytes, "tag": w.Tag, "posted_us": f.at(w.posted)}
	if w.Kind == ibverbx.TraceStaged { // otherwise the trace does not know, or nothing waits
		args["staged_us"] = f.at(w.At)
	}
	name, to := fmt.Sprintf("%v %d", w.Part, w.Request), f.last
	if w.of != nil {
		name = fmt.Sprintf("%v of %v %d", w.Part, w.of.accepted.Opcode(), w.of.accepted.Tag)
	}
	if w.done || w.reset {
		to = w.completed
	}
	if w.done {
		args["completed_us"], args["status"] = f.at(to), w.status.Name()
	} else {
		name += ", no completion"
	}
	w.slice = &slice{name: name, from: w.posted, to: to, weight: uint64(w.Bytes), args: args}
	return w.slice
}

// layNotifications shows the receives.
func (q *flow) layNotifications(f *file) {
	var list []*slice
	for _, n := range q.notified {
		if n.received == nil {
			continue
		}
		n.slice = &slice{name: fmt.Sprintf("receive %d", n.received.Tag), from: n.from, to: n.received.At,
			args: map[string]any{"id": n.received.Tag, "bytes": n.received.Bytes, "tag": n.of.tag,
				"status": n.received.Status().Name()}}
		list = append(list, n.slice)
	}
	if len(list) != 0 {
		f.name(q.pid, notifyTrack, "notifications")
		f.show(q.pid, notifyTrack, "notification", list)
	}
}

// peer returns the virtual queue pair at the other end; nil if its trace is not there. It may be
// one of the same virtual CQ, but NICs may use the same numbers, so others come first.
func (q *flow) peer(all []*flow) (peer *flow) {
	for _, p := range all {
		if q.faces(p) && (peer == nil || peer.end == q.end) {
			peer = p
		}
	}
	return peer
}

// faces reports whether the queue pairs of two virtual ones are connected, rail by rail.
func (q *flow) faces(p *flow) bool {
	if p == q || len(q.rails) != len(p.rails) || q.rails[0].PeerQPNum == 0 {
		return false
	}
	for rail, r := range q.rails {
		o := p.rails[rail]
		if (o.QPNum != r.PeerQPNum || o.PeerQPNum != r.QPNum) && r.PeerQPNum != 0 {
			return false
		}
	}
	return true
}

// arrows draws the arrows of the requests.
func (q *flow) arrows(f *file, peer *flow) {
	to := map[message]*notification{}
	if peer != nil {
		for _, n := range peer.notified {
			if n.slice != nil {
				to[n.of] = n
			}
		}
	}
	for _, r := range q.order {
		if r.slice == nil {
			continue
		}
		from := point{q.pid, postTrack, r.slice}
		var last *point
		for _, w := range r.work {
			if n := to[message{w.Part, w.Tag}]; n != nil && w.notifies() {
				last = &point{peer.pid, notifyTrack, n.slice}
			}
		}
		reached := last == nil
		for _, w := range r.work {
			if w.slice == nil || !w.slice.shown {
				continue
			}
			at := point{q.pid, railTrack + int(w.Rail), w.slice}
			switch {
			case w.slice.begin < r.slice.begin:
			case last != nil && last.slice.begin >= w.slice.begin:
				reached = true
				f.arrow(from, at, *last)
			default:
				f.arrow(from, at)
			}
		}
		if !reached && last.slice.begin >= r.slice.begin {
			f.arrow(from, *last)
		}
	}
}

// notifies reports whether the tag of a work request is known at the other end: a number of DQPLB,
// or a count. Fragments of plain requests have their index there.
func (w *work) notifies() bool {
	switch w.Part {
	case ibverbx.PartFragment:
		return w.of != nil && w.of.accepted.Opcode() == verbs.OpRDMAWriteWithImm
	case ibverbx.PartMessage, ibverbx.PartNotification:
		return w.Tag != 0
	}
	return false
}
