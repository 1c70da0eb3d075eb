package tagged_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/tagged"
	"ibverbx/verbs"
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

// TestWaits: WaitAny, WaitSome and WaitAll return what is done, skip what is nil, and leave what
// goes on as it is when their context ends.
func TestWaits(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	over, cancel := context.WithCancel(ctx)
	cancel()
	w := b.Worker()
	var reqs []*tagged.Request
	for tag := range uint64(5) {
		reqs = append(reqs, r.recv(w, tag, tagged.Exact, make([]byte, 1)))
	}
	if i, err := tagged.WaitAny(ctx, nil, nil); i != -1 || err != nil {
		t.Error(i, err)
	}
	if i, err := tagged.WaitAny(over, reqs...); i != -1 || !errors.Is(err, context.Canceled) {
		t.Error(i, err)
	}
	if done, err := tagged.WaitSome(over, nil, reqs...); len(done) != 0 || !errors.Is(err, context.Canceled) {
		t.Error(done, err)
	}
	var interrupted *tagged.InterruptedError
	if err := tagged.WaitAll(over, reqs...); !errors.As(err, &interrupted) || interrupted.Req != reqs[0] {
		t.Error(err)
	}
	r.send(a, 3, []byte("3"))
	i, err := tagged.WaitAny(ctx, reqs...)
	if i != 3 || err != nil || reqs[3].Info().Tag != 3 {
		t.Error(i, err)
	}
	reqs[3] = nil
	for _, tag := range []uint64{4, 1} {
		r.send(a, tag, []byte("too long"))
	}
	done := []int{-7}
	for len(done) < 3 {
		if done, err = tagged.WaitSome(ctx, done[:1], reqs...); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(done) != "[-7 1 4]" {
		t.Error(done)
	}
	reqs[2].Cancel()
	r.send(a, 0, []byte("0"))
	if err := tagged.WaitAll(ctx, reqs...); !errors.Is(err, tagged.ErrTruncated) ||
		!errors.Is(err, tagged.ErrCanceled) {
		t.Error(err)
	}
	other := r.recv(a.Worker(), 1, tagged.Exact)
	again := r.recv(w, 1, tagged.Exact)
	if _, err := tagged.WaitAny(ctx, other, again); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
}

// TestWaitAnyEndsWithACancel: a wait that sleeps notices a request that the program cancels.
func TestWaitAnyEndsWithACancel(t *testing.T) {
	r, _, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	d := r.recv(b.Worker(), 1, tagged.Exact)
	result := make(chan int)
	go func() {
		i, _ := tagged.WaitAny(ctx, nil, d)
		result <- i
	}()
	d.Cancel()
	if i := <-result; i != 1 {
		t.Error(i)
	}
}
