// Package api_test tests virtual queue pairs through the public API, over software NICs, stepped
// ones, NICs whose calls fail, and the null provider: what is refused and with which words, what is
// reported when something fails, what waits, and how an end closes. What every provider can play is
// in test/vqp.
package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

const kb = 1000

// The notifications of Spray do not wait for each other: all whose data has arrived are on the way
// at a time.
func TestNotificationsArePipelined(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb})
	const notify = 2
	for id := range uint64(4) {
		l.B.ExpectRecv(t, 100+id)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, kb))
	}
	for rail := range 2 {
		l.Complete(l.A, rail)
		l.Complete(l.A, rail)
	}
	l.Reports(l.A)
	if s := l.A.Stats().Rails[notify]; s.Outstanding != 4 {
		t.Fatalf("four notifications are on the way at a time, got %d", s.Outstanding)
	}
	for range 4 {
		l.Complete(l.A, notify)
	}
	l.Reports(l.A, 0, 1, 2, 3)
	l.Reports(l.B, 100, 101, 102, 103)
}

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
