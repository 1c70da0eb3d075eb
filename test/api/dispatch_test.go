package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// fragments lists how many fragments each rail of an end was given.
func fragments(e *vqptest.End) (list []uint64) {
	for _, r := range e.Stats().Rails {
		list = append(list, r.Fragments)
	}
	return list
}

// A fenced request is given to no rail before all data of earlier requests is acknowledged.
func TestFencedRequestWaitsForAllEarlierData(t *testing.T) {
	l := vqptest.SteppedLink(t, 3, ibverbx.Config{FragmentSize: 1000})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 2000)) // rails 0 and 1
	read := l.A.Write(verbs.OpRDMARead, 2, 5000, 1000)
	read.Flags |= verbs.SendFence
	l.A.Send(t, read)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 3, 0, 1000)) // behind the fence
	for _, rail := range []int{0, 1} {
		if got := fragments(l.A); got[0]+got[1]+got[2] != 2 {
			t.Fatalf("fragments %v: the fenced request was posted too early", got)
		}
		l.Complete(l.A, rail)
		l.A.Pump(t)
	}
	if got := fragments(l.A); got[0]+got[1]+got[2] != 4 {
		t.Fatalf("fragments %v: the fenced request is still not posted", got)
	}
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

// A sender keeps no more in flight on a rail than the peer has credits for.
func TestPeerCreditsLimitOutstandingFragments(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric:   soft.Config{Stepped: true},
		EditCard: func(c *ibverbx.BusinessCard) { c.Credits = 3 }})
	for id := range uint64(20) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 8))
	}
	for i, r := range l.A.Stats().Rails[:2] {
		if r.Outstanding != 3 || r.Limit != 3 {
			t.Errorf("rail %d has %d of %d in flight, the peer has 3 credits", i, r.Outstanding, r.Limit)
		}
	}
	if err := l.A.Reset(); err != nil {
		t.Fatal(err)
	}
	if r := l.A.Stats().Rails[0]; r.Limit != 128 {
		t.Errorf("after a reset the limit is %d, want the queue pair's own", r.Limit)
	}
}
