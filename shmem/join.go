package shmem

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"

	"ibverbx"
	"ibverbx/internal/errwrap"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Join makes this process, or a part of it, one PE among others: it registers the heap, makes an
// endpoint to each PE, and connects to them through cfg.Exchange. It returns when all PEs have
// joined. The domain stays yours: close it after the PE; several PEs may share one. If one PE
// cannot join, none does: the others return an error, too, if Exchange still works.
func Join(ctx context.Context, dom *ibverbx.Domain, cfg Config) (*PE, error) {
	return join(ctx, dom, cfg, false)
}

// join is Join. shared says, on all PEs alike, whether they share fewer processors.
func join(ctx context.Context, dom *ibverbx.Domain, cfg Config, shared bool) (*PE, error) {
	if err := needContext("join", ctx); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	p, err := newPE(dom, cfg)
	if err != nil {
		return nil, opError("join", err)
	}
	p.exchange.shared = shared
	if err := p.connect(ctx); err != nil {
		return nil, errwrap.Join(opError("join", err), p.free())
	}
	if cfg.Background {
		if err := p.worker.Start(); err != nil {
			return nil, errwrap.Join(opError("join", err), p.free())
		}
	}
	return p, nil
}

// newPE makes a PE that is connected to itself only.
func newPE(dom *ibverbx.Domain, cfg Config) (p *PE, err error) {
	p = &PE{cfg: cfg, id: cfg.Rank, layout: newLayout(cfg.Size), dom: dom, sleepStep: defaultSleepStep}
	p.exchange.window = defaultWindow
	p.calls.New = func() any { return &call{} }
	size := uint64(cfg.HeapSize) &^ (blockAlign - 1)
	p.blocks = newBlocks(p.layout.user, size)
	p.peers = make([]peer, cfg.Size)
	p.world = newWorldTeam(p)
	p.in = p.world
	defer func() {
		if err != nil {
			err = errwrap.Join(err, p.free())
		}
	}()
	if p.worker, err = transport.NewWorker(dom, cfg.Transport); err != nil {
		return p, err
	}
	if err = p.worker.Handle(wakeID, woken); err != nil {
		return p, err
	}
	if p.region, err = dom.Alloc(int(p.layout.user+size), verbs.AccessAll); err != nil {
		return p, err
	}
	p.heap = p.region.Bytes()
	p.enlist(p.world)
	for i := range p.peers {
		t := &p.peers[i]
		t.pe, t.id = p, i
		cfg := transport.EndpointConfig{Name: "PE " + strconv.Itoa(i), OnError: t.failed}
		if t.ep, err = p.worker.NewEndpoint(cfg); err != nil {
			return p, err
		}
	}
	itself := transport.EndpointConfig{Name: "PE " + strconv.Itoa(p.id) + " itself"}
	if p.loopback, err = p.worker.NewEndpoint(itself); err != nil {
		return p, err
	}
	if err = transport.Connect(p.peers[p.id].ep, p.loopback); err != nil {
		return p, err
	}
	p.peers[p.id].connected(p.region.Remote(), len(dom.Devices()) > 1)
	return p, nil
}

// connected sets the fields that are known once the endpoint is connected.
func (t *peer) connected(heap ibverbx.RemoteMR, multiNIC bool) {
	limits := t.ep.Limits()
	t.heap, t.multiNIC = heap, multiNIC
	t.short, t.bcopy = limits.PutShort, min(limits.PutBcopy, limits.GetBcopy)
}

// connect exchanges cards with the other PEs, and connects to them.
func (p *PE) connect(ctx context.Context) error {
	if len(p.peers) == 1 {
		return nil
	}
	mine, err := p.row()
	if err != nil {
		return err
	}
	rows, err := p.callExchange(ctx, mine)
	if err != nil {
		return err
	}
	var refusal []byte
	failed := p.connectAll(rows)
	if failed != nil {
		refusal = []byte(failed.Error())
	}
	// No PE goes on before all are connected: a NIC retries only for so long what it sends to a
	// queue pair that is not.
	refusals, err := p.callExchange(ctx, refusal)
	if failed != nil || err != nil {
		return errwrap.Join(failed, err)
	}
	for i, m := range refusals {
		if len(m) != 0 {
			return fmt.Errorf("PE %d cannot connect: %.300s", i, m)
		}
	}
	return nil
}

// connectAll connects to all others by their rows.
func (p *PE) connectAll(rows [][]byte) error {
	for i, b := range rows {
		if i == p.id {
			continue
		}
		if err := p.connectTo(&p.peers[i], b); err != nil {
			return err
		}
	}
	return nil
}

