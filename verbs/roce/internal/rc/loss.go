package rc

import (
	"time"

	"ibverbx/verbs"
)

// Loss is detected in three ways: a later packet was answered (suspect), the responder reports that
// it still expects the packet (goBack), or nothing arrives for some time (Tick).

// markDone marks a number under way as done.
func (q *QP) markDone(s seq) {
	r := &q.req
	t := r.at(s)
	switch t.state {
	case done:
		return
	case lost:
		r.lost--
	case flying:
		q.arrived(s, t, 1)
	}
	t.state = done
	r.timers.progress(q.now)
}

// markAllDone marks the numbers from first to end-1 as done. Those that left together have one
// round trip: they take one step, a third of the instructions.
func (q *QP) markAllDone(first, end seq) {
	for s := first; s < end; {
		n := q.together(s, end)
		if n < 2 {
			q.markDone(s)
			s++
			continue
		}
		for range n {
			q.req.at(s).state = done
			s++
		}
		q.arrived(s-1, q.req.at(s-1), n)
		q.req.timers.progress(q.now)
	}
}

// together returns how many numbers from first on, before end, are under way to an end of ours
// since the same time, and were sent only once.
func (q *QP) together(first, end seq) (n int) {
	r := &q.req
	sentAt := r.at(first).sentAt
	for s := first; s < end && q.ours; s++ {
		if t := r.at(s); t.state != flying || t.resent || t.sentAt != sentAt {
			break
		}
		n++
	}
	return n
}

// markKept marks a number whose packet the responder keeps behind a gap.
func (q *QP) markKept(s seq) {
	t := q.req.at(s)
	if t.state != flying {
		return
	}
	q.arrived(s, t, 1)
	t.state = kept
}

// arrived takes n packets that left together out of those under way; t is the track of the last
// one.
func (q *QP) arrived(last seq, t *track, n int) {
	r := &q.req
	r.flying -= n
	q.outcome.Arrived += n
	rtt := q.reached(last)
	if t.resent {
		rtt = 0 // it may answer either of the two packets
	} else {
		r.timers.sample(rtt, n)
		q.outcome.RoundTrip = rtt
	}
	if q.ours {
		r.window.arrived(q.now, rtt, r.flying, n)
	} else {
		r.foreign.arrived(last, r.next)
	}
}

// reached records that the packet with a number has reached the peer. It returns how long ago it
// left.
func (q *QP) reached(s seq) int64 {
	r := &q.req
	t := r.at(s)
	rtt := q.now - t.sentAt
	if !t.resent || rtt >= r.window.path.base { // otherwise its first copy has
		r.order.arrived(s, t.sentAt, rtt)
	}
	return rtt
}

// missed reports to the window that the network has lost the packet with a number.
func (q *QP) missed(s seq) {
	r := &q.req
	q.outcome.Missed++
	if q.ours {
		r.window.missed(s, r.next)
	} else {
		r.foreign.missed(s, r.next)
	}
}

// collapse reports to the window that nothing comes back.
func (q *QP) collapse() {
	r := &q.req
	if q.ours {
		r.window.collapse(r.next)
	} else {
		r.foreign.collapse(r.next)
	}
}

// markLost marks a number under way as lost, to be sent again. If no answer to its read has
// arrived, the whole read is lost: the responder may not have seen the request, and must be asked
// for the same numbers again, because the next number it expects follows those of the request.
func (q *QP) markLost(s seq) {
	if p := q.req.readOf(s); p != nil && p.left == int(p.end-p.first) {
		for s := p.first; s < p.end; s++ {
			q.lose(s)
		}
		return
	}
	q.lose(s)
}

func (q *QP) lose(s seq) {
	r := &q.req
	t := r.at(s)
	switch t.state {
	case flying:
		r.flying--
	case kept:
	default:
		return
	}
	t.state = lost
	r.lost++
	r.resend = min(r.resend, s)
}

