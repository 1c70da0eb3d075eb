package layers

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// TestSendsAfterAFailure shows which completions may follow which.
func TestSendsAfterAFailure(t *testing.T) {
	const ok, failed, flushed = verbs.StatusSuccess, verbs.StatusRetryExcErr, verbs.StatusWRFlushErr
	for _, tt := range []struct {
		in   []verbs.Status
		want bool
	}{
		{[]verbs.Status{ok, ok, failed, flushed, flushed}, true},
		{[]verbs.Status{ok, flushed, flushed, failed, flushed}, true},
		{[]verbs.Status{failed, ok}, false},
		{[]verbs.Status{flushed, ok}, false},
	} {
		q := &QueuePair{base: base{Config: &Config{}}, qpRound: qpRound{posted: len(tt.in)}}
		var err error
		for i, s := range tt.in {
			err = errors.Join(err, q.sent(&ibverbx.WC{ID: uint64(i), Status: s}))
		}
		if (err == nil) != tt.want {
			t.Errorf("%v: %v", tt.in, err)
		}
	}
}

// TestFlushedInOrder shows that receives that fail must come in the order of posting, too.
func TestFlushedInOrder(t *testing.T) {
	q := &QueuePair{base: base{Config: &Config{Shape: Shape{Op: WriteImm}, Name: "b"}},
		qpRound: qpRound{expected: 2}}
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
