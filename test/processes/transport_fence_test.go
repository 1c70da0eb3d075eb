package processes_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/transport"
)

// One member puts a block over all rails and another by bcopy, then calls Fence, and then puts a
// flag. The other member only polls the flag in its memory. When it sees the flag, both blocks are
// whole.
func TestTransportFence(t *testing.T) {
	eachShape(t, team{program: "fence", members: 2, rounds: 40})
}

const (
	fenceBlock = 100_000
	fenceSmall = 3000
	fenceFlag  = (fenceBlock + fenceSmall + 7) &^ 7 // where the flag is
	// pollEvery is how often a word in memory is read: what others write there raises no event.
	pollEvery = 100 * time.Microsecond
)

func fence(ctx context.Context, m *member) (err error) {
	cfg := m.transportConfig()
	cfg.QP.FragmentSize = 8 << 10
	h, err := newMesh(m, cfg, fenceFlag+8, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := h.connect(ctx); err != nil {
		return err
	}
	// in the memory of the writer: the last round that the reader has checked
	flag := word64(h.mem, fenceFlag)
	for n := 1; n <= m.Rounds; n++ {
		if m.Rank == 0 {
			if err := h.putAndRaise(ctx, n); err != nil {
				return fmt.Errorf("round %d: %w", n, err)
			}
		}
		if err := h.w.WaitFor(ctx, pollEvery,
			func() bool { return atomic.LoadUint64(flag) >= uint64(n) }); err != nil {
			return fmt.Errorf("round %d: the flag is %d: %w", n, atomic.LoadUint64(flag), err)
		}
		if m.Rank == 0 {
			continue
		}
		if err := errors.Join(verify(h.mem[:fenceBlock], seed(0, 1, n)),
			verify(h.mem[fenceBlock:fenceBlock+fenceSmall], seed(0, 2, n))); err != nil {
			return fmt.Errorf("round %d: the flag came before the data: %w", n, err)
		}
		if err := h.raise(ctx, n); err != nil {
			return err
		}
	}
	return h.closeAll(ctx)
}

// putAndRaise is one round of the writer.
func (h *mesh) putAndRaise(ctx context.Context, n int) error {
	ep := h.eps[1]
	fill(h.mem[:fenceBlock], seed(0, 1, n))
	comp := transport.NewCompletion(1, nil)
	if err := h.do(ctx, func() error {
		_, err := ep.PutZcopy(comp, h.theirs[1].Slice(0, fenceBlock), h.mr.Slice(0, fenceBlock))
		return err
	}); err != nil {
		return err
	}
	if err := h.do(ctx, func() error {
		_, err := ep.PutBcopy(func(dst []byte) int {
			fill(dst[:fenceSmall], seed(0, 2, n))
			return fenceSmall
		}, h.theirs[1].Slice(fenceBlock, fenceSmall))
		return err
	}); err != nil {
		return err
	}
	ep.Fence()
	if err := h.raise(ctx, n); err != nil {
		return err
	}
	return h.w.Wait(ctx, comp)
}

// raise writes a round's number into the flag of the other member.
func (h *mesh) raise(ctx context.Context, n int) error {
	var word [8]byte
	*word64(word[:], 0) = uint64(n)
	peer := 1 - h.m.Rank
	return h.do(ctx, func() error {
		return h.eps[peer].PutShort(word[:],
			h.theirs[peer].Slice(fenceFlag, 8))
	})
}
