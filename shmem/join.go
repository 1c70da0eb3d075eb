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
	"ibverbx/internal/peertext"
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
	if err := cfg.validatePlace(); err != nil {
		return nil, opError("join", err)
	}
	p := newPE(dom, cfg)
	p.exchange.shared = shared
	err := p.open()
	if cfg.Size > 1 {
		err = p.connect(ctx, err)
	}
	if err == nil && cfg.Background {
		err = p.worker.Start()
	}
	if err != nil {
		return nil, errwrap.Join(opError("join", err), p.free())
	}
	return p, nil
}

// newPE makes a PE that has no memory and no endpoints.
func newPE(dom *ibverbx.Domain, cfg Config) *PE {
	p := &PE{cfg: cfg, id: cfg.Rank, layout: newLayout(cfg.Size), dom: dom, sleepStep: defaultSleepStep}
	p.exchange.window = defaultWindow
	p.calls.New = func() any { return &call{} }
	p.peers = make([]peer, cfg.Size)
	p.world = newWorldTeam(p)
	return p
}

// open makes the PE's memory and endpoints, and connects it to itself.
func (p *PE) open() (err error) {
	if err = p.cfg.validate(); err != nil {
		return err
	}
	size := uint64(p.cfg.HeapSize) &^ (blockAlign - 1)
	p.blocks = newBlocks(p.layout.user, size)
	if p.worker, err = transport.NewWorker(p.dom, p.cfg.Transport); err != nil {
		return err
	}
	if err = p.worker.Handle(wakeID, woken); err != nil {
		return err
	}
	if p.region, err = p.dom.Alloc(int(p.layout.user+size), verbs.AccessAll); err != nil {
		return err
	}
	p.heap = p.region.Bytes()
	p.enlist(p.world)
	for i := range p.peers {
		t := &p.peers[i]
		t.pe, t.id = p, i
		cfg := transport.EndpointConfig{Name: "PE " + strconv.Itoa(i), OnError: t.failed}
		if t.ep, err = p.worker.NewEndpoint(cfg); err != nil {
			return err
		}
	}
	itself := transport.EndpointConfig{Name: "PE " + strconv.Itoa(p.id) + " itself"}
	if p.loopback, err = p.worker.NewEndpoint(itself); err != nil {
		return err
	}
	if err = transport.Connect(p.peers[p.id].ep, p.loopback); err != nil {
		return err
	}
	p.peers[p.id].connected(p.region.Remote(), len(p.dom.Devices()) > 1)
	return nil
}

// connected sets the fields that are known once the endpoint is connected.
func (t *peer) connected(heap ibverbx.RemoteMR, multiNIC bool) {
	limits := t.ep.Limits()
	t.heap, t.multiNIC = heap, multiNIC
	t.short, t.bcopy = limits.PutShort, min(limits.PutBcopy, limits.GetBcopy)
}

// connect exchanges cards with the other PEs, and connects to them. If this PE has failed before,
// or fails now, it takes part in the rest: the others would wait for it.
func (p *PE) connect(ctx context.Context, failed error) error {
	var mine []byte
	if failed == nil {
		mine, failed = p.row()
	}
	rows, err := p.callExchange(ctx, mine)
	if err != nil {
		return errwrap.Join(failed, err)
	}
	if failed == nil {
		failed = p.checkEntries(rows)
	}
	absent := -1 // the first other PE that has failed before it had a row
	if failed == nil {
		if absent = p.absent(rows); absent >= 0 {
			failed = fmt.Errorf("card of PE %d: %w: it is empty", absent, verbs.ErrInvalid)
		} else {
			failed = p.connectAll(rows)
		}
	}
	var refusal []byte
	if failed != nil {
		refusal = []byte(failed.Error())
	}
	// No PE goes on before all are connected: a NIC retries only for so long what it sends to a
	// queue pair that is not.
	refusals, err := p.callExchange(ctx, refusal)
	switch {
	case err != nil:
		return errwrap.Join(failed, err)
	case absent >= 0 && absent < len(refusals) && len(refusals[absent]) != 0:
		return &refusedError{absent, refusals[absent]}
	case failed != nil:
		return failed
	}
	if err := p.checkEntries(refusals); err != nil {
		return err
	}
	for i, m := range refusals {
		if len(m) != 0 {
			return &refusedError{i, m}
		}
	}
	return nil
}

// absent returns the first other PE without a row; -1 if there is none.
func (p *PE) absent(rows [][]byte) int {
	for i, b := range rows {
		if len(b) == 0 && i != p.id {
			return i
		}
	}
	return -1
}

// refusedError says that another PE cannot join.
type refusedError struct {
	pe  int
	why []byte // its error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("PE %d cannot join: %s", e.pe, peertext.Line(string(e.why), 300))
}

func isRefusal(leaf error) bool {
	_, ok := leaf.(*refusedError) //nolint:errorlint // a leaf
	return ok
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

// callExchange is Config.Exchange.
func (p *PE) callExchange(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := p.cfg.Exchange(ctx, mine)
	if err != nil {
		return nil, fmt.Errorf("exchange: %w", err)
	}
	return all, nil
}

// checkEntries checks what Exchange has returned.
func (p *PE) checkEntries(all [][]byte) error {
	if len(all) != len(p.peers) {
		return fmt.Errorf("exchange: %w: it returned %d entries: there are %d PEs", verbs.ErrInvalid,
			len(all), len(p.peers))
	}
	return nil
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
// of elements, those of version 5 have no teams, and those of version 6 have two slots of a quarter
// of the length in a mailbox.
const rowVersion = 7

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
