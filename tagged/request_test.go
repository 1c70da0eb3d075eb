package tagged_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx/tagged"
)

// TestCancelRace: a receive that is cancelled while its message arrives ends in exactly
// one way, and so does the message.
func TestCancelRace(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	for _, w := range r.workers {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ctx := background(r)
	canceled := 0
	for i := range 300 {
		buf := []byte{0}
		d := r.recv(b.Worker(), 1, tagged.Exact, buf)
		result := make(chan bool)
		go func() { result <- d.Cancel() }()
		if err := a.SendWait(ctx, 1, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if <-result {
			canceled++
			if !errors.Is(d.Err(), tagged.ErrCanceled) || buf[0] != 0 {
				t.Fatal(d.Err(), buf)
			}
			if _, err := b.Worker().RecvWait(ctx, 1, tagged.Exact, buf); err != nil {
				t.Fatal(err)
			}
		} else if err := d.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if buf[0] != byte(i) {
			t.Fatalf("round %d: % x", i, buf)
		}
	}
	t.Logf("%d of 300 were cancelled", canceled)
}

// TestContexts: with a context that has ended nothing is sent, and what is there is received; a
// send that can no more be cancelled goes on.
func TestContexts(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var interrupted *tagged.InterruptedError
	for _, n := range []int{1, 50000} {
		if err := a.SendWait(over, 1, make([]byte, n)); !errors.Is(err, context.Canceled) ||
			errors.As(err, &interrupted) {
			t.Error(err)
		}
	}
	r.settle()
	if info, found := b.Worker().Probe(0, tagged.Any); found {
		t.Errorf("it was sent: %+v", info)
	}
	err := context.DeadlineExceeded
	for wait := time.Millisecond; errors.Is(err, context.DeadlineExceeded) && wait < time.Minute; wait *= 2 {
		// Not announced if a busy machine has let the time pass before.
		if err = a.SendWait(timeout(t, wait), 2, make([]byte, 50000)); errors.As(err, &interrupted) {
			break
		}
	}
	if interrupted == nil || interrupted.Req.Done() {
		t.Fatal(err)
	}
	d := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, 50000))
	r.done(d, interrupted.Req)
	r.send(a, 3, []byte("x"))
	r.settle()
	_, err = b.Worker().RecvWait(over, 3, tagged.Exact, make([]byte, 8))
	if err := errors.Join(err, d.Wait(over)); err != nil {
		t.Error(err)
	}
}

// TestFree: a request that is freed before it is done goes on, and is given back when it is;
// freeing one twice panics.
func TestFree(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	buf := make([]byte, 8)
	r.recv(b.Worker(), 1, tagged.Exact, buf).Free()
	r.send(a, 1, []byte("freed"))
	r.until(func() bool { return b.Worker().Stats().SpareRequests == 1 })
	if string(buf[:5]) != "freed" {
		t.Errorf("%q", buf)
	}
	d := r.recv(b.Worker(), 1, tagged.Exact, buf)
	d.Cancel()
	d.Free()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	d.Free()
}
