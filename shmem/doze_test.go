package shmem_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"ibverbx/shmem"
	"ibverbx/transport"
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
	if raceEnabled || testing.Short() {
		t.Skip("it takes a second, and the race detector processor time")
	}
	const late = time.Second
	l := newTestbed(t, shape{4, 1, 2}, shmem.Config{})
	var used time.Duration
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		if pe.ID() == 0 {
			start := cpuTime()
			time.Sleep(late)
			used = cpuTime() - start
		}
		return pe.Barrier(ctx)
	})
	share := 100 * used.Seconds() / late.Seconds() / 3 // three PEs wait
	t.Logf("each PE that waits uses %.2f %% of a processor", share)
	if share > 0.7 {
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
						if pe.ID() == 0 {
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
						t.Errorf("%d PEs that wait no more have PE %d wake them", n, pe.ID())
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
