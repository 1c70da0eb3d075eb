package verbs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestCompChannelMerges(t *testing.T) {
	c := NewCompChannel()
	for range 10 {
		c.Signal() // never blocks
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Events():
		t.Error("ten signals without a wait between them are more than one event")
	default:
	}
	c.Signal()
	<-c.Events()
}

func TestCompChannelWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCompChannel()
		woken := make(chan error)
		go func() { woken <- c.Wait(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-woken:
			t.Fatalf("returned without an event: %v", err)
		default:
		}
		c.Signal()
		if err := <-woken; err != nil {
			t.Error(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		go func() { woken <- c.Wait(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-woken; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}

		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestCompChannelOneWaiter: one event wakes one of two waiters.
func TestCompChannelOneWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCompChannel()
		woken := make(chan error, 2)
		for range 2 {
			go func() { woken <- c.Wait(t.Context()) }()
		}
		synctest.Wait()
		c.Signal()
		synctest.Wait()
		if len(woken) != 1 {
			t.Errorf("one event woke %d", len(woken))
		}
		c.Signal()
		<-woken
		<-woken
	})
}
