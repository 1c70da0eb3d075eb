package layers

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// TestLedger shows which completions may follow which.
func TestLedger(t *testing.T) {
	const ok, failed, flushed = verbs.StatusSuccess, verbs.StatusRetryExcErr, verbs.StatusWRFlushErr
	for _, tt := range []struct {
		in   []verbs.Status
		want bool
	}{
		{[]verbs.Status{ok, ok, failed, flushed, flushed}, true},
		{[]verbs.Status{ok, flushed, flushed, failed, flushed}, true},
		{[]verbs.Status{failed, ok}, false},
		{[]verbs.Status{flushed, ok}, false},
		{[]verbs.Status{failed, failed}, false},
	} {
		l := Ledger{Sends: Outcomes{Accepted: uint64(len(tt.in))}}
		for i, s := range tt.in {
			l.Count(&ibverbx.WC{ID: uint64(i), Status: s})
		}
		if err := l.Check("a"); (err == nil) != tt.want {
			t.Errorf("%v: %v", tt.in, err)
		}
		if l.Sends.Completed() != uint64(len(tt.in)) || l.Statuses[failed.Name()] != int(l.Sends.Failed) {
			t.Errorf("%v: %+v", tt.in, l)
		}
	}
}

// TestFlushedInOrder shows that receives that fail must come in the order of posting, too.
func TestFlushedInOrder(t *testing.T) {
	q := &QueuePair{shape: Shape{Op: WriteImm}, name: "b", qpRound: qpRound{expected: 2}}
	flushed := func(i uint64) *ibverbx.WC {
		return &ibverbx.WC{ID: recvBit | i,
			Status: verbs.StatusWRFlushErr}
	}
	if err := q.came(flushed(1)); !errors.Is(err, ErrVerify) || q.received != 0 {
		t.Errorf("the second in place of the first: %v", err)
	}
	if err := q.came(flushed(0)); err != nil || !q.failed || q.received != 1 || q.notified != 0 {
		t.Errorf("the first: %v, failed %v", err, q.failed)
	}
}

// TestCounterAfterFailure shows which values a counter may hold when acknowledgements were lost.
func TestCounterAfterFailure(t *testing.T) {
	q := &QueuePair{expect: []uint64{10, 11, 12}, qpRound: qpRound{acked: 1, posted: 3, next: 13}}
	for held, want := range map[uint64]bool{10: false, 11: true, 12: true, 13: true, 14: false} {
		if q.MayHold(held) != want {
			t.Errorf("%d: %v", held, !want)
		}
	}
}
