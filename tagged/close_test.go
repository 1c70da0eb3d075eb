package tagged_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// TestClose: Close lets sends complete, and the peer gets ErrPeerClosed.
func TestClose(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	var reported []error
	a := r.endpoint(0, tagged.EndpointConfig{})
	onError := func(_ *tagged.Endpoint, err error) { reported = append(reported, err) }
	b := r.endpoint(1, tagged.EndpointConfig{OnError: onError})
	if err := tagged.Connect(a, b); err != nil {
		t.Fatal(err)
	}
	ctx := background(r)
	long, short := make([]byte, 1<<20), make([]byte, 8)
	d := r.recv(b.Worker(), 1, tagged.Exact, long)
	r.send(a, 1, pattern(1<<20, 1))
	r.send(a, 2, []byte("short"))
	if err := a.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.Wait(ctx); err != nil || !bytes.Equal(long, pattern(1<<20, 1)) {
		t.Fatal(err)
	}
	r.until(func() bool { return b.Err() != nil })
	if info, err := b.Worker().RecvWait(ctx, 2, tagged.Exact, short); err != nil || info.Length != 5 {
		t.Fatal(info, err)
	}
	if !errors.Is(b.Err(), tagged.ErrPeerClosed) || len(reported) != 1 ||
		!errors.Is(reported[0], tagged.ErrPeerClosed) {
		t.Error(b.Err(), reported)
	}
	for _, err := range []error{a.Close(ctx), a.Abort()} {
		if !errors.Is(err, tagged.ErrClosed) {
			t.Error(err)
		}
	}
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestCloseAborts: a close whose context ends aborts what is left.
func TestCloseAborts(t *testing.T) {
	r, a, _ := pair(t, 1, tagged.Config{})
	req := r.send(a, 1, make([]byte, 100000)) // nobody receives it
	ctx := timeout(t, 5*time.Millisecond)
	if err := a.Close(ctx); !errors.Is(err, ctx.Err()) || ctx.Err() == nil {
		t.Fatal(err)
	}
	if !req.Done() || !errors.Is(req.Err(), tagged.ErrCanceled) {
		t.Error(req.Done(), req.Err())
	}
}

// TestAbortDuringClose: an abort ends a close that says goodbye to a peer which does not answer,
// before the context of the close ends.
func TestAbortDuringClose(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	hold := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: r.fabric.Device(0), Count: -1})
	defer hold.Remove()
	closed := make(chan error, 1)
	go func() { closed <- a.Close(background(r)) }()
	r.until(func() bool { return a.Worker().Transport().Stats().Control != 0 }) // the goodbye
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := a.Transport().Err(); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("the endpoint beneath: %v: it was not aborted", err)
	}
	select {
	case err := <-closed:
		if !errors.Is(err, tagged.ErrCanceled) {
			t.Errorf("close: %v", err)
		}
	case <-timeout(t, 10*time.Second).Done():
		t.Error("close goes on after the abort")
		hold.Remove()
		<-closed
	}
	if err := a.Close(background(r)); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	_ = b.Abort()
}

// TestACallbackThatLeavesClose: a callback of the transport below may leave Close by a panic. A
// second Close gives everything back, and a third finds the worker closed.
func TestACallbackThatLeavesClose(t *testing.T) {
	r, a, _ := pair(t, 1, tagged.Config{})
	w := a.Worker()
	_ = r.send(a, 1, make([]byte, 100000)) // nobody receives it
	if _, err := w.Register(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	below := a.Transport()
	comp := transport.NewCompletion(1, func(*transport.Completion) { panic("on purpose") })
	if done, err := below.StartFlush(transport.FlushRemote, comp); done || err != nil {
		t.Fatal(done, err)
	}
	why := func() (why any) {
		defer func() { why = recover() }()
		return w.Close()
	}()
	if why != "on purpose" {
		t.Fatalf("close: %v", why)
	}
	if err := w.Close(); !errors.Is(err, transport.ErrWorkerDead) {
		t.Errorf("a second close: %v", err)
	}
	if err := w.Close(); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("a third close: %v", err)
	}
	if err := r.domains[0].Close(); err != nil { // nothing of the worker is left in it
		t.Error(err)
	}
	r.workers, r.domains = r.workers[1:], r.domains[1:]
}

// Abort says what the transport beneath says of its own abort.
func TestAbortOfWhatIsClosedBeneath(t *testing.T) {
	_, a, _ := pair(t, 1, tagged.Config{})
	if err := a.Transport().Abort(nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Abort(); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("%v: the transport endpoint was aborted before", err)
	}
}
