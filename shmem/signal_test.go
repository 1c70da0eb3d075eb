package shmem_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/shmem"
)

// Other goroutines that put to the same PE do not come between data and signal.
func TestPutSignalAmongOtherPuts(t *testing.T) {
	l := newTestbed(t, shape{2, 2, 2}, shmem.Config{})
	const writers, n = 4, 3000
	s := allocate[byte](l, writers*n)
	sig := allocate[uint64](l, 2*writers)
	l.lag(11, isWrite)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		errs := make(chan error, writers)
		for w := range writers {
			go func() {
				errs <- func() error {
					b := make([]byte, n)
					part := s.Slice(w*n, (w+1)*n)
					for round := 1; round <= 2*rounds(); round++ {
						fill(b, round+w)
						if pe.Rank() == 0 {
							if err := shmem.PutSignal(ctx, pe, part, b, sig.At(w), uint64(round),
								shmem.SignalSet, 1); err != nil {
								return err
							}
							if err := shmem.WaitUntil(ctx, pe, sig.At(writers+w), shmem.EQ,
								uint64(round)); err != nil {
								return err
							}
							continue
						}
						if err := shmem.WaitUntil(ctx, pe, sig.At(w), shmem.EQ, uint64(round)); err != nil {
							return err
						}
						if !bytes.Equal(part.Local(pe), b) {
							return wrong("writer %d, round %d: the signal came before the data", w, round)
						}
						if err := shmem.P(ctx, pe, sig.At(writers+w), uint64(round), 0); err != nil {
							return err
						}
					}
					return nil
				}()
			}()
		}
		for range writers {
			if err := <-errs; err != nil {
				return err
			}
		}
		return nil
	})
}

// With Config.Background a signal behind a fence leaves without another call of its PE.
func TestBackground(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 4}, shmem.Config{Background: true})
	s := allocate[byte](l, 1000)
	sig := allocate[uint64](l, 1)
	l.lag(2, isWrite)
	var seen atomic.Bool
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		if err := shmem.PutSignal(ctx, pe, s, make([]byte, 1000), sig, 1, shmem.SignalSet, 1); err != nil {
			return err
		}
		deadline, other := time.Now().Add(patience), l.world.PEs()[1]
		for !seen.Load() && time.Now().Before(deadline) {
			// progress of the other PE, which has nothing to do with it
			ok, err := shmem.Test(other, sig, shmem.EQ, 1)
			if err != nil {
				return err
			}
			seen.Store(ok)
		}
		if !seen.Load() {
			return wrong("the signal did not leave")
		}
		return nil
	})
}

// WaitUntil compares as asked, for every kind of word and every comparison.
func TestWaitUntilCompares(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	comparisons[int32](l, -3)
	comparisons[uint32](l, 1<<31)
	comparisons[int64](l, -3)
	comparisons[uint64](l, 1<<63)
}

func comparisons[T shmem.Word](l *testbed, v T) {
	l.t.Helper()
	s := allocate[T](l, 3)
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		if err := shmem.Set(ctx, pe, s.At(1), v, 0); err != nil {
			return err
		}
		for _, c := range []struct {
			cmp   shmem.Cmp
			value T
			want  bool
		}{
			{shmem.EQ, v, true}, {shmem.EQ, v + 1, false},
			{shmem.NE, v + 1, true}, {shmem.NE, v, false},
			{shmem.GT, v - 1, true}, {shmem.GT, v, false},
			{shmem.GE, v, true}, {shmem.GE, v + 1, false},
			{shmem.LT, v + 1, true}, {shmem.LT, v, false},
			{shmem.LE, v, true}, {shmem.LE, v - 1, false},
		} {
			got, err := shmem.Test(pe, s.At(1), c.cmp, c.value)
			if err != nil || got != c.want {
				return wrong("%T: %v %v %v is %v, %v", v, v, c.cmp, c.value, got, err)
			}
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			err = shmem.WaitUntil(short, pe, s.At(1), c.cmp, c.value)
			cancel()
			if (err == nil) != c.want || err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return wrong("%T: wait until %v %v %v: %v", v, v, c.cmp, c.value, err)
			}
		}
		return nil
	})
}

// WaitUntilAny returns which word it was, WaitUntilAll waits for every one.
func TestWaitUntilAnyAndAll(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 2}, shmem.Config{})
	s := allocate[int64](l, 10)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 0 {
			for _, i := range []int{7, 3, 0, 1, 2, 4, 5, 6, 8, 9} {
				if err := shmem.P(ctx, pe, s.At(i), int64(i+1), 1); err != nil {
					return err
				}
				pe.Fence()
			}
			return pe.Barrier(ctx)
		}
		i, err := shmem.WaitUntilAny(ctx, pe, s, shmem.NE, 0)
		if err != nil {
			return err
		}
		if v := shmem.Load(pe, s.At(i)); v != int64(i+1) {
			return wrong("any: word %d is %d", i, v)
		}
		if v := shmem.Load(pe, s.At(7)); v != 8 {
			return wrong("word 7, the first one put, is %d", v)
		}
		if err := shmem.WaitUntilAll(ctx, pe, s, shmem.GT, 0); err != nil {
			return err
		}
		for i, v := range s.Local(pe) {
			if v != int64(i+1) {
				return wrong("all: word %d is %d", i, v)
			}
		}
		return pe.Barrier(ctx)
	})
}

// A wait ends with a word that has compared once, though it changes again right afterwards: it is
// not read a second time.
func TestWaitDoesNotLookAgain(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 2}, shmem.Config{Step: time.Microsecond})
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		for last := range 60 {
			short, cancel := context.WithTimeout(ctx, 10*time.Second)
			looks := 0
			err := shmem.Await(short, pe, func() bool { looks++; return looks == last+1 })
			cancel()
			if err != nil || looks != last+1 {
				return wrong("%v after %d looks, of which the %d. was the last", err, looks, last+1)
			}
		}
		return nil
	})
}
