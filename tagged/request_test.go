package tagged_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/tagged"
)

// TestSendCompletion: a buffer of a send that is done can be reused at once; a synchronous send
// waits for the match.
func TestSendCompletion(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	buf := []byte("first")
	if req := r.send(a, 1, buf); req != nil {
		t.Fatal("a short message on an idle endpoint was not done at once")
	}
	copy(buf, "later")
	got := make([]byte, 5)
	r.done(r.recv(b.Worker(), 1, tagged.Exact, got))
	if string(got) != "first" {
		t.Fatalf("%q", got)
	}
	for _, n := range []int{0, 8, 12000, 200000} {
		req, err := a.SendSync(2, pattern(n, 3))
		if err != nil || req == nil {
			t.Fatal(req, err)
		}
		r.settle()
		if req.Done() {
			t.Fatalf("%d bytes: a synchronous send is done before the match", n)
		}
		d := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, n))
		r.done(req, d)
		if req.Err() != nil || d.Err() != nil {
			t.Fatal(req.Err(), d.Err())
		}
		early := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, n))
		if err := a.SendSyncWait(background(r), 2, pattern(n, 3)); err != nil {
			t.Fatal(err)
		}
		r.done(early) // matched, and perhaps still arriving when the notice of that came
	}
}

// TestCancel: a receive that no message has matched, and a send of which nothing has gone out, can
// be cancelled; others complete.
func TestCancel(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: 2})
	for _, mask := range []uint64{tagged.Exact, 0xff} {
		d := r.recv(b.Worker(), 1, mask, make([]byte, 8))
		if !d.Cancel() || !d.Done() || !errors.Is(d.Err(), tagged.ErrCanceled) || d.Cancel() {
			t.Fatalf("%v", d.Err())
		}
	}
	r.send(a, 1, []byte("one"))
	r.send(a, 1, []byte("two"))
	third, fourth := r.send(a, 1, []byte("three")), r.send(a, 1, []byte("four"))
	long := r.send(a, 1, make([]byte, 100000))
	r.settle()
	if third.Done() || !third.Cancel() || !errors.Is(third.Err(), tagged.ErrCanceled) {
		t.Fatal("a send that waits for the window was not cancelled")
	}
	var got []string
	for range 3 {
		buf := make([]byte, 8)
		d := r.recv(b.Worker(), 1, tagged.Exact, buf)
		r.done(d)
		got = append(got, string(buf[:d.Info().Length]))
	}
	if fmt.Sprint(got) != "[one two four]" || fourth.Cancel() {
		t.Fatal(got)
	}
	r.until(func() bool { return b.Worker().Stats().Unexpected == 1 })
	if long.Cancel() {
		t.Fatal("a message that was announced was cancelled")
	}
	d := r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 100000))
	r.done(d, long)
	if d.Err() != nil || long.Err() != nil || d.Cancel() {
		t.Fatal(d.Err(), long.Err())
	}
}

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

// TestContexts: a wait whose context ends returns its error, and says who owns the buffer.
func TestContexts(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{MaxUnexpected: 2})
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var interrupted *tagged.InterruptedError

	// Nothing has matched: the receive is cancelled.
	_, err := b.Worker().RecvWait(over, 1, tagged.Exact, make([]byte, 8))
	if !errors.Is(err, context.Canceled) || errors.As(err, &interrupted) {
		t.Fatal(err)
	}
	if n := b.Worker().Stats().Posted; n != 0 {
		t.Fatalf("%d receives are left", n)
	}
	// A request that the program holds goes on.
	d := r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 8))
	if err := d.Wait(over); !errors.As(err, &interrupted) || interrupted.Req != d ||
		!errors.Is(err, context.Canceled) || d.Done() {
		t.Fatal(err)
	}
	r.send(a, 1, []byte("x"))
	r.done(d)
	if err := d.Wait(over); err != nil {
		t.Fatal(err) // it is done: the context does not matter
	}
	// With a context that has ended nothing is sent.
	interrupted = nil
	if err := a.SendWait(over, 2, make([]byte, 50000)); !errors.Is(err, context.Canceled) ||
		errors.As(err, &interrupted) {
		t.Fatal(err)
	}
	// A long send that was announced cannot be cancelled.
	soon, cease := context.WithTimeout(context.Background(), time.Millisecond)
	defer cease()
	err = a.SendWait(soon, 2, make([]byte, 50000))
	if !errors.As(err, &interrupted) || interrupted.Req.Done() {
		t.Fatal(err)
	}
	r.done(r.recv(b.Worker(), 2, tagged.Exact, make([]byte, 50000)), interrupted.Req)
	// A send that waits for the window is cancelled.
	r.send(a, 3, []byte("x"))
	r.send(a, 3, []byte("y"))
	short, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	interrupted = nil
	if err := a.SendWait(short, 3, []byte("z")); !errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &interrupted) {
		t.Fatal(err)
	}
	if s := a.Stats(); s.Queued != 0 {
		t.Fatalf("%+v", s)
	}
	// A message that has arrived is received although the context has ended.
	r.settle()
	if _, err := b.Worker().RecvWait(over, 3, tagged.Exact, make([]byte, 8)); err != nil {
		t.Fatal(err)
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
