package shmem

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// PE is one processing element: a part of this process with a symmetric heap of its own. See the
// package's rules for which calls may be made from several goroutines.
type PE struct {
	cfg    Config
	id     int
	layout layout
	dom    *ibverbx.Domain
	worker *transport.Worker
	heap   []byte // layout.user bytes of the package's own, then the user's
	region *ibverbx.MR
	peers  []peer
	back   *transport.Endpoint // the far end of this PE's connection to itself
	calls  sync.Pool

	// Collective calls; guarded by collective.
	collective sync.Mutex
	blocks     *blocks
	syncs      atomic.Uint64 // barriers so far
	record     record

	fences  atomic.Uint64           // calls of Fence so far
	gone    atomic.Pointer[PEError] // the first other PE that went
	closing atomic.Bool
	closed  atomic.Bool

	mu      sync.Mutex
	usage   usage
	orphans []*ibverbx.MR // registered for calls whose ctx has ended
}

// peer is a PE as another one reaches it, itself included.
type peer struct {
	pe     *PE
	id     int
	ep     *transport.Endpoint
	heap   ibverbx.RemoteMR
	short  int                     // longest short put, bytes
	bcopy  int                     // longest put or get through a registered buffer, bytes
	spread bool                    // its memory is written by several NICs
	fenced atomic.Uint64           // as many of PE.fences are in force
	gone   atomic.Pointer[PEError] // why it does not answer any more

	// The mailboxes; guarded by PE.collective.
	mailed, received uint64 // pieces so far
	out, in          int    // pieces of a trade that have still to go, and to come
	asked            uint64 // the last call about which this PE has asked that one
}

// ID is this PE's number.
func (p *PE) ID() int { return p.id }

// PEs is how many there are.
func (p *PE) PEs() int { return len(p.peers) }

// Config is the configuration in force.
func (p *PE) Config() Config { return p.cfg }

// Stats is a snapshot of a PE.
type Stats struct {
	HeapSize   int             `json:"heap_size"` // bytes
	HeapUsed   int             `json:"heap_used"` // bytes in blocks
	HeapBlocks int             `json:"heap_blocks"`
	Barriers   uint64          `json:"barriers"`
	Transport  transport.Stats `json:"transport"`
}

// usage is what Stats tells of the heap.
type usage struct{ bytes, blocks int }

// noteUsage keeps for Stats how full the heap is, so that Stats needs not wait for a collective
// call that is under way.
func (p *PE) noteUsage() {
	p.mu.Lock()
	p.usage = usage{bytes: int(p.blocks.used), blocks: len(p.blocks.taken)}
	p.mu.Unlock()
}

// Stats takes a snapshot.
func (p *PE) Stats() Stats {
	p.mu.Lock()
	use := p.usage
	p.mu.Unlock()
	return Stats{
		HeapSize: p.cfg.HeapSize, HeapUsed: use.bytes, HeapBlocks: use.blocks, Barriers: p.syncs.Load(),
		Transport: p.worker.Stats(),
	}
}

// Progress makes progress without waiting; it returns how much it did. A program that computes for
// long between its calls may call it, to have what waits behind a fence leave.
func (p *PE) Progress() int { return p.worker.Progress() }

// target checks where an operation goes.
func (p *PE) target(op string, to int, off uint64, bytes int) (*peer, error) {
	if uint(to) >= uint(len(p.peers)) {
		return nil, invalid(op, "PE %d: the numbers are 0 to %d", to, len(p.peers)-1)
	}
	if off < p.layout.user || bytes > len(p.heap) || off > uint64(len(p.heap)-bytes) {
		if err := p.inHeap(off, bytes); err != nil {
			return nil, fails(op, err)
		}
	}
	return &p.peers[to], nil
}

// inHeap says what is wrong with a piece of symmetric memory.
func (p *PE) inHeap(off uint64, bytes int) error {
	if bytes == 0 || off >= p.layout.user && bytes <= len(p.heap) && off <= uint64(len(p.heap)-bytes) {
		return nil
	}
	return fmt.Errorf("%w: %d bytes of symmetric memory at offset %d: the heap of this PE has offsets %d "+
		"to %d: it comes from an Alloc of other PEs",
		verbs.ErrInvalid, bytes, off, p.layout.user, len(p.heap))
}

// call is what an operation needs that outlives the goroutine's stack. It goes back to the pool
// once it is done with for sure.
type call struct {
	comp transport.Completion
	old  uint64
	word [1]uint64
}

func (p *PE) take() *call      { return p.calls.Get().(*call) }
func (p *PE) give(c *call)     { p.calls.Put(c) }
func (t *peer) String() string { return fmt.Sprintf("PE %d", t.id) }

// failed is called inside progress when the PE's endpoint serves no more.
func (t *peer) failed(_ *transport.Endpoint, err error) {
	gone := &PEError{PE: t.id, Err: err}
	t.gone.Store(gone)
	if t.pe.closing.Load() && errors.Is(err, transport.ErrPeerClosed) {
		return // it is only a little ahead
	}
	t.pe.gone.CompareAndSwap(nil, gone)
}
