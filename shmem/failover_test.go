package shmem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// losses are the ways to lose a NIC, its link, or a queue pair of it.
var losses = []struct {
	name string
	lose func(f *soft.Fabric, nic *soft.Device)
}{
	{"kill", func(_ *soft.Fabric, nic *soft.Device) { nic.Kill() }},
	{"link", func(_ *soft.Fabric, nic *soft.Device) { nic.SetLink(false) }},
	{"queue pair", func(f *soft.Fabric, nic *soft.Device) {
		f.Inject(soft.Fault{Kind: soft.FailQP, Device: nic})
	}},
}

// A PE loses one of its two NICs while all of them put, get, reduce and meet in barriers: no call
// fails, and what each reads is what was written.
func TestAProgramOutlivesANIC(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, l := range losses {
			for nic := range 4 { // both of PE 0, and of PE 1
				if testing.Short() && (nic == 1 || nic == 2) {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/nic %d", scheme, l.name, nic), func(t *testing.T) {
					cfg := quick()
					cfg.Transport.QP.Scheme, cfg.Transport.QP.Failover = scheme, true
					cfg.Transport.QP.FragmentSize = 8192
					cfg.RegisterFrom = 64 << 10
					bed := newTestbed(t, shape{3, 2, 2}, cfg)
					var once sync.Once
					neighbours(bed, func() {
						once.Do(func() { l.lose(bed.fabric, bed.fabric.Device(nic)) })
					})
				})
			}
		}
	}
}

// neighbours has each PE write to the next one and read it back, and all compare sums. harm is
// called by PE 0 in the middle.
func neighbours(l *testbed, harm func()) {
	l.t.Helper()
	const size, rounds = 60_000, 14
	block := allocate[byte](l, size)
	signals := allocate[uint64](l, 1)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		n := len(l.world.PEs())
		next, before := (pe.Rank()+1)%n, (pe.Rank()+n-1)%n
		mine, got, want := make([]byte, size), make([]byte, size), make([]byte, size)
		sums := make([]int64, 5)
		for round := range rounds {
			length := size >> (round % 4 * 3)
			fill(mine, round*n+pe.Rank())
			fill(want, round*n+before)
			err := shmem.PutSignal(ctx, pe, block, mine[:length], signals, uint64(round+1),
				shmem.SignalSet, next)
			if err != nil {
				return fmt.Errorf("round %d: put: %w", round, err)
			}
			if round == 8 && pe.Rank() == 0 { // a long one is on its way
				harm()
			}
			if err := shmem.WaitUntil(ctx, pe, signals, shmem.EQ, uint64(round+1)); err != nil {
				return fmt.Errorf("round %d: wait: %w", round, err)
			}
			if !bytes.Equal(block.Local(pe)[:length], want[:length]) {
				return wrong("round %d: PE %d did not get what PE %d has put", round, pe.Rank(), before)
			}
			if err := shmem.Get(ctx, pe, got[:length], block, next); err != nil {
				return fmt.Errorf("round %d: get: %w", round, err)
			}
			if !bytes.Equal(got[:length], mine[:length]) {
				return wrong("round %d: PE %d reads something else than it has put", round, pe.Rank())
			}
			in := []int64{int64(round), int64(pe.Rank()), 1, -int64(round * pe.Rank()), 1 << 40}
			if err := shmem.Reduce(ctx, pe, sums, in, shmem.OpSum); err != nil {
				return fmt.Errorf("round %d: reduce: %w", round, err)
			}
			if sums[0] != int64(n*round) || sums[1] != int64(n*(n-1)/2) || sums[4] != int64(n)<<40 {
				return wrong("round %d: PE %d has sums %v", round, pe.Rank(), sums)
			}
			if err := pe.Barrier(ctx); err != nil {
				return fmt.Errorf("round %d: barrier: %w", round, err)
			}
		}
		return nil
	})
	lost := uint64(0)
	for _, pe := range l.world.PEs() {
		s := pe.Stats().Transport
		if lost += s.RailsLost; s.Failures != 0 {
			l.t.Errorf("PE %d: %d endpoints have failed", pe.Rank(), s.Failures)
		}
	}
	if lost == 0 {
		l.t.Error("no rail was lost")
	}
}

// An atomic whose answer is lost with its queue pair fails alone; one that does not wait has Quiet
// say so. The PE is not lost.
func TestAnAtomicIsLost(t *testing.T) {
	cfg := quick()
	cfg.Transport.QP.Failover = true
	l := newTestbed(t, shape{2, 2, 4}, cfg)
	s := allocate[uint64](l, 2)
	lose := func() {
		l.fabric.Inject(soft.Fault{Kind: soft.FailAfterData,
			Match: func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpAtomicFetchAdd }})
	}
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		var gone *shmem.PEError
		lose()
		_, err := shmem.FetchAdd(ctx, pe, s, 1, 1)
		if !errors.Is(err, transport.ErrAtomicLost) || errors.As(err, &gone) {
			return wrong("fetch add: %w", err)
		}
		if err := pe.Quiet(ctx); err != nil {
			return wrong("quiet, of what the call has said: %w", err)
		}
		lose()
		if err := shmem.Add(ctx, pe, s, 1, 1); err != nil {
			return wrong("add: %w", err)
		}
		pe.Fence() // it must not take the error for itself
		if err := shmem.P(ctx, pe, s.At(1), 7, 1); err != nil {
			return err
		}
		if err := pe.Quiet(ctx); !errors.Is(err, transport.ErrAtomicLost) || errors.As(err, &gone) {
			return wrong("quiet after a lost add: %w", err)
		}
		if old, err := shmem.FetchAdd(ctx, pe, s, 1, 1); err != nil || old != 2 {
			return wrong("the number is %d, %w", old, err)
		}
		return pe.Quiet(ctx)
	})
}