// order finds late packets under way between two ends of ours: those that left before an answered
// one. Networks keep a flow in order except when its path changes. So a late packet is lost once it
// exceeds the answered one's time by a quarter of the path (RACK, RFC 8985).
type order struct {
	newest seq   // the answered packet that left last
	sentAt int64 // when it left
	rtt    int64 // how long its answer took
	at     int64 // when late packets may be lost; Never if there are none
}

const reorderShare = 4

// arrived records that a packet was answered.
func (o *order) arrived(s seq, sentAt, rtt int64) {
	if sentAt > o.sentAt || sentAt == o.sentAt && s > o.newest {
		o.newest, o.sentAt, o.rtt = s, sentAt, rtt
	}
}

// passes reports whether a packet left before one that was answered.
func (o *order) passes(s seq, sentAt int64) bool {
	return sentAt < o.sentAt || sentAt == o.sentAt && s < o.newest
}

// suspect marks a number as lost because a later one was answered, unless it may only be late.
func (q *QP) suspect(s seq) {
	r := &q.req
	t := r.at(s)
	if s < r.una || t.state != flying {
		return
	}
	if q.ours {
		if !r.order.passes(s, t.sentAt) {
			return
		}
		if p := r.readOf(s); p != nil && p.kept {
			return
		}
		patience := r.order.rtt + min(r.window.path.base, r.order.rtt)/reorderShare
		if lostAt := t.sentAt + patience; q.now < lostAt {
			r.order.at = min(r.order.at, lostAt)
			return
		}
	} else if t.resent && q.now-t.sentAt < r.timers.roundTrip() {
		return
	}
	q.missed(s)
	q.markLost(s)
}

// findLate suspects everything under way that left before a packet that was answered.
func (q *QP) findLate() {
	r := &q.req
	r.order.at = Never
	for s := r.una; s < r.next; s++ {
		q.suspect(s)
	}
}

// timers are the requester's clocks.
type timers struct {
	since    int64 // when the peer last answered, or the wait for it began
	tries    int   // acknowledgement timeouts since then
	probes   int   // probes since a round trip was last measured
	probeAt  int64 // when to probe next
	rnr      int64 // until when the receiver is not ready
	rnrTries int

	srtt, rttvar int64 // the smoothed round trip and its variation (RFC 6298), nanoseconds
}

// The probe timer is twice the round trip, but at least minProbe: an end in user space may not get
// a processor for that long, and a storm of repeats would keep it from getting one.
const (
	minProbe = int64(5 * time.Millisecond)
	maxProbe = int64(time.Second)
)

// restart begins to wait.
func (t *timers) restart(now int64) {
	t.since, t.tries = now, 0
	t.probeAt = now + t.probeAfter()
}

// progress records that the peer is alive and ready.
func (t *timers) progress(now int64) {
	t.rnrTries = 0
	t.restart(now)
}

// isReady reports whether requests may go to the receiver: it did not report "not ready", or its
// timer is over. In the latter case the wait restarts.
func (t *timers) isReady(now int64) bool {
	switch {
	case t.rnr == 0:
	case now < t.rnr:
		return false
	default:
		t.rnr = 0
		t.restart(now)
	}
	return true
}

// sample updates the round trip with that of n packets.
func (t *timers) sample(rtt int64, n int) {
	t.probes = 0 // not for the answer to a probe, which may answer its first copy (RFC 6298, 5)
	if t.srtt == 0 {
		t.srtt, t.rttvar = rtt, rtt/2
		n--
	}
	for range n {
		t.rttvar += (max(t.srtt-rtt, rtt-t.srtt) - t.rttvar) / 4
		t.srtt += (rtt - t.srtt) / 8
	}
}

// roundTrip returns an upper bound on the time of almost every answer.
func (t *timers) roundTrip() int64 {
	if t.srtt == 0 {
		return minProbe // not known yet
	}
	return t.srtt + 4*t.rttvar
}

