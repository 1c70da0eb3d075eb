package processes_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// transportConfig is the configuration of a member's transport worker, as far as the team sets it.
func (m *member) transportConfig() transport.Config {
	if m.Zero {
		// A process may be stopped for as long as the default timeouts last.
		var cfg transport.Config
		if m.Provider != "soft" {
			cfg.QP.Conn.Patience = ibverbx.PatienceFabric
		}
		return cfg
	}
	cfg := transport.Config{QP: ibverbx.Config{QPsPerDevice: m.QPs, Conn: m.conn()}}
	if m.Hasty {
		cfg.KeepAlive = 200 * time.Millisecond
	}
	return cfg
}

// mesh is a transport worker with an endpoint to every other member, and memory that those may
// access.
type mesh struct {
	m      *member
	w      *transport.Worker
	eps    []*transport.Endpoint // by rank; nil for this member
	mem    []byte
	mr     *ibverbx.MR
	theirs []ibverbx.RemoteMR // by rank
	ended  []error            // by rank: the error of OnError
	calls  []int              // by rank: calls of OnError
}

// lookEvery is how often conditions outside of the worker are checked.
const lookEvery = time.Millisecond

// meshCard is what members send each other to connect.
type meshCard struct {
	Endpoints []*transport.Card
	Memory    ibverbx.RemoteMR
}

// newMesh makes a worker with handlers and memory.
func newMesh(m *member, cfg transport.Config, size int, handlers map[transport.AMID]transport.Handler) (*mesh,
	error) {
	h := &mesh{m: m, eps: make([]*transport.Endpoint, m.Of), ended: make([]error, m.Of),
		calls: make([]int, m.Of)}
	var err error
	if h.w, err = transport.NewWorker(m.dom, cfg); err != nil {
		return nil, err
	}
	if h.mr, err = m.dom.Alloc(size, verbs.AccessAll); err != nil {
		return nil, errors.Join(err, h.w.Close())
	}
	h.mem = h.mr.Bytes()
	m.serve = func(ctx context.Context, done func() bool) error { return h.w.WaitFor(ctx, lookEvery, done) }
	for id, f := range handlers {
		if err := h.w.Handle(id, f); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

// connect connects to all others. When it returns, all members are connected.
func (h *mesh) connect(ctx context.Context) error {
	card := meshCard{Endpoints: make([]*transport.Card, h.m.Of), Memory: h.mr.Remote()}
	for rank := range h.eps {
		if rank == h.m.Rank {
			continue
		}
		ep, err := h.w.NewEndpoint(transport.EndpointConfig{Name: fmt.Sprintf("member %d", rank), Value: rank,
			OnError: h.failed})
		if err != nil {
			return err
		}
		h.eps[rank] = ep
		c, err := ep.Card()
		if err != nil {
			return err
		}
		card.Endpoints[rank] = &c
	}
	cards, err := exchange(ctx, h.m, card)
	if err != nil {
		return err
	}
	h.theirs = make([]ibverbx.RemoteMR, h.m.Of)
	for rank, ep := range h.eps {
		if ep == nil {
			continue
		}
		h.theirs[rank] = cards[rank].Memory
		if err := ep.Connect(*cards[rank].Endpoints[h.m.Rank]); err != nil {
			return err
		}
	}
	return h.m.allConnected(ctx)
}

func (h *mesh) failed(ep *transport.Endpoint, err error) {
	rank := ep.Value().(int)
	h.ended[rank] = err
	h.calls[rank]++
}

// do calls a send, and again after progress for as long as it returns ErrNoResource.
func (h *mesh) do(ctx context.Context, try func() error) (err error) {
	waited := h.w.WaitFor(ctx, 0, func() bool {
		err = try()
		return !errors.Is(err, transport.ErrNoResource)
	})
	return errors.Join(waited, err)
}

// close closes worker and memory. Open connections are cut.
func (h *mesh) close() error { return errors.Join(h.w.Close(), h.mr.Close()) }

// closeAll closes all connections, after all members have met.
func (h *mesh) closeAll(ctx context.Context) error {
	if err := h.m.meet(ctx); err != nil {
		return err
	}
	for _, ep := range h.eps {
		if ep == nil {
			continue
		}
		// The other member may close first.
		if err := ep.Close(ctx); err != nil && !errors.Is(err, transport.ErrPeerClosed) {
			return err
		}
	}
	return nil
}
