package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx/shmem"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// quick is a configuration in which connections give up soon, and waiting PEs check each other
// often.
func quick() shmem.Config {
	cfg := shmem.Config{Transport: transport.Config{KeepAlive: 5 * time.Millisecond}}
	cfg.Transport.QP.Conn.Timeout = 8 // 1 ms
	cfg.Transport.QP.Conn.RetryCount = 2
	return cfg
}

// died returns an error unless err says that PE 3 has failed.
func died(err error) error {
	var gone *shmem.PEError
	if !errors.As(err, &gone) || gone.PE != 3 || !errors.Is(err, transport.ErrPeerFailed) ||
		!strings.Contains(err.Error(), "PE 3") {
		return wrong("%v, want that PE 3 failed", err)
	}
	return nil
}

// When a PE dies, every call in which others wait returns an error that says which PE it was.
func TestAPEDiesWhileOthersWait(t *testing.T) {
	waits := map[string]func(ctx context.Context, pe *shmem.PE, s shmem.Sym[uint64]) error{
		"barrier": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return pe.Barrier(ctx)
		},
		"sync": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error { return pe.Sync(ctx) },
		"wait until": func(ctx context.Context, pe *shmem.PE, s shmem.Sym[uint64]) error {
			return shmem.WaitUntil(ctx, pe, s, shmem.NE, 0)
		},
		"reduce": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return shmem.Reduce(ctx, pe, make([]int64, 9), make([]int64, 9), shmem.OpSum)
		},
		"broadcast": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return shmem.Broadcast(ctx, pe, make([]int64, 9), 3)
		},
		"all-gather": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			return shmem.AllGather(ctx, pe, make([]int64, 40), make([]int64, 8))
		},
		"alloc": func(ctx context.Context, pe *shmem.PE, _ shmem.Sym[uint64]) error {
			_, err := shmem.Alloc[byte](ctx, pe, 10)
			return err
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			l := newTestbed(t, shape{5, 1, 2}, quick())
			l.mayFail = true
			s := allocate[uint64](l, 1)
			l.run(func(ctx context.Context, pe *shmem.PE) error {
				if pe.Rank() == 3 {
					l.fabric.Device(3).Kill()
					return nil
				}
				if err := died(wait(ctx, pe, s)); err != nil {
					return fmt.Errorf("PE %d: %w", pe.Rank(), err)
				}
				return nil
			})
		})
	}
}

// Puts, gets and atomics on a PE that has died fail; those among the other PEs go on.
func TestOperationsAfterAPEDied(t *testing.T) {
	l := newTestbed(t, shape{5, 1, 2}, quick())
	l.mayFail = true
	s := allocate[uint64](l, 8)
	l.fabric.Device(3).Kill()
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		v := make([]uint64, 8)
		if err := died(shmem.Get(ctx, pe, v, s, 3)); err != nil {
			return err
		}
		if err := died(pe.Quiet(ctx)); err != nil {
			return err
		}
		for _, to := range []int{0, 1, 2, 4} {
			if err := shmem.P(ctx, pe, s, uint64(to+1), to); err != nil {
				return err
			}
			pe.Fence()
			if old, err := shmem.FetchAdd(ctx, pe, s, 1, to); err != nil || old != uint64(to+1) {
				return wrong("PE %d: %d, %v", to, old, err)
			}
		}
		return nil
	})
}

// Calls of the dead PE itself return, too.
func TestTheDeadPEDoesNotHang(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 2}, quick())
	l.mayFail = true
	s := allocate[uint64](l, 1)
	l.fabric.Device(0).Kill()
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		err := shmem.WaitUntil(ctx, pe, s, shmem.EQ, 1)
		if err == nil || !errors.Is(err, transport.ErrPeerFailed) {
			return wrong("%v, want that the others cannot be reached", err)
		}
		if err := pe.Barrier(ctx); err == nil {
			return errors.New("barrier of a dead PE ended well")
		}
		return nil
	})
}

// When a PE closes before the others, calls that wait for it return an error.
func TestAPEClosesEarly(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 2}, quick())
	l.mayFail = true
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 2 {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if err := pe.Close(ended); !errors.Is(err, context.Canceled) {
				return wrong("close: %v", err)
			}
			return nil
		}
		var gone *shmem.PEError
		if err := pe.Barrier(ctx); !errors.As(err, &gone) || gone.PE != 2 {
			return wrong("PE %d: %v, want that PE 2 has closed", pe.Rank(), err)
		}
		return nil
	})
}

// A fault on a connection in the middle of a large put is reported, and other connections go on.
func TestAPutThatFails(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 4}, quick())
	l.mayFail = true
	s := allocate[byte](l, 1<<20)
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		defer l.lag(1, isWrite).Remove()
		big := make([]byte, 1<<20)
		l.fabric.Device(1).SetLink(false)
		err := shmem.Put(ctx, pe, s, big, 1)
		if err == nil {
			err = pe.Quiet(ctx)
		}
		var gone *shmem.PEError
		if !errors.As(err, &gone) || gone.PE != 1 {
			return wrong("%v, want that PE 1 failed", err)
		}
		if err := shmem.Put(ctx, pe, s, big, 2); err != nil {
			return err
		}
		return shmem.Get(ctx, pe, big, s, 2)
	})
}

// When ctx ends an operation goes on; its memory is free after Quiet, and nothing leaks.
func TestAContextEndsDuringAPut(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 2}, shmem.Config{})
	s := allocate[byte](l, 1<<20)
	stall := l.lag(1, func(wr *verbs.SendWR) bool { return isWrite(wr) || wr.Opcode == verbs.OpRDMARead })
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		defer stall.Remove()
		big := make([]byte, 1<<20)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := shmem.Put(ended, pe, s, big, 1); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		if err := shmem.Get(ended, pe, big, s, 1); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return pe.Quiet(ctx)
	})
}
