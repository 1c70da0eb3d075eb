package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/shmem"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// longWaits are the ways in which PEs wait for one that is late: in a barrier, for pieces of any
// PE, and for pieces of one.
var longWaits = map[string]func(ctx context.Context, pe *shmem.PE) error{
	"barrier": func(ctx context.Context, pe *shmem.PE) error { return pe.Barrier(ctx) },
	"exchange": func(ctx context.Context, pe *shmem.PE) error {
		_, err := shmem.Alloc[byte](ctx, pe, 1)
		return err
	},
	"broadcast": func(ctx context.Context, pe *shmem.PE) error {
		return shmem.Broadcast(ctx, pe, make([]byte, 300000), 0)
	},
}

// TestWaitingSleeps: PEs that wait for long use next to no processor time.
func TestWaitingSleeps(t *testing.T) {
	if guard.Race || testing.Short() {
		t.Skip("it takes its time, and the race detector processor time")
	}
	const late = 400 * time.Millisecond
	const most = 1.0 // per cent of a processor, of each PE
	share := 100.0
	for range 3 { // the least of three: a busy machine adds to it
		l := newTestbed(t, shape{4, 1, 2}, shmem.Config{})
		var used time.Duration
		l.run(func(ctx context.Context, pe *shmem.PE) error {
			if pe.Rank() == 0 {
				start := cpuTime()
				time.Sleep(late)
				used = cpuTime() - start
			}
			return pe.Barrier(ctx)
		})
		share = min(share, 100*used.Seconds()/late.Seconds()/3) // three PEs wait
		if share <= most {
			break
		}
	}
	t.Logf("each PE that waits uses %.2f %% of a processor", share)
	if share > most {
		t.Errorf("each PE that waits uses %.2f %% of a processor", share)
	}
}

// TestSleepersAreWoken: a PE that is late wakes those that wait for it. They sleep for much longer
// than the rest of the call takes.
func TestSleepersAreWoken(t *testing.T) {
	const sleep = 4 * time.Second
	for name, call := range longWaits {
		for _, nics := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/nics=%d", name, nics), func(t *testing.T) {
				t.Parallel()
				// Without keep-alive nothing else wakes them.
				l := newTestbed(t, shape{4, nics, 2},
					shmem.Config{Transport: transport.Config{KeepAlive: -1}})
				pes := l.world.PEs()
				shmem.SetSleepStep(sleep, pes...)
				slow := 0
				for range 4 {
					var start time.Time
					l.run(func(ctx context.Context, pe *shmem.PE) error {
						if pe.Rank() == 0 {
							for shmem.Sleepers(pe) == 0 && ctx.Err() == nil {
								time.Sleep(time.Millisecond)
							}
							time.Sleep(50 * time.Millisecond) // until they sleep for long
							start = time.Now()
						}
						return call(ctx, pe)
					})
					if time.Since(start) > sleep/2 {
						slow++
					}
				}
				woken := uint64(0)
				for _, pe := range pes {
					woken += pe.Stats().Transport.AMReceived
					for shmem.Sleepers(pe) != 0 && l.ctx.Err() == nil {
						time.Sleep(time.Millisecond)
					}
					if n := shmem.Sleepers(pe); n != 0 {
						t.Errorf("%d PEs that wait no more have PE %d wake them", n, pe.Rank())
					}
				}
				if slow > 1 || woken < 4 {
					t.Errorf("%d of 4 calls waited for a PE that slept on; %d were woken", slow, woken)
				}
			})
		}
	}
}

// TestLateClose: PEs that have slept in Close, because one was late, close without an error.
func TestLateClose(t *testing.T) {
	for _, s := range shapes(4) {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			for late := range 4 {
				l := newTestbed(t, s, shmem.Config{HeapSize: 4096})
				pes := l.world.PEs()
				l.world = nil
				errs := make(chan error)
				for i, pe := range pes {
					go func() {
						for i == late && shmem.Sleepers(pe) == 0 && l.ctx.Err() == nil {
							time.Sleep(time.Millisecond)
						}
						if i == late {
							time.Sleep(10 * time.Millisecond) // until they sleep for long
						}
						errs <- pe.Close(l.ctx)
					}()
				}
				for range pes {
					if err := <-errs; err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestCanceledSleeperIsLeftAlone: a PE that cannot take back at the end of a call, whose context
// has ended, that others wake it does so in the next one. Until then each word costs a message.
func TestCanceledSleeperIsLeftAlone(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{Transport: transport.Config{KeepAlive: -1}})
	s := allocate[uint64](l, 1)
	pes := l.world.PEs()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	barrier := make(chan error)
	go func() { barrier <- pes[0].Barrier(ctx) }()
	for shmem.Sleepers(pes[1]) == 0 && l.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}

	// Puts fill the send queue, which the NIC does not empty.
	stuck := l.fabric.Inject(soft.Fault{Kind: soft.StallQP})
	var full error
	for full == nil {
		soon, stop := context.WithTimeout(l.ctx, 20*time.Millisecond)
		full = shmem.P(soon, pes[0], s, 1, 1)
		stop()
	}
	if !errors.Is(full, context.DeadlineExceeded) {
		t.Fatalf("put: %v, want that it finds no room", full)
	}
	cancel()
	if err := <-barrier; !errors.Is(err, context.Canceled) {
		t.Fatalf("barrier: %v, want that it was canceled", err)
	}
	stuck.Remove()
	shmem.ForgetFailure(pes[0]) // had the queue emptied just then, the barrier would have ended well
	if n := shmem.Sleepers(pes[1]); n != 1 {
		t.Fatalf("%d PEs have PE 1 wake them, want that PE 0 could not take it back", n)
	}

	l.run(func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 1 {
			if err := pe.Barrier(ctx); err != nil { // the one that PE 0 has left
				return err
			}
		}
		return pe.Barrier(ctx)
	})
	for end := time.Now().Add(time.Second); shmem.Sleepers(pes[1]) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d PEs that wait no more have PE 1 wake them", shmem.Sleepers(pes[1]))
		}
	}
}
