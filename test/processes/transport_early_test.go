package processes_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"ibverbx/transport"
)

// What a member sends before the other one has connected is repeated by its NIC, and arrives after
// that.
func TestTransportSendBeforeThePeerConnects(t *testing.T) {
	eachShape(t, team{program: "early", members: 2})
}

func early(ctx context.Context, m *member) (err error) {
	peer := 1 - m.Rank
	in := &inbox{from: peer, to: m.Rank}
	h, err := newMesh(m, m.transportConfig(), 1<<16, map[transport.AMID]transport.Handler{amData: in.data})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	ep, err := h.w.NewEndpoint(transport.EndpointConfig{OnError: h.failed, Value: peer})
	if err != nil {
		return err
	}
	h.eps[peer] = ep
	card, err := ep.Card()
	if err != nil {
		return err
	}
	cards, err := exchange(ctx, m, meshCard{Endpoints: []*transport.Card{&card}, Memory: h.mr.Remote()})
	if err != nil {
		return err
	}
	flag := word64(h.mem, 8) // in the memory of member 1
	if m.Rank == 1 {
		if err := m.meet(ctx); err != nil { // the other member has sent
			return err
		}
		if err := ep.Connect(*cards[peer].Endpoints[0]); err != nil {
			return err
		}
		if err := h.w.WaitFor(ctx, pollEvery, func() bool {
			return in.next == 2 &&
				atomic.LoadUint64(flag) != 0
		}); err != nil {
			return err
		}
		in.release()
		if err := errors.Join(in.err, verify(h.mem[8:16], seed(0, 1, 0))); err != nil {
			return err
		}
		return h.closeAll(ctx)
	}
	if err := ep.Connect(*cards[peer].Endpoints[0]); err != nil {
		return err
	}
	for n := range 2 {
		if err := h.sendNumbered(ctx, peer, n); err != nil { // short and bcopy
			return err
		}
	}
	if err := ep.PutShort(filled(8, seed(0, 1, 0)), cards[peer].Memory.Slice(8, 8)); err != nil {
		return err
	}
	return errors.Join(m.meet(ctx), h.closeAll(ctx))
}
