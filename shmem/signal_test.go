package shmem_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/shmem"
)

// When the target sees the signal, all of the data is in its memory, over any number of rails.
func TestPutSignal(t *testing.T) {
	for _, nbi := range []bool{false, true} {
		for _, op := range []shmem.SignalOp{shmem.SignalSet, shmem.SignalAdd} {
			t.Run(fmt.Sprintf("nbi=%v/add=%v", nbi, op == shmem.SignalAdd), func(t *testing.T) {
				eachShape(t, 2, func(t *testing.T, l *testbed) { putSignal(l, nbi, op) })
			})
		}
	}
}

func putSignal(l *testbed, nbi bool, op shmem.SignalOp) {
	put := shmem.PutSignal[byte]
	if nbi {
		put = shmem.PutSignalNBI[byte]
	}
	s := allocate[byte](l, 1<<18)
	mine := allocate[byte](l, 1<<18)
	sig := allocate[uint64](l, 2)
	l.lag(11, isWrite)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		b := make([]byte, 1<<18)
		if pe.Rank() == 0 {
			b = mine.Local(pe)
		}
		for round := 1; round <= 2*rounds(); round++ {
			n := 1 + (round*7919)%(1<<18)
			fill(b[:n], round)
			if pe.Rank() == 1 {
				if err := shmem.WaitUntil(ctx, pe, sig, shmem.GE, uint64(round)); err != nil {
					return err
				}
				if !bytes.Equal(s.Local(pe)[:n], b[:n]) {
					return wrong("round %d: the signal came before the %d bytes", round, n)
				}
				if err := shmem.Inc(ctx, pe, sig.At(1), 0); err != nil {
					return err
				}
				continue
			}
			value := uint64(1)
			if op == shmem.SignalSet {
				value = uint64(round)
			}
			if err := put(ctx, pe, s, b[:n], sig, value, op, 1); err != nil {
				return err
			}
			if err := shmem.WaitUntil(ctx, pe, sig.At(1), shmem.EQ, uint64(round)); err != nil {
				return err
			}
			if err := pe.Quiet(ctx); err != nil { // b is ours again
				return err
			}
		}
		return nil
	})
}

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
