package rc

import "ibverbx/verbs/roce/internal/wire"

// How two ends of this package find each other. Whoever carries the numbers of queue pairs and the
// GIDs from one to the other need know nothing of it, and no foreign end can be taken for one of
// ours: it would have to answer a question that it ignores.
//
// The reserved bits of the BTH are zero in RoCE, and whoever receives them ignores them. A
// requester says in them that it is an end of this package (wire.FromRequester), in every packet
// that it sends for the first time, until it knows who answers. A responder that has seen it says
// the same (wire.FromResponder) in all answers up to maxTrack numbers behind the last such request:
// whatever was under way is answered by then. An answer without it to a packet that had it is from
// a foreign end, and the requester ceases. So a foreign requester never sees a reserved bit that is
// not zero; a foreign responder sees some until its first answer has come.
//
// What is sent again never announces: an end that drops such packets, against the specification,
// costs a retry and no connection.
//
// Each end learns for itself. Until both know, one may talk as to a foreign end and the other not:
// a NAK for a gap that tells nothing makes an end of ours go back too (sequenceError), and what
// tells of a gap announces (transmitAnswers), so that its receiver knows how to read it.

// requestAnnounces handles reserved bits in a request that is not far from those under way.
func (q *QP) requestAnnounces(h *wire.Header, s seq) {
	r := &q.resp
	if !q.cfg.Announce || h.Reserved != wire.FromRequester ||
		s+maxTrack < r.expected || s >= r.expected+maxTrack {
		return
	}
	q.ours = true
	r.announced = max(r.announced, s+maxTrack)
}

// answerAnnounces handles the reserved bits in an answer for a number that was sent: what they say,
// and what it means that they say nothing.
func (q *QP) answerAnnounces(h *wire.Header, s seq) {
	r := &q.req
	switch {
	case !q.cfg.Announce || s < r.una && s+maxTrack < r.next:
	case h.Reserved == wire.FromResponder:
		q.ours, q.announcing = true, false
	case s >= r.una && !r.at(s).resent && h.Opcode.HasAETH() && h.Syndrome.IsAck():
		q.announcing = false
	}
}
