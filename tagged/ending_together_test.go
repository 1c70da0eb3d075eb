package tagged_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx/tagged"
	"ibverbx/verbs"
)

// TestBothEndsClose: both ends may close at the same time, and neither calls that a failure.
func TestBothEndsClose(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	ctx := background(r)
	for i := range 20 {
		a, b := r.connect(0, 1)
		if i%2 == 0 {
			if err := a.SendWait(ctx, 1, pattern(64, i)); err != nil {
				t.Fatal(err)
			}
			if _, err := b.RecvWait(ctx, 1, tagged.Exact, make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- a.Close(ctx) }()
		if err := errors.Join(b.Close(ctx), <-closed); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	for i, w := range r.workers {
		if s := w.Stats(); s.Endpoints != 0 || s.Violations != 0 {
			t.Errorf("worker %d: %+v", i, s)
		}
	}
}

// TestAbortEndsAClose: an Abort ends a Close that waits, which says that it was canceled, and so
// do the sends that it waited for.
func TestAbortEndsAClose(t *testing.T) {
	r, a, _ := pair(t, 1, tagged.Config{})
	ctx := background(r)
	req := r.send(a, 1, make([]byte, 100000)) // nobody receives it
	closed := make(chan error, 1)
	go func() { closed <- a.Close(ctx) }()
	r.until(func() bool { _, err := a.Send(2, nil); return errors.Is(err, tagged.ErrClosed) })
	if err := a.Close(ctx); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("a second Close: %v", err)
	}
	if err := a.Abort(); err != nil {
		t.Error(err)
	}
	if err := <-closed; !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("close: %v", err)
	}
	if err := req.Wait(ctx); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("the send: %v", err)
	}
	if err := a.Abort(); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("a second Abort: %v", err)
	}
}

// TestCloseThatIsCutShort: a Close whose context ends returns its error, and ends what it waited
// for.
func TestCloseThatIsCutShort(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	req := r.send(a, 1, make([]byte, 100000))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := a.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	r.done(req)
	if err := req.Err(); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("the send: %v", err)
	}
	r.until(func() bool { return b.Err() != nil }) // the peer is told
	if err := b.Err(); !errors.Is(err, tagged.ErrPeerFailed) {
		t.Errorf("the peer: %v", err)
	}
}

// TestWaitingSendsOfAnEndpointThatHasEnded: calls that wait return why nothing was sent.
func TestWaitingSendsOfAnEndpointThatHasEnded(t *testing.T) {
	r, a, _ := pair(t, 1, tagged.Config{})
	ctx := background(r)
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"send": a.SendWait(ctx, 1, nil), "send sync": a.SendSyncWait(ctx, 1, []byte("x")),
		"long": a.SendWait(ctx, 1, make([]byte, 100000)),
	} {
		if !errors.Is(err, tagged.ErrCanceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{
		"send": a.SendWait(nil, 1, nil), "send sync": a.SendSyncWait(nil, 1, nil), //nolint:staticcheck // nil
		"close": a.Close(nil), //nolint:staticcheck // nil
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s without a context: %v", what, err)
		}
	}
}
