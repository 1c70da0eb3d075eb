package udp

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// Everything that waits ends: by a datagram, the deadline and Close.
func TestWait(t *testing.T) {
	a, b := openPair(t)
	wait := func(deadline time.Time) chan error {
		done := make(chan error, 1)
		go func() { done <- b.WaitReadable(deadline) }()
		return done
	}
	if err := <-wait(time.Now().Add(-time.Second)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("past deadline:", err)
	}
	if err := <-wait(time.Now().Add(5 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("deadline:", err)
	}
	done := wait(time.Time{})
	parked(t, done)
	packets, _ := packetsOf(10)
	send(t, to(t, a, b), packets, false)
	if err := <-done; err != nil {
		t.Error("readable:", err)
	}
	if err := <-wait(time.Time{}); err != nil {
		t.Error("still readable:", err)
	}
	receive(t, b, b.NewBatch(0, 0), 1)
	done = wait(time.Time{})
	parked(t, done)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, verbs.ErrClosed) {
		t.Error("closed while waiting:", err)
	}
}

// parked gives a wait time to begin, and fails the test if it ends by itself.
func parked(t *testing.T, done chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("the wait ended by itself: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
}

// After Close everything says so.
func TestClosed(t *testing.T) {
	a, b := openPair(t)
	dest, batch := to(t, a, b), a.NewBatch(0, 0)
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	packets, _ := packetsOf(10)
	_, sendErr := dest.Send(packets, false)
	_, recvErr := batch.Recv()
	for name, err := range map[string]error{"send": sendErr, "receive": recvErr,
		"readable": a.WaitReadable(time.Time{}), "writable": a.WaitWritable(time.Time{})} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = a.Stats()
}

// What arrives while nobody waits wakes nobody: neither before a wait, nor after one that ended by
// a datagram or by its deadline.
func TestNobodyIsWokenForNothing(t *testing.T) {
	a, b := openPair(t)
	dest, batch := to(t, a, b), b.NewBatch(0, 0)
	packets, _ := packetsOf(10)
	quiet := func(when string) {
		t.Helper()
		if _, err := dest.Send(packets, false); err != nil {
			t.Fatal(err)
		}
		_ = b.readable.epollRaw.Control(func(fd uintptr) {
			watched := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(watched, 0); n != 0 || err != nil {
				t.Errorf("%s Go's poller hears of datagrams (%v)", when, err)
			}
		})
		receive(t, b, batch, len(packets))
	}
	quiet("before a wait")
	if err := b.WaitReadable(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	quiet("after a wait for nothing")
	done := make(chan error, 1)
	go func() { done <- b.WaitReadable(time.Time{}) }()
	parked(t, done)
	if _, err := dest.Send(packets, false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	receive(t, b, batch, len(packets))
	quiet("after a wait")
}