// probeAfter returns the time to wait for an answer before the next probe.
func (t *timers) probeAfter() int64 {
	return min(max(2*t.roundTrip(), minProbe)<<min(t.probes, 16), maxProbe)
}

// requesterDeadline returns the time at which the requester wants to be called.
func (q *QP) requesterDeadline() int64 {
	r, t := &q.req, &q.req.timers
	if q.State != verbs.StateRTS && q.State != verbs.StateSQD {
		return Never
	}
	if r.una == r.end {
		return Never
	}
	if t.rnr > q.now {
		return t.rnr
	}
	at := q.limiter.next(q.now)
	if r.una == r.next {
		return at
	}
	if q.Attr.Timeout != 0 {
		at = min(at, t.since+q.ackTimeout())
	}
	return min(at, t.probeAt, r.order.at)
}

// ackTimeout returns the time from the last sign of life to the next acknowledgement timeout.
func (q *QP) ackTimeout() int64 {
	return int64(verbs.AckTimeout(q.Attr.Timeout)) * int64(q.req.timers.tries+1)
}

// Tick handles the timers that are due.
func (q *QP) Tick(now int64) {
	q.now = now
	r, t := &q.req, &q.req.timers
	if q.State != verbs.StateRTS && q.State != verbs.StateSQD || r.una == r.next {
		return
	}
	if !t.isReady(now) {
		return
	}
	if q.Attr.Timeout != 0 && now-t.since >= q.ackTimeout() {
		q.timeout()
		return
	}
	if now >= r.order.at {
		q.findLate()
	}
	if now >= t.probeAt {
		q.probe()
	}
}

// timeout handles an acknowledgement timeout: everything is sent again, until the retries are used
// up (IBTA 9.7.6.1.3).
func (q *QP) timeout() {
	r, t := &q.req, &q.req.timers
	if r.at(r.una).state == lost {
		// It still waits to be sent, not for an answer.
		t.since = q.now - int64(verbs.AckTimeout(q.Attr.Timeout))*int64(t.tries)
		return
	}
	q.stats.Timeouts++
	t.tries++
	if t.tries > int(q.Attr.RetryCount) {
		slot := q.find(r.una)
		q.failRequest(q.SQ.At(slot), verbs.StatusRetryExcErr)
		return
	}
	q.collapse()
	q.goBack(r.una)
	// Packets that are sent again get the whole timeout for their answer, even if this call comes
	// late.
	t.since = q.now - int64(verbs.AckTimeout(q.Attr.Timeout))*int64(t.tries)
	t.probeAt = q.probeLater()
}

// isUnknown reports whether the peer was probed, and has never acknowledged anything. Those that
// began before may have filled a queue on the way. So until it has, only one packet at a time is
// under way, and those of the many that began at once are spread (probeLater).
func (q *QP) isUnknown() bool {
	r := &q.req
	return !q.ours && r.una == r.first && r.timers.probes+r.timers.tries > 0
}

// probeLater returns when to probe next.
func (q *QP) probeLater() int64 {
	after := q.req.timers.probeAfter()
	if q.isUnknown() {
		after += q.cfg.Rand.Int64N(after / 2)
	}
	return q.now + after
}

// probe sends the oldest number again after some round trips without an answer: the last packets
// may be lost, and the answer to the probe shows which. A foreign peer that has asked for a packet
// is silent until that arrives, and has dropped everything behind it.
func (q *QP) probe() {
	r, t := &q.req, &q.req.timers
	if r.at(r.una).state == lost {
		t.probeAt = q.now + t.probeAfter() // it still waits to be sent, not for an answer
		return
	}
	q.stats.Probes++
	if t.probes++; t.probes > 1 {
		q.collapse()
	} else {
		q.missed(r.una)
		if q.isUnknown() {
			q.collapse()
		}
	}
	t.probeAt = q.probeLater()
	if q.ours {
		q.markLost(r.una)
	} else {
		q.goBack(r.una)
	}
}
