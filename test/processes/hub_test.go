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

// transportConfig is the configuration of a member's transport worker, as far as the team says
// anything of it.
func (m *member) transportConfig() transport.Config {
	if m.Zero {
		return transport.Config{}
	}
	cfg := transport.Config{QP: ibverbx.Config{QPsPerDevice: m.QPs, Conn: m.conn()}}
	if m.Hasty {
		cfg.KeepAlive = 200 * time.Millisecond
	}
	return cfg
}

// hub is a transport worker with an endpoint to every other member, and memory that they may use.
type hub struct {
	m      *member
	w      *transport.Worker
	eps    []*transport.Endpoint // by rank; nil for this member
	mem    []byte
	mr     *ibverbx.MR
	theirs []ibverbx.RemoteMR // by rank
	ended  []error            // by rank: what OnError was called with
	calls  []int              // and how often
}

// lookEvery is how often what is not of the worker is looked at.
const lookEvery = time.Millisecond

// hubCard is what members tell each other.
type hubCard struct {
	Endpoints []*transport.Card
	Memory    ibverbx.RemoteMR
}

// newHub makes a worker with handlers and memory.
func newHub(m *member, cfg transport.Config, size int, handlers map[transport.AMID]transport.Handler) (*hub,
	error) {
	h := &hub{m: m, eps: make([]*transport.Endpoint, m.Of), ended: make([]error, m.Of),
		calls: make([]int, m.Of), mem: make([]byte, size)}
	var err error
	if h.w, err = transport.NewWorker(m.dom, cfg); err != nil {
		return nil, err
	}
	if h.mr, err = m.dom.Register(h.mem, verbs.AccessAll); err != nil {
		return nil, errors.Join(err, h.w.Close())
	}
	m.serve = func(ctx context.Context, done func() bool) error { return h.w.WaitFor(ctx, lookEvery, done) }
	for id, f := range handlers {
		if err := h.w.Handle(id, f); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

// connect connects to all others. When it returns they are connected too.
func (h *hub) connect(ctx context.Context) error {
	card := hubCard{Endpoints: make([]*transport.Card, h.m.Of), Memory: h.mr.Remote()}
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
	return h.m.meet(ctx)
}

func (h *hub) failed(ep *transport.Endpoint, err error) {
	rank := ep.Value().(int)
	h.ended[rank] = err
	h.calls[rank]++
}

// do calls a send again, after progress, for as long as it meets ErrNoResource.
func (h *hub) do(ctx context.Context, try func() error) (err error) {
	waited := h.w.WaitFor(ctx, 0, func() bool {
		err = try()
		return !errors.Is(err, transport.ErrNoResource)
	})
	return errors.Join(waited, err)
}

// close gives back what there is; connections that are open are cut.
func (h *hub) close() error { return errors.Join(h.w.Close(), h.mr.Close()) }

// part ends all connections well, once all members have come.
func (h *hub) part(ctx context.Context) error {
	if err := h.m.meet(ctx); err != nil {
		return err
	}
	for _, ep := range h.eps {
		if ep == nil {
			continue
		}
		// The other one may be a little ahead.
		if err := ep.Close(ctx); err != nil && !errors.Is(err, transport.ErrPeerClosed) {
			return err
		}
	}
	return nil
}
