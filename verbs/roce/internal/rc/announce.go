package rc

import "ibverbx/verbs/roce/internal/wire"

// This file lets two ends of this package recognise each other. The program that exchanges queue
// pair numbers and GIDs need not know of it. No foreign end can be mistaken for one of ours: it
// would have to answer a question that it ignores.
//
// The reserved bits of the BTH are zero in RoCE, and receivers ignore them. A requester sets them
// (wire.FromRequester) in every packet that it sends for the first time, until it knows its peer. A
// responder that has carried out such a request sets its own (wire.FromResponder) in all answers up
// to maxTrack numbers behind it: whatever was under way is answered by then. An answer without them
// to a packet that had them is from a foreign end, and the requester stops setting them. So a
// foreign requester never sees a reserved bit that is not zero; a foreign responder sees some until
// its first answer has come.
//
// A forger that has a NIC taken for an end of ours ends its connection: the NIC sends from another
// port than the forger. So a request announces only once it is carried out, and an answer only if
// it is to a number under way while this end announces itself. Whoever forges either of these can
// end the connection in other ways.
//
// A packet that is sent again never announces: an end that drops such packets, against the
// specification, costs a retry and no connection.
//
// Each end learns for itself. Until both know, one may treat the other as foreign and not the other
// way round: a NAK for a gap without a list makes an end of ours go back too (sequenceError), and
// one with a list announces (transmitAnswers), so that its receiver knows how to read it.

// requestAnnounces handles the reserved bits of the request that is being carried out.
func (q *QP) requestAnnounces(h *wire.Header) {
	if !q.cfg.Announce || h.Reserved != wire.FromRequester {
		return
	}
	q.ours = true
	q.resp.announced = q.resp.expected + maxTrack
}

// answerAnnounces handles the reserved bits in an answer to a number that was sent, also if there
// are none. This end announces itself.
func (q *QP) answerAnnounces(h *wire.Header, s seq) {
	r := &q.req
	switch {
	case s < r.una: // late
	case h.Reserved == wire.FromResponder:
		q.ours, q.announcing = true, false
	case !r.at(s).resent && h.Opcode.HasAETH() && h.Syndrome.IsAck():
		q.announcing = false
	}
}
