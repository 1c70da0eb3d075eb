package rc

import (
	"time"

	"ibverbx/verbs"
)

// Loss is found in three ways: a packet behind the lost one was answered (suspect), the responder
// says that it still expects it (goBack), or nothing is heard for some time (Tick).

// reorder is how many numbers a packet may arrive before its predecessors, between our own ends,
// before these count as lost (RFC 5681 and 8985: three). Networks keep the order of a flow but for
// moments in which its path changes.
const reorder = 3

// markDone marks a number under way done.
func (q *QP) markDone(s seq) {
	r := &q.req
	t := r.at(s)
	switch t.state {
	case done:
		return
	case lost:
		r.lost--
	case flying:
		q.arrived(t)
	}
	t.state = done
	r.timers.progress(q.now)
}

// markKept marks a number kept that the responder has ahead of a gap.
func (q *QP) markKept(s seq) {
	t := q.req.at(s)
	if t.state != flying {
		return
	}
	q.arrived(t)
	t.state = kept
}

// arrived takes a packet out of those under way.
func (q *QP) arrived(t *track) {
	r := &q.req
	r.flying--
	rtt := q.now - t.sentAt
	if t.resent {
		rtt = 0 // of which of the two it is the answer is not known
	} else {
		r.timers.sample(rtt)
	}
	r.window.arrived(q.now, rtt)
}

// markLost marks a number under way lost, to be sent again. Of a read of which no answer has
// arrived all is lost: the responder may not have seen it, and has to be asked for the same numbers
// again, since its next expected number is the one behind what it was asked for.
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
	r.window.missed()
}

// suspect marks a number lost if one behind it was answered, unless it may only be late. What was
// sent again gets a round trip before it is lost again.
func (q *QP) suspect(s, answered seq) {
	t := q.req.at(s)
	switch {
	case s < q.req.una || t.state != flying:
		return
	case t.resent:
		if q.now-t.sentAt < q.req.timers.roundTrip() {
			return
		}
	case q.ours && answered-s < reorder:
		return
	}
	q.markLost(s)
}

// timers are the requester's clocks.
type timers struct {
	since    int64 // when something was last heard, or began to be awaited
	tries    int   // acknowledgement timeouts since then
	probes   int   // probes of a lost tail since then
	probeAt  int64 // when to probe next
	rnr      int64 // until when the receiver is not ready
	rnrTries int

	srtt, rttvar int64 // the smoothed round trip and its variation (RFC 6298), nanoseconds
}

// The probe timer: twice the round trip, but no less than minProbe, since an end in user space may
// not get a processor for that long, and a storm of repeats keeps it from getting one.
const (
	minProbe = int64(5 * time.Millisecond)
	maxProbe = int64(time.Second)
)

// restart begins to wait.
func (t *timers) restart(now int64) {
	t.since, t.tries, t.probes = now, 0, 0
	t.probeAt = now + t.probeAfter()
}

// progress notes that the peer lives and takes what it is sent.
func (t *timers) progress(now int64) {
	t.rnrTries = 0
	t.restart(now)
}

// isReady reports whether the receiver was not found unready a moment ago. When that is over, it is
// asked again, and waited for anew.
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

// sample takes in the round trip of a packet.
func (t *timers) sample(rtt int64) {
	if t.srtt == 0 {
		t.srtt, t.rttvar = rtt, rtt/2
		return
	}
	t.rttvar += (max(t.srtt-rtt, rtt-t.srtt) - t.rttvar) / 4
	t.srtt += (rtt - t.srtt) / 8
}

// roundTrip is how long an answer takes, at most, in all likelihood.
func (t *timers) roundTrip() int64 {
	if t.srtt == 0 {
		return minProbe // not known yet
	}
	return t.srtt + 4*t.rttvar
}

// probeAfter is how long to wait for an answer before the next probe.
func (t *timers) probeAfter() int64 {
	return min(max(2*t.roundTrip(), minProbe)<<min(t.probes, 16), maxProbe)
}

// requesterDeadline is when the requester has to be called.
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
	if q.ours {
		at = min(at, t.probeAt)
	}
	return at
}

// ackTimeout is when the next acknowledgement timeout is due, after the last sign of life.
func (q *QP) ackTimeout() int64 {
	return int64(verbs.AckTimeout(q.Attr.Timeout)) * int64(q.req.timers.tries+1)
}

// Tick handles what is due.
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
	if q.ours && now >= t.probeAt {
		q.probe()
	}
}

// timeout counts an acknowledgement timeout: everything is sent again, until the retries are used
// up (IBTA 9.7.6.1.3).
func (q *QP) timeout() {
	r, t := &q.req, &q.req.timers
	if r.at(r.una).state == lost {
		// It waits to be sent, and not for an answer.
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
	r.window.collapse()
	q.goBack(r.una)
	// What is sent again has the whole timeout to be answered, even if this call comes late.
	t.since = q.now - int64(verbs.AckTimeout(q.Attr.Timeout))*int64(t.tries)
	t.probeAt = q.now + t.probeAfter()
}

// probe sends the oldest number again when nothing was heard for some round trips: the tail of what
// was sent may be lost, and its answer tells what else is.
func (q *QP) probe() {
	r, t := &q.req, &q.req.timers
	q.stats.Probes++
	if t.probes++; t.probes > 1 {
		r.window.collapse()
	}
	t.probeAt = q.now + t.probeAfter()
	q.markLost(r.una)
}
