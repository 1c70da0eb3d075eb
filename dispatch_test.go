package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// fragments lists how many fragments each rail of an end was given.
func (e *end) fragments() (list []uint64) {
	for _, r := range e.Stats().Rails {
		list = append(list, r.Fragments)
	}
	return list
}

// A fenced request is given to no rail before all data of earlier requests is acknowledged.
func TestFencedRequestWaitsForAllEarlierData(t *testing.T) {
	l := steppedLink(t, 3, ibverbx.Config{FragmentSize: 1000})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 2000)) // rails 0 and 1
	read := l.a.write(verbs.OpRDMARead, 2, 5000, 1000)
	read.Flags |= verbs.SendFence
	l.a.send(t, read)
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 3, 0, 1000)) // behind the fence
	for _, rail := range []int{0, 1} {
		if got := l.a.fragments(); got[0]+got[1]+got[2] != 2 {
			t.Fatalf("fragments %v: the fenced request was posted too early", got)
		}
		l.complete(l.a, rail)
		l.a.pump(t)
	}
	if got := l.a.fragments(); got[0]+got[1]+got[2] != 4 {
		t.Fatalf("fragments %v: the fenced request is still not posted", got)
	}
}

// Waiting requests go first to the rail that freed a slot last, then round robin over the others.
func TestFreedRailIsServedFirst(t *testing.T) {
	l := steppedLink(t, 2, ibverbx.Config{FragmentSize: 1000, MaxMsgCntPerQP: 2})
	for id := range uint64(5) {
		// two on each rail; one more waits, next in turn for rail 0
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 8))
	}
	l.complete(l.a, 0)
	l.complete(l.a, 1)
	// One CQ reports both completions; the slot on rail 1 is freed last.
	l.a.pump(t)
	if got := l.a.fragments(); got[0] != 2 || got[1] != 3 {
		t.Fatalf("fragments %v, want 2 and 3", got)
	}
}

// A sender keeps no more in flight on a rail than the peer has credits for.
func TestPeerCreditsLimitOutstandingFragments(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}, fabric: soft.Config{Stepped: true},
		rawCard: func(c *ibverbx.BusinessCard) { c.Credits = 3 }})
	for id := range uint64(20) {
		l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, 0, 8))
	}
	for i, r := range l.a.Stats().Rails[:2] {
		if r.Outstanding != 3 || r.Limit != 3 {
			t.Errorf("rail %d has %d of %d in flight, the peer has 3 credits", i, r.Outstanding, r.Limit)
		}
	}
	if err := l.a.Reset(); err != nil {
		t.Fatal(err)
	}
	if r := l.a.Stats().Rails[0]; r.Limit != 128 {
		t.Errorf("after a reset the limit is %d, want the queue pair's own", r.Limit)
	}
}
