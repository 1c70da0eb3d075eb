package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// fragments lists how many fragments each rail of an end was given.
func fragments(e *vqptest.End) (list []uint64) {
	for _, r := range e.Stats().Rails {
		list = append(list, r.Fragments)
	}
	return list
}

// Waiting requests go first to the rail that freed a slot last, then round robin over the others.
func TestFreedRailIsServedFirst(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{FragmentSize: 1000, MaxMsgCntPerQP: 2})
	for id := range uint64(5) {
		// two on each rail; one more waits, next in turn for rail 0
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 8))
	}
	l.Complete(l.A, 0)
	l.Complete(l.A, 1)
	// One CQ reports both completions; the slot on rail 1 is freed last.
	l.A.Pump(t)
	if got := fragments(l.A); got[0] != 2 || got[1] != 3 {
		t.Fatalf("fragments %v, want 2 and 3", got)
	}
}
