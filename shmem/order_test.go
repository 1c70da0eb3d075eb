package shmem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/shmem"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// rounds is how often an order is tried for each size: less under the race detector.
func rounds() int {
	if testing.Short() {
		return 5
	}
	return 50
}

//  2. Fence orders puts: what is put behind it is never overwritten by what was put before, however
//     long one rail lags behind.
func TestFenceOrdersPuts(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *lab) {
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

// 2. The target, which polls on a word, never sees the word before the data.
func TestFenceAsTheTargetSeesIt(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *lab) {
		s := allocate[byte](l, 1<<18)
		flag := allocate[uint64](l, 2)
		l.lag(41, isWrite)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			src := make([]byte, 1<<18)
			for round := 1; round <= 4*rounds(); round++ {
				n := 1 + (round*7919)%(1<<18)
				if pe.ID() == 1 {
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

// 2. Fence orders atomics behind puts, and puts behind atomics.
func TestFenceOrdersAtomics(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *lab) {
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

//  2. Quiet completes what every goroutine has called, and makes it visible to all PEs: a third one
//     reads it.
func TestQuietMakesVisibleToAll(t *testing.T) {
	eachShape(t, 3, func(t *testing.T, l *lab) {
		s := allocate[byte](l, 100000)
		turn := allocate[uint64](l, 1)
		l.lag(5, isWrite)
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			b, want := make([]byte, 100000), make([]byte, 100000)
			for round := 1; round <= rounds(); round++ {
				fill(want, round)
				switch pe.ID() {
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

// 3. Whoever sees the signal sees all the data, over any number of rails.
func TestPutSignal(t *testing.T) {
	for _, nbi := range []bool{false, true} {
		for _, op := range []shmem.SignalOp{shmem.SignalSet, shmem.SignalAdd} {
			t.Run(fmt.Sprintf("nbi=%v/add=%v", nbi, op == shmem.SignalAdd), func(t *testing.T) {
				eachShape(t, 2, func(t *testing.T, l *lab) { putSignal(l, nbi, op) })
			})
		}
	}
}

func putSignal(l *lab, nbi bool, op shmem.SignalOp) {
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
		if pe.ID() == 0 {
			b = mine.Local(pe)
		}
		for round := 1; round <= 2*rounds(); round++ {
			n := 1 + (round*7919)%(1<<18)
			fill(b[:n], round)
			if pe.ID() == 1 {
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

// 3. Other goroutines that put to the same PE do not come between data and signal.
func TestPutSignalAmongOtherPuts(t *testing.T) {
	l := newLab(t, shape{2, 2, 2}, shmem.Config{})
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
						if pe.ID() == 0 {
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

// With Config.Background a signal behind a fence leaves without a further call of its PE.
func TestBackground(t *testing.T) {
	l := newLab(t, shape{2, 1, 4}, shmem.Config{Background: true})
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

// Fence waits for nothing, though there is no room for anything: the next call does, tells when it
// cannot, and leaves the fence in force.
func TestFenceDoesNotWait(t *testing.T) {
	l := newLab(t, shape{2, 2, 1}, shmem.Config{})
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
