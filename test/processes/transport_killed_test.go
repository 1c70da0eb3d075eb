package processes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/transport"
)

// Three members send each other messages and puts without end, and one of them is killed. The
// endpoints of the other two to it fail once, with everything outstanding. The connection between
// those two still delivers every message, in order.
func TestTransportMemberKilled(t *testing.T) {
	t.Parallel() // as its shapes do
	eachShape(t, team{program: "killed", members: 3, rounds: 50, victim: true})
}

const (
	victim = 2 // the member that is killed
	burst  = 8 // puts that one completion counts
)

func killed(ctx context.Context, m *member) (err error) {
	boxes := make([]*inbox, m.Of)
	for rank := range boxes {
		boxes[rank] = &inbox{from: rank, to: m.Rank}
	}
	take := func(msg *transport.Message) { boxes[msg.Endpoint().Value().(int)].data(msg) }
	cfg := m.transportConfig()
	cfg.AMBuffers = 8
	h, err := newMesh(m, cfg, 1<<16, map[transport.AMID]transport.Handler{amData: take})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	if err := h.connect(ctx); err != nil {
		return err
	}
	if m.Rank == victim {
		return sendUntilKilled(ctx, h)
	}
	peer := 1 - m.Rank
	sent := 0
	for ; h.ended[victim] == nil || sent < m.Rounds; sent++ {
		if err := h.sendNumbered(ctx, peer, sent); err != nil {
			return fmt.Errorf("message %d to member %d, which lives: %w", sent, peer, err)
		}
		if h.ended[victim] == nil {
			if err := h.putBurst(ctx, victim); err != nil && !errors.Is(err, transport.ErrPeerFailed) {
				return fmt.Errorf("to the member that is killed: %w", err)
			}
		}
	}
	if err := h.checkDead(ctx); err != nil {
		return err
	}
	// The live members go on.
	for range m.Rounds {
		if err := h.sendNumbered(ctx, peer, sent); err != nil {
			return fmt.Errorf("message %d to member %d, afterwards: %w", sent, peer, err)
		}
		sent++
	}
	all, err := exchange(ctx, m, sent)
	if err != nil {
		return err
	}
	in := boxes[peer]
	if err := h.w.WaitFor(ctx, 0, func() bool { return in.next == all[peer] || in.err != nil }); err != nil {
		return fmt.Errorf("%d of %d messages have come: %w", in.next, all[peer], err)
	}
	in.release()
	boxes[victim].release()
	if err := errors.Join(in.err, boxes[victim].err); err != nil {
		return err
	}
	return h.closeAll(ctx)
}

// sendUntilKilled sends to all others until it is killed.
func sendUntilKilled(ctx context.Context, h *mesh) error {
	for n := 0; ; n++ {
		for rank, ep := range h.eps {
			if ep == nil {
				continue
			}
			if err := errors.Join(h.sendNumbered(ctx, rank, n), h.putBurst(ctx, rank)); err != nil {
				return err
			}
		}
		if n == h.m.Rounds {
			h.m.die()
		}
	}
}

// putBurst puts several pieces that share a completion and waits for it.
func (h *mesh) putBurst(ctx context.Context, rank int) error {
	const size = 6000
	comp := transport.NewCompletion(burst, nil)
	for range burst {
		if err := h.do(ctx, func() error {
			_, err := h.eps[rank].PutZcopy(comp, h.theirs[rank].Slice(1<<15, size), h.mr.Slice(1<<15, size))
			return err
		}); err != nil {
			comp.Done(err) // it was not started
		}
	}
	return h.w.Wait(ctx, comp)
}

// checkDead checks the error of the endpoint to the dead member.
func (h *mesh) checkDead(ctx context.Context) error {
	err, ep := h.ended[victim], h.eps[victim]
	var named *transport.EndpointError
	if !errors.Is(err, transport.ErrPeerFailed) || !errors.As(err, &named) || named.Peer != ep.Name() {
		return fmt.Errorf("OnError said %w; want an EndpointError of %s that is ErrPeerFailed", err,
			ep.Name())
	}
	var story *ibverbx.FailedError
	if !errors.As(err, &story) && h.m.QPs != 1 {
		return fmt.Errorf("OnError said %w; want an ibverbx.FailedError beneath", err)
	}
	if err := ep.AMShort(amData, nil, nil); !errors.Is(err, transport.ErrPeerFailed) {
		return fmt.Errorf("a message to the dead: %w, want ErrPeerFailed", err)
	}
	if err := ep.Close(ctx); err != nil {
		return fmt.Errorf("close of the endpoint to the dead: %w", err)
	}
	if h.calls[victim] != 1 {
		return fmt.Errorf("OnError was called %d times, want once", h.calls[victim])
	}
	h.eps[victim] = nil
	return nil
}
