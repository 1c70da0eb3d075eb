package processes_test

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/tagged"
)

// tagMesh is a tagged worker with an endpoint to every other member.
type tagMesh struct {
	m     *member
	w     *tagged.Worker
	eps   []*tagged.Endpoint // by rank; nil for this member
	ended []error            // by rank: the error of OnError
	calls []int              // by rank: calls of OnError
}

// newTagMesh makes a worker and connects it to all others. When it returns, all members are
// connected.
func newTagMesh(ctx context.Context, m *member, cfg tagged.Config) (*tagMesh, error) {
	o := &tagMesh{m: m, eps: make([]*tagged.Endpoint, m.Of), ended: make([]error, m.Of),
		calls: make([]int, m.Of)}
	cfg.Transport = m.transportConfig()
	var err error
	if o.w, err = tagged.NewWorker(m.dom, cfg); err != nil {
		return nil, err
	}
	m.serve = func(ctx context.Context, done func() bool) error {
		return o.w.Transport().WaitFor(ctx, lookEvery, done)
	}
	if err := o.connect(ctx); err != nil {
		return nil, errors.Join(err, o.w.Close())
	}
	return o, nil
}

func (o *tagMesh) connect(ctx context.Context) error {
	mine := make([]*tagged.Card, o.m.Of)
	for rank := range o.eps {
		if rank == o.m.Rank {
			continue
		}
		ep, err := o.w.NewEndpoint(tagged.EndpointConfig{Name: fmt.Sprintf("member %d", rank), Value: rank,
			OnError: o.failed})
		if err != nil {
			return err
		}
		c, err := ep.Card()
		if err != nil {
			return err
		}
		o.eps[rank], mine[rank] = ep, &c
	}
	cards, err := exchange(ctx, o.m, mine)
	if err != nil {
		return err
	}
	for rank, ep := range o.eps {
		if ep == nil {
			continue
		}
		if err := ep.Connect(*cards[rank][o.m.Rank]); err != nil {
			return err
		}
	}
	return o.m.allConnected(ctx)
}

func (o *tagMesh) failed(ep *tagged.Endpoint, err error) {
	rank := ep.Value().(int)
	o.ended[rank] = err
	o.calls[rank]++
}

// wait waits for requests, of which nil are done, and frees them.
func (o *tagMesh) wait(ctx context.Context, reqs ...*tagged.Request) error {
	for i, req := range reqs {
		if req == nil {
			continue
		}
		if err := req.Wait(ctx); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		req.Free()
	}
	return nil
}

// closeAll closes all connections, after all members have met, and checks that nothing is left.
func (o *tagMesh) closeAll(ctx context.Context) error {
	if err := o.m.meet(ctx); err != nil {
		return err
	}
	for _, ep := range o.eps {
		if ep == nil {
			continue
		}
		if err := ep.Close(ctx); err != nil && !errors.Is(err, tagged.ErrPeerClosed) {
			return err
		}
	}
	if s := o.w.Stats(); s.Requests != 0 || s.Unexpected != 0 || s.UnexpectedBytes != 0 || s.Leaked != 0 ||
		s.Endpoints != 0 {
		return fmt.Errorf("everything has ended, and the worker holds %+v", s)
	}
	return nil
}
