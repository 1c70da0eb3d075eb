package rc

import (
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// Networks mark packets that meet congestion (CE, RFC 3168) if these announce that their sender
// reacts (WantsECT). The end that receives a marked request tells its sender: one of ours by the
// bit BECN of the next answer, which InfiniBand has for that, and a foreign one by a CNP, as NICs
// do (IBTA annex A17). If an answer to a read is marked, the reader asked for too much at a time:
// it yields itself, and still notifies a foreign peer.

// echo is the responder's state for reporting the network's marks.
type echo struct {
	echoes bool  // the next answer to an end of ours has BECN set
	notice bool  // a CNP is due
	next   int64 // no CNP leaves before
}

// cnpEvery is the shortest time between two CNPs of a queue pair, as in DCQCN.
const cnpEvery = 50 * int64(time.Microsecond)

// marked records that the network has marked a packet of the peer.
func (q *QP) marked(h *wire.Header) {
	switch q.State {
	case verbs.StateRTR, verbs.StateRTS, verbs.StateSQD:
	default:
		return
	}
	q.stats.Marked++
	e := &q.resp.congested
	switch {
	case !q.ours && q.now >= e.next:
		e.notice = true
	case q.ours && h.Opcode.IsRequest() && q.IsNear(h):
		e.echoes = true
	}
}

// IsNear reports whether the peer may use a request's number now. A forger must guess such a
// number.
func (q *QP) IsNear(h *wire.Header) bool {
	s := q.resp.expected.near(h.PSN)
	return s+maxTrack >= q.resp.expected && s < q.resp.expected+maxTrack
}

// noticed handles a CNP, which only foreign peers send. It has no number, so a forged one slows the
// queue pair down, as on every NIC.
func (q *QP) noticed() {
	if q.ours {
		q.stats.Unexpected++
		return
	}
	q.stats.CNPs++
	q.yield()
}

// transmitNotice adds the CNP that is due.
func (q *QP) transmitNotice(b *Batch) {
	if !q.resp.congested.notice || b.full() {
		return
	}
	if q.resp.congested.notice = false; q.ours { // recognised since
		return
	}
	h := wire.Header{Opcode: wire.Congestion, PKey: defaultPKey, DestQP: q.Attr.DestQPNum, Backward: true}
	b.add(&h, nil)
	q.resp.congested.next = q.now + cnpEvery
	q.stats.CNPsSent++
}

// yield shrinks the window because the network has marked packets. If it cannot shrink, it reports
// that, because only fewer QPs at a time help then. A CNP of a foreign end it does not report: a
// CNP has no number, and one that is forged shall not slow down other QPs.
func (q *QP) yield() {
	r := &q.req
	switch {
	case q.State != verbs.StateRTS && q.State != verbs.StateSQD:
	case q.ours:
		if q.window() == minWindow {
			q.outcome.Stuck++
		}
		r.window.marked(r.una, r.next)
	default:
		r.foreign.marked(r.una, r.next)
	}
}

// marks is the part of DCQCN (Zhu et al., SIGCOMM 2015) that fits a window. The share of recent
// rounds with marks decides how much a mark takes; then five rounds halve the distance to the
// window before the cut, and from there it grows by a packet a round. The clock is the round trip
// instead of 55 microseconds, and there is no hyper increase.
type marks struct {
	alpha  float64 // the share of rounds with marks, averaged
	target float64 // the window before the last cut
	left   int     // rounds that still halve the distance to it
}

const (
	markWeight     = 1. / 16 // g of DCTCP (RFC 8257), whose clock is the round trip too
	recoveryRounds = 5
)

// start begins with the strongest reaction: the first mark halves the window.
func (m *marks) start() { *m = marks{alpha: 1} }

// cut returns the window after a round with marks.
func (m *marks) cut(packets float64) float64 {
	m.target, m.left = packets, recoveryRounds
	packets *= 1 - m.alpha/2
	m.alpha += (1 - m.alpha) * markWeight
	return max(packets, minWindow)
}

// recovers reports whether the window still grows back towards its size before the last cut.
func (m *marks) recovers() bool { return m.left != 0 }

// grow returns the window after a round without marks; once it has recovered, it grows by more
// packets a round.
func (m *marks) grow(packets, more float64) float64 {
	m.alpha -= m.alpha * markWeight
	if m.left == 0 {
		return packets + more
	}
	m.left--
	return max(packets, (packets+m.target)/2)
}
