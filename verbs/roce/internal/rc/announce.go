package rc

import "ibverbx/verbs/roce/internal/wire"

// This file lets two ends of this package recognise each other. The program that exchanges queue
// pair numbers and GIDs is not involved. No foreign end can be mistaken for one of ours, because it
// ignores the mark and so never answers it.
//
// The reserved bits of the BTH are zero in RoCE, and receivers ignore them. A requester sets them
// (wire.FromRequester) in every packet that it sends for the first time, until it knows its peer. A
// responder that has carried out such a request sets its own (wire.FromResponder) in all answers up
// to maxTrack numbers behind it: by then, everything that was under way is answered. An answer
// without them to a packet that had them is from a foreign end, and the requester stops setting
// them. So a foreign requester never sees a reserved bit that is not zero; a foreign responder sees
// some until its first answer has come.
//
// If a forger makes a NIC look like an end of ours, the connection ends, because the NIC sends from
// another port than the forger. So a request announces only once it is carried out, and an answer
// only if it is to a number under way while this end announces itself. A forger of either can end
// the connection in other ways.
//
// A packet that is sent again never announces, so an end that drops such packets, against the
// specification, costs only a retry.
//
// Each end recognises the other by itself. Until both have, only one may treat the other as
// foreign: a NAK for a gap without a list makes an end of ours go back too (sequenceError), and one
// with a list announces (transmitAnswers), so that its receiver knows how to read it.

// requestAnnounces handles the reserved bits of the request that is being carried out.
func (q *QP) requestAnnounces(h *wire.Header) {
	if !q.cfg.Announce || h.Reserved != wire.FromRequester {
		return
	}
	q.ours = true
	q.resp.announced = q.resp.expected + maxTrack
}

// answerAnnounces handles the reserved bits, set or not, in an answer to a number that was sent.
// Call it while this end announces itself.
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
