package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// Stats count what was accepted and what of it has completed, in both directions, and go on
// counting where a reset drops the rest.
func TestStatsCountBothDirections(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		check := func(what string, e *vqptest.End, sends, sent, recvs, received uint64) {
			t.Helper()
			s := e.Stats()
			if s.Sends != sends || s.SendsCompleted != sent || s.Recvs != recvs ||
				s.RecvsCompleted != received {
				t.Errorf("%s: sends %d and %d, receives %d and %d, want %d %d %d %d", what, s.Sends,
					s.SendsCompleted, s.Recvs, s.RecvsCompleted, sends, sent, recvs, received)
			}
		}
		check("new", l.A, 0, 0, 0, 0)
		for id := range uint64(5) {
			l.B.ExpectRecv(t, id)
		}
		check("posted", l.B, 0, 0, 5, 0)
		for id := range uint64(3) {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 2000))
		}
		vqptest.IDs(t, l.A.Wait(t, 3), verbs.StatusSuccess)
		vqptest.IDs(t, l.B.Wait(t, 3), verbs.StatusSuccess)
		check("sent", l.A, 3, 3, 0, 0)
		check("received", l.B, 0, 0, 5, 3)
	})
}

// The rings of both directions begin empty and small, and each doubling is counted.
func TestStatsOfTheRings(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	s := l.B.Stats()
	if s.RingsGrown != 0 || s.RecvWindow != 0 || s.SendWindow != 0 {
		t.Errorf("new: %+v", s)
	}
	small := s.RecvRing
	for id := range uint64(4 * small) {
		l.B.ExpectRecv(t, id)
	}
	if s = l.B.Stats(); s.RingsGrown != 2 || s.RecvRing != 4*small || s.RecvWindow != 4*small ||
		s.SendRing != small {
		t.Errorf("%d receives: grown %d times to %d slots, %d in use; %d slots for sends", 4*small,
			s.RingsGrown, s.RecvRing, s.RecvWindow, s.SendRing)
	}
}
