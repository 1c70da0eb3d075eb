package sim

import (
	"encoding/json"
	"errors"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// steps is what the trace of an end has said so far.
type steps struct {
	e     *end
	whole bool // the trace has lost nothing
	// accepted, ordered, reported and received are the last requests and receives of these kinds;
	// they follow each other.
	accepted, ordered, reported, received uint32
	begun                                 map[uint32]bool // requests whose beginning is in the trace
	work                                  map[workStep]int
	bytes                                 map[uint32]uint32 // posted, by request
	arrived                               map[uint64]int    // numbers of DQPLB
	released                              map[uint32]bool
}

// workStep is a step of a work request.
type workStep struct {
	kind    ibverbx.TraceKind
	request uint32
	rail    uint8
	part    ibverbx.FailedPart
	tag     uint64
}

// before are the steps that come before others, as often at least.
var before = map[ibverbx.TraceKind]ibverbx.TraceKind{ibverbx.TracePosted: ibverbx.TraceStaged,
	ibverbx.TraceCompleted: ibverbx.TracePosted}

// checkTrace checks the traces of the ends on a virtual CQ that was closed: all has come to its
// end.
func (c *vcq) checkTrace() {
	trace, err := c.cq.Trace(ended)
	for _, e := range c.ends {
		cfg := e.conn.plan.cfg[e.index%2]
		switch {
		case cfg.Trace && err != nil, !cfg.Trace && err != nil && !errors.Is(err, ibverbx.ErrNoTrace):
			c.w.Broken(ruleTrace, "%s: %v", c.name, err)
		case cfg.Trace && !e.single:
			e.checkTrace(trace)
		}
		switch timing := e.vq.Stats().Timing; {
		case (timing != nil) != cfg.Timing || timing != nil && timing.Request.Count != timing.Size.Count:
			c.w.Broken(ruleCounters, "%v: times of requests: %+v", e, timing)
		case timing != nil:
			for _, h := range []*ibverbx.Histogram{&timing.Request, &timing.Wait, &timing.Size} {
				e.checkHistogram(h)
			}
		}
	}
}

// checkHistogram reads a histogram in every way that there is.
func (e *end) checkHistogram(h *ibverbx.Histogram) {
	var inAll, largest uint64
	for bound, n := range h.Buckets() {
		if inAll += n; n != 0 {
			largest = bound
		}
	}
	var again ibverbx.Histogram
	text, err := json.Marshal(h)
	if err = errors.Join(err, json.Unmarshal(text, &again)); err != nil || again != *h || inAll != h.Count ||
		h.Quantile(1) != largest || h.Quantile(0.5) > largest {
		e.w.Broken(ruleCounters, "%v: %d values in %d: %s: %v", e, inAll, h.Count, text, err)
	}
}

func (e *end) checkTrace(trace *ibverbx.Trace) {
	s := &steps{e: e, whole: trace.Lost == 0, begun: map[uint32]bool{}, work: map[workStep]int{},
		bytes: map[uint32]uint32{}, arrived: map[uint64]int{}, released: map[uint32]bool{}}
	var last time.Duration
	for i := range trace.Events {
		ev := &trace.Events[i]
		if ev.At < last {
			e.w.Broken(ruleTrace, "%v: %v comes before an event at %v", e, ev, last)
		}
		if last = ev.At; ev.VirtualQP == e.vq.Num() {
			s.take(ev)
		}
	}
	if n := len(trace.Events); n != 0 { // one, by the way of a document
		ev, again := trace.Events[n-1], ibverbx.TraceEvent{}
		text, err := json.Marshal(ev)
		if err = errors.Join(err, json.Unmarshal(text, &again)); err != nil || again.String() != ev.String() {
			e.w.Broken(ruleTrace, "%v: %v is %v in %s: %v", e, ev, again, text, err)
		}
	}
	if s.whole && (int(s.accepted) != len(e.sends) || s.reported != s.accepted || s.ordered != s.accepted ||
		int(s.received) != len(e.recvs)) {
		e.w.Broken(ruleTrace, "%v: %d requests were accepted, %d in order, %d reported, and %d receives, of "+
			"%d and %d", e, s.accepted, s.ordered, s.reported, s.received, len(e.sends), len(e.recvs))
	}
}

// take checks an event against those before it.
func (s *steps) take(ev *ibverbx.TraceEvent) {
	switch ev.Kind {
	case ibverbx.TraceAccepted:
		s.next(ev, &s.accepted, false)
		s.begun[ev.Request] = true
		if r := s.e.sends[ev.Request-1]; ev.Opcode() != r.op || int(ev.Bytes) != r.length {
			s.broken(ev, "the request was %v", r)
		}
	case ibverbx.TraceInOrder:
		s.next(ev, &s.ordered, false)
	case ibverbx.TraceReported:
		s.next(ev, &s.reported, false)
		if s.ordered < ev.Request {
			s.broken(ev, "it is not in order")
		}
		if ev.Status() == verbs.StatusSuccess && s.begun[ev.Request] && !s.e.conn.failover {
			s.complete(ev)
		}
		delete(s.begun, ev.Request)
	case ibverbx.TraceReceived:
		s.next(ev, &s.received, true)
		if ev.Status() == verbs.StatusSuccess && s.whole && !s.released[ev.Request] {
			s.broken(ev, "nothing was released to it")
		}
	case ibverbx.TraceArrived:
		s.arrived[ev.Tag]++
	case ibverbx.TraceReleased:
		s.released[ev.Request] = true
		if s.arrived[ev.Tag] == 0 && s.whole {
			s.broken(ev, "it has not arrived")
		}
	case ibverbx.TraceReset:
		if s.reported != s.accepted {
			s.broken(ev, "request %d is the last that was reported, of %d", s.reported, s.accepted)
		}
	default:
		s.step(ev)
	}
}

// next checks that requests, or receives, have an event of a kind one after the other, with their
// IDs.
func (s *steps) next(ev *ibverbx.TraceEvent, last *uint32, recv bool) {
	if ev.Request != *last+1 && (s.whole || *last != 0) {
		s.broken(ev, "the one before was of request %d", *last)
	}
	*last = ev.Request
	if ev.Kind != ibverbx.TraceInOrder && ev.Tag != s.e.id(recv, int(ev.Request-1)) {
		s.broken(ev, "its ID is %d", s.e.id(recv, int(ev.Request-1)))
	}
}

// step checks a step of a work request: that its request is live, and that the step before it has
// been.
func (s *steps) step(ev *ibverbx.TraceEvent) {
	if !s.begun[ev.Request] {
		// The step that has begun it may be lost, and with it those of all before.
		if s.whole || s.accepted != 0 && ev.Request > s.accepted {
			s.broken(ev, "its request was not accepted, or is reported already")
		}
		return
	}
	key := workStep{ev.Kind, ev.Request, ev.Rail, ev.Part, ev.Tag}
	s.work[key]++
	if ev.Kind == ibverbx.TracePosted {
		s.bytes[ev.Request] += ev.Bytes
	}
	earlier := key
	if earlier.kind = before[ev.Kind]; earlier.kind != 0 && s.work[earlier] < s.work[key] {
		s.broken(ev, "it was not %v so often", earlier.kind)
	}
}

// complete checks that all work requests of a request that has succeeded were posted, and have
// completed, and that its bytes were.
func (s *steps) complete(ev *ibverbx.TraceEvent) {
	for key, n := range s.work {
		if key.request != ev.Request || key.kind != ibverbx.TraceStaged {
			continue
		}
		posted, completed := key, key
		posted.kind, completed.kind = ibverbx.TracePosted, ibverbx.TraceCompleted
		if s.work[posted] != n || s.work[completed] != n {
			s.broken(ev, "%v %d of rail %d was staged %d times, posted %d and completed %d", key.part,
				key.tag, key.rail, n, s.work[posted], s.work[completed])
		}
	}
	if s.bytes[ev.Request] != ev.Bytes {
		s.broken(ev, "%d bytes were posted", s.bytes[ev.Request])
	}
}

func (s *steps) broken(ev *ibverbx.TraceEvent, format string, args ...any) {
	s.e.w.Broken(ruleTrace, "%v: %v: "+format, append([]any{s.e, ev}, args...)...)
}
