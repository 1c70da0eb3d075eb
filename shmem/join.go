package shmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// card is what a PE tells all others by Config.Exchange, as JSON.
type card struct {
	Version  int              `json:"version"` // of the heap's layout and the protocols in it: 1
	PE       int              `json:"pe"`
	PEs      int              `json:"pes"`
	HeapSize int              `json:"heapSize"`
	Heap     ibverbx.RemoteMR `json:"heap"`
	// Endpoints are the cards of the endpoints to each PE; that to itself is connected already and
	// has none.
	Endpoints []*transport.Card `json:"endpoints"`
}

const cardVersion = 1

// Join makes this process, or a part of it, one PE among others: it registers the heap, makes an
// endpoint to each PE, and connects to them with the help of cfg.Exchange. It returns when all PEs
// have joined. The domain stays the caller's, who closes it after the PE; several PEs may share
// one. When one PE cannot join, none does: the others return an error too, as far as Exchange can
// tell them.
func Join(ctx context.Context, dom *ibverbx.Domain, cfg Config) (*PE, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := newPE(dom, cfg)
	if err != nil {
		return nil, fails("join", err)
	}
	if err := p.connect(ctx); err != nil {
		return nil, errors.Join(fails("join", err), p.free())
	}
	if cfg.Background {
		if err := p.worker.Start(); err != nil {
			return nil, errors.Join(fails("join", err), p.free())
		}
	}
	return p, nil
}

// newPE makes a PE that is connected to itself only.
func newPE(dom *ibverbx.Domain, cfg Config) (p *PE, err error) {
	p = &PE{cfg: cfg, id: cfg.PE, layout: newLayout(cfg.PEs), dom: dom}
	p.calls.New = func() any { return &call{} }
	size := uint64(cfg.HeapSize) &^ (blockAlign - 1)
	p.heap = newHeap(int(p.layout.user + size))
	p.blocks = newBlocks(p.layout.user, size)
	p.peers = make([]peer, cfg.PEs)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.free())
		}
	}()
	if p.worker, err = transport.NewWorker(dom, cfg.Transport); err != nil {
		return p, err
	}
	if p.region, err = dom.Register(p.heap, verbs.AccessAll); err != nil {
		return p, err
	}
	for i := range p.peers {
		t := &p.peers[i]
		t.pe, t.id = p, i
		if t.ep, err = p.worker.NewEndpoint(transport.EndpointConfig{Name: "PE " + strconv.Itoa(i),
			OnError: t.failed}); err != nil {
			return p, err
		}
	}
	if p.back, err = p.worker.NewEndpoint(
		transport.EndpointConfig{Name: "PE " + strconv.Itoa(p.id) + " itself"}); err != nil {
		return p, err
	}
	if err = transport.Connect(p.peers[p.id].ep, p.back); err != nil {
		return p, err
	}
	p.peers[p.id].ready(p.region.Remote(), len(dom.Devices()) > 1)
	return p, nil
}

// ready takes in what is known once the endpoint is connected.
func (t *peer) ready(heap ibverbx.RemoteMR, spread bool) {
	limits := t.ep.Limits()
	t.heap, t.short, t.bcopy, t.spread = heap, limits.PutShort, min(limits.PutBcopy, limits.GetBcopy), spread
}

// connect tells the others of this PE, and connects to them.
func (p *PE) connect(ctx context.Context) error {
	if len(p.peers) == 1 {
		return nil
	}
	mine, err := p.card()
	if err != nil {
		return err
	}
	cards, err := p.exchange(ctx, mine)
	if err != nil {
		return err
	}
	var mishap []byte
	failed := p.connectAll(cards)
	if failed != nil {
		mishap = []byte(failed.Error())
	}
	// Nobody goes ahead before everybody listens: a NIC repeats what it sends to a queue pair that
	// is not connected only for so long.
	mishaps, err := p.exchange(ctx, mishap)
	if failed != nil || err != nil {
		return errors.Join(failed, err)
	}
	for i, m := range mishaps {
		if len(m) != 0 {
			return fmt.Errorf("PE %d cannot: %.300s", i, m)
		}
	}
	return nil
}

// connectAll connects to all others by their cards.
func (p *PE) connectAll(cards [][]byte) error {
	for i, b := range cards {
		if i == p.id {
			continue
		}
		if err := p.connectTo(&p.peers[i], b); err != nil {
			return err
		}
	}
	return nil
}

func (p *PE) exchange(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := p.cfg.Exchange(ctx, mine)
	if err != nil {
		return nil, fmt.Errorf("exchange: %w", err)
	}
	if len(all) != len(p.peers) {
		return nil, fmt.Errorf("exchange: %w: it returned %d entries: there are %d PEs", verbs.ErrInvalid,
			len(all), len(p.peers))
	}
	return all, nil
}

func (p *PE) card() ([]byte, error) {
	c := card{
		Version: cardVersion, PE: p.id, PEs: len(p.peers), HeapSize: p.cfg.HeapSize, Heap: p.region.Remote(),
		Endpoints: make([]*transport.Card, len(p.peers)),
	}
	for i := range p.peers {
		if i == p.id {
			continue
		}
		e, err := p.peers[i].ep.Card()
		if err != nil {
			return nil, err
		}
		c.Endpoints[i] = &e
	}
	return json.Marshal(c)
}

// connectTo connects to the PE whose card this is.
func (p *PE) connectTo(t *peer, b []byte) error {
	var c card
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("card of %v: %w: %.200s", t, verbs.ErrInvalid, err.Error())
	}
	if err := p.checkCard(t, &c); err != nil {
		return fmt.Errorf("card of %v: %w", t, err)
	}
	if err := t.ep.Connect(*c.Endpoints[p.id]); err != nil {
		return err
	}
	spread := len(p.dom.Devices()) > 1
	for _, r := range c.Endpoints[p.id].QP.Rails {
		spread = spread || r.Device != c.Endpoints[p.id].QP.Rails[0].Device
	}
	t.ready(c.Heap, spread)
	return nil
}

// checkCard says in what a PE's card does not fit.
func (p *PE) checkCard(t *peer, c *card) error {
	switch {
	case c.Version != cardVersion:
		return fmt.Errorf("%w: it speaks version %d, this PE %d", verbs.ErrNotSupported, c.Version,
			cardVersion)
	case c.PE != t.id:
		return fmt.Errorf("%w: it is of PE %d: Exchange must return the entries in the order of the PEs, "+
			"and each has a number of its own",
			verbs.ErrInvalid, c.PE)
	case c.PEs != len(p.peers):
		return fmt.Errorf("%w: it counts %d PEs, this PE %d", verbs.ErrInvalid, c.PEs, len(p.peers))
	case c.HeapSize != p.cfg.HeapSize:
		return fmt.Errorf("%w: its HeapSize is %d, that of this PE %d", verbs.ErrInvalid, c.HeapSize,
			p.cfg.HeapSize)
	case c.Heap.Len() != uint64(len(p.heap)):
		return fmt.Errorf("%w: its heap has %d bytes, that of this PE %d", verbs.ErrInvalid, c.Heap.Len(),
			len(p.heap))
	case len(c.Endpoints) != len(p.peers) || c.Endpoints[p.id] == nil:
		return fmt.Errorf("%w: it has no endpoint for PE %d", verbs.ErrInvalid, p.id)
	}
	return nil
}
