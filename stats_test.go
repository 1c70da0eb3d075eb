package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// Stats count what was accepted and what of it has completed, in both directions, and go on
// counting where a reset drops the rest.
func TestStatsCountBothDirections(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		check := func(what string, e *end, sends, sent, recvs, received uint64) {
			t.Helper()
			s := e.Stats()
			if s.Sends != sends || s.SendsCompleted != sent || s.Recvs != recvs ||
				s.RecvsCompleted != received {
				t.Errorf("%s: sends %d and %d, receives %d and %d, want %d %d %d %d", what, s.Sends,
					s.SendsCompleted, s.Recvs, s.RecvsCompleted, sends, sent, recvs, received)
			}
		}
		check("new", l.a, 0, 0, 0, 0)
		for id := range uint64(5) {
			l.b.expectRecv(t, id)
		}
		check("posted", l.b, 0, 0, 5, 0)
		for id := range uint64(3) {
			l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, 0, 2000))
		}
		ids(t, l.a.wait(t, 3), verbs.StatusSuccess)
		ids(t, l.b.wait(t, 3), verbs.StatusSuccess)
		check("sent", l.a, 3, 3, 0, 0)
		check("received", l.b, 0, 0, 5, 3)
	})
}

// The rings of both directions begin empty and small, and each doubling is counted.
func TestStatsOfTheRings(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}})
	s := l.b.Stats()
	if s.RingsGrown != 0 || s.RecvWindow != 0 || s.SendWindow != 0 {
		t.Errorf("new: %+v", s)
	}
	small := s.RecvRing
	for id := range uint64(4 * small) {
		l.b.expectRecv(t, id)
	}
	if s = l.b.Stats(); s.RingsGrown != 2 || s.RecvRing != 4*small || s.RecvWindow != 4*small ||
		s.SendRing != small {
		t.Errorf("%d receives: grown %d times to %d slots, %d in use; %d slots for sends", 4*small,
			s.RingsGrown, s.RecvRing, s.RecvWindow, s.SendRing)
	}
}