// callExchange is Config.Exchange, and checks what it returns.
func (p *PE) callExchange(ctx context.Context, mine []byte) ([][]byte, error) {
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

// row returns the bytes that this PE passes to Exchange.
func (p *PE) row() ([]byte, error) {
	r := newRow(rowHead{Version: rowVersion, PE: p.id, PEs: len(p.peers), HeapSize: p.cfg.HeapSize,
		Heap: p.region.Remote()})
	for i := range p.peers {
		if i == p.id {
			r.add(nil)
			continue
		}
		card, err := p.peers[i].ep.Card()
		if err != nil {
			return nil, err
		}
		r.add(&card)
	}
	return r.bytes()
}

// connectTo connects to a PE by its row.
func (p *PE) connectTo(t *peer, row []byte) error {
	head, table, err := parseHead(row)
	if err == nil {
		err = p.checkHead(t, head)
	}
	var card transport.Card
	if err == nil {
		err = parseCard(table, len(p.peers), p.id, &card)
	}
	if err != nil {
		return fmt.Errorf("card of %v: %w", t, err)
	}
	if err := t.ep.Connect(card); err != nil {
		return err
	}
	multiNIC := len(p.dom.Devices()) > 1
	for _, r := range card.QP.Rails {
		multiNIC = multiNIC || r.Device != card.QP.Rails[0].Device
	}
	t.connected(head.Heap, multiNIC)
	return nil
}

// checkHead returns an error if the head of a PE's row does not fit.
func (p *PE) checkHead(t *peer, c *rowHead) error {
	switch {
	case c.Version != rowVersion:
		return fmt.Errorf("%w: it speaks version %d, this PE %d", verbs.ErrNotSupported, c.Version,
			rowVersion)
	case c.PE != t.id:
		return fmt.Errorf("%w: it is the card of PE %d: Exchange must return the entries in the order of "+
			"the PEs, and each has a number of its own", verbs.ErrInvalid, c.PE)
	case c.PEs != len(p.peers):
		return fmt.Errorf("%w: it counts %d PEs, this PE %d", verbs.ErrInvalid, c.PEs, len(p.peers))
	case c.HeapSize != p.cfg.HeapSize:
		return fmt.Errorf("%w: its HeapSize is %d, that of this PE %d", verbs.ErrInvalid, c.HeapSize,
			p.cfg.HeapSize)
	case c.Heap.Len() != uint64(len(p.heap)):
		return fmt.Errorf("%w: its heap has %d bytes, that of this PE %d", verbs.ErrInvalid, c.Heap.Len(),
			len(p.heap))
	}
	return nil
}

// A row is what a PE passes to Config.Exchange: everything that the others must know. Each of them
// decodes the head and only the card for itself, since with n PEs there are n² cards.
//
//	head    JSON, and a line feed
//	table   for each PE four bytes, little-endian: where its card ends, from the first card on
//	cards   for each PE the card of the endpoint to it, JSON; none for the PE itself

// rowHead is the head of a row.
type rowHead struct {
	Version  int              `json:"version"` // of rows, the heap's layout and the protocols in it
	PE       int              `json:"pe"`
	PEs      int              `json:"pes"`
	HeapSize int              `json:"heap_size"`
	Heap     ibverbx.RemoteMR `json:"heap"`
}

// rowVersion is the version that this package speaks. Version 1 was a single JSON object; PEs of
// version 2 do not publish how many calls they have entered, those of version 3 carry out
// collective calls by other algorithms, those of version 4 compare neither Close nor the types
// of elements, and those of version 5 have no teams.
const rowVersion = 6

// row is a row that is being written.
type row struct {
	head         rowHead
	table, cards []byte
	err          error // the first error
}

func newRow(head rowHead) *row { return &row{head: head} }

// add adds the card for the next PE, or none.
func (r *row) add(c *transport.Card) {
	if c != nil && r.err == nil {
		var b []byte
		b, r.err = json.Marshal(c)
		r.cards = append(r.cards, b...)
	}
	r.table = binary.LittleEndian.AppendUint32(r.table, uint32(len(r.cards)))
}

func (r *row) bytes() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	b, err := json.Marshal(&r.head)
	b = append(b, '\n')
	return append(append(b, r.table...), r.cards...), err
}

// parseHead decodes the head of a row, and returns the rest.
func parseHead(row []byte) (*rowHead, []byte, error) {
	text, table, _ := bytes.Cut(row, []byte{'\n'})
	head := &rowHead{}
	if err := json.Unmarshal(text, head); err != nil {
		return nil, nil, fmt.Errorf("%w: %.200s", verbs.ErrInvalid, err.Error())
	}
	return head, table, nil
}

// parseCard decodes the card for one of n PEs from the part of a row after its head.
func parseCard(table []byte, n, pe int, card *transport.Card) error {
	if len(table) < 4*n {
		return fmt.Errorf("%w: it ends within its table", verbs.ErrInvalid)
	}
	cards := table[4*n:]
	end := uint64(binary.LittleEndian.Uint32(table[4*pe:]))
	start := uint64(0)
	if pe > 0 {
		start = uint64(binary.LittleEndian.Uint32(table[4*pe-4:]))
	}
	if start >= end || end > uint64(len(cards)) {
		return fmt.Errorf("%w: it has no endpoint for PE %d", verbs.ErrInvalid, pe)
	}
	if err := json.Unmarshal(cards[start:end], card); err != nil {
		return fmt.Errorf("%w: %.200s", verbs.ErrInvalid, err.Error())
	}
	return nil
}
