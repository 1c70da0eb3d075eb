package shmem_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx/shmem"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Fence orders puts: what is put behind it is never overwritten by what was put before, however
// long one rail lags.
func TestFenceOrdersPuts(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s := allocate[byte](l, 1<<20)
		mine := allocate[byte](l, 1<<20)
		target := s.Local(l.world.PEs()[1])
		l.lag(41, isWrite)
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			src := mine.Local(pe)
			for _, n := range sizes() {
				for round := range rounds() {
					old, mark := byte(2*round+1), byte(2*round+2)
					src[0], src[n-1] = old, old
					if err := shmem.PutNBI(ctx, pe, s, src[:n], 1); err != nil {
						return err
					}
					pe.Fence()
					if err := shmem.P(ctx, pe, s, mark, 1); err != nil {
						return err
					}
					if err := shmem.P(ctx, pe, s.At(n-1), mark, 1); err != nil {
						return err
					}
					if err := pe.Quiet(ctx); err != nil {
						return err
					}
					if target[0] != mark || target[n-1] != mark {
						return wrong("%d bytes, round %d: first %d, last %d, want %d: the put overtook the "+
							"fence", n, round, target[0], target[n-1], mark)
					}
				}
			}
			return nil
		})
	})
}

// The target, which polls on a word, never sees the word before the data.
func TestFenceAsTheTargetSeesIt(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s := allocate[byte](l, 1<<18)
		flag := allocate[uint64](l, 2)
		l.lag(41, isWrite)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			src := make([]byte, 1<<18)
			for round := 1; round <= 4*rounds(); round++ {
				n := 1 + (round*7919)%(1<<18)
				if pe.Rank() == 1 {
					if err := shmem.WaitUntil(ctx, pe, flag, shmem.EQ, uint64(round)); err != nil {
						return err
					}
					fill(src[:n], round)
					if !bytes.Equal(s.Local(pe)[:n], src[:n]) {
						return wrong("round %d: the word came before the %d bytes", round, n)
					}
					if err := shmem.P(ctx, pe, flag.At(1), uint64(round), 0); err != nil {
						return err
					}
					continue
				}
				fill(src[:n], round)
				if err := shmem.Put(ctx, pe, s, src[:n], 1); err != nil {
					return err
				}
				pe.Fence()
				if err := shmem.P(ctx, pe, flag, uint64(round), 1); err != nil {
					return err
				}
				if err := shmem.WaitUntil(ctx, pe, flag.At(1), shmem.EQ, uint64(round)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// Fence orders atomics behind puts, and puts behind atomics.
func TestFenceOrdersAtomics(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s := allocate[uint64](l, 1)
		l.lag(3, func(wr *verbs.SendWR) bool { return isWrite(wr) || wr.Opcode.IsAtomic() })
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			for round := range uint64(4 * rounds()) {
				if err := shmem.P(ctx, pe, s, 100*round, 1); err != nil {
					return err
				}
				pe.Fence()
				if err := shmem.Add(ctx, pe, s, 7, 1); err != nil {
					return err
				}
				pe.Fence()
				if err := shmem.Add(ctx, pe, s, 1, 1); err != nil {
					return err
				}
				if err := pe.Quiet(ctx); err != nil {
					return err
				}
				if got := shmem.Load(l.world.PEs()[1], s); got != 100*round+8 {
					return wrong("round %d: %d, want %d", round, got, 100*round+8)
				}
			}
			return nil
		})
	})
}

// Fence waits for nothing, even without room for an operation: the next call waits; when that
// fails, the fence stays in force.
func TestFenceDoesNotWait(t *testing.T) {
	l := newTestbed(t, shape{2, 2, 1}, shmem.Config{})
	s := allocate[uint64](l, 2)
	slow := l.fabric.Inject(soft.Fault{Kind: soft.Delay, Count: -1, Delay: time.Second, Match: isWrite})
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		var err error
		for err == nil { // until there is no room
			err = shmem.P(ended, pe, s, 1, 1)
		}
		if !errors.Is(err, context.Canceled) {
			return err
		}
		slow.Remove()
		pe.Fence() // if it waited for room, there would be some after it
		if err := shmem.P(ended, pe, s.At(1), 7, 1); !errors.Is(err, context.Canceled) {
			return wrong("put without room: %v", err)
		}
		if err := shmem.P(ctx, pe, s.At(1), 8, 1); err != nil {
			return err
		}
		if err := pe.Quiet(ctx); err != nil {
			return err
		}
		v := make([]uint64, 2)
		if err := shmem.Get(ctx, pe, v, s, 1); err != nil || v[0] != 1 || v[1] != 8 {
			return wrong("%v, %v, want 1 and 8", v, err)
		}
		return nil
	})
}

// Quiet completes what all goroutines have called, and makes it visible to all PEs: a third one
// reads it.
func TestQuietMakesVisibleToAll(t *testing.T) {
	eachShape(t, 3, func(t *testing.T, l *testbed) {
		s := allocate[byte](l, 100000)
		turn := allocate[uint64](l, 1)
		l.lag(5, isWrite)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			b, want := make([]byte, 100000), make([]byte, 100000)
			for round := 1; round <= rounds(); round++ {
				fill(want, round)
				switch pe.Rank() {
				case 0:
					copy(b, want)
					if err := shmem.PutNBI(ctx, pe, s, b, 1); err != nil {
						return err
					}
					if err := pe.Quiet(ctx); err != nil {
						return err
					}
					if err := shmem.P(ctx, pe, turn, uint64(round), 2); err != nil {
						return err
					}
				case 2:
					if err := shmem.WaitUntil(ctx, pe, turn, shmem.EQ, uint64(round)); err != nil {
						return err
					}
					if err := shmem.Get(ctx, pe, b, s, 1); err != nil {
						return err
					}
					if !bytes.Equal(b, want) {
						return wrong("round %d: PE 2 does not see on PE 1 what PE 0 has put", round)
					}
				}
				if err := pe.Sync(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
