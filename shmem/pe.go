package shmem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/internal/errwrap"
	"ibverbx/internal/guard"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// PE is one processing element: a part of this process with a symmetric heap of its own. See the
// package's rules for which calls may be made from several goroutines.
type PE struct {
	_        guard.NoCopy
	cfg      Config
	id       int
	layout   layout
	dom      *ibverbx.Domain
	worker   *transport.Worker
	heap     []byte      // layout.user bytes for the package itself, then the user's
	region   *ibverbx.MR // all of heap, registered
	peers    []peer      // by their numbers, this PE among them
	loopback *transport.Endpoint
	// sleepStep is how long this PE sleeps between looks at its heap when others are to wake it.
	sleepStep time.Duration
	calls     sync.Pool // of *call

	// collective is held by the goroutine that is in a collective call; it guards this group.
	collective sync.Mutex
	blocks     *blocks
	world      *Team
	teams      []*Team       // those that have not been closed, world first
	survivors  *Team         // of the last Shrink; nil without one
	compared   bool          // in Close: this PE compares its calls with the others'
	syncs      atomic.Uint64 // barriers so far; Stats reads it without the lock

	exchange exchange
	failed   failure      // the call in which this PE gave up, if any: then only Close is left
	wakers   atomic.Int32 // peers that this PE has asked to wake it

	knows   atomic.Bool             // the program knows that the PEs are out of step
	fences  atomic.Uint64           // calls of Fence so far
	gone    atomic.Pointer[PEError] // the first other PE that failed or closed; nil while none has
	closing atomic.Bool             // Close has begun: collective calls are refused, peers may close

	mu      sync.Mutex // guards this group
	usage   usage
	orphans []*ibverbx.MR // registered for calls whose ctx has ended: see closeRegion
}

// Rank returns this PE's number, counted from 0.
func (p *PE) Rank() int { return p.id }

// String returns the PE's name in errors: "PE 3".
func (p *PE) String() string { return fmt.Sprintf("PE %d", p.id) }

// Size returns the number of PEs.
func (p *PE) Size() int { return len(p.peers) }

// Config returns the configuration in force, with its defaults filled in.
func (p *PE) Config() Config { return p.cfg }

// Progress makes progress without waiting, and returns how many events it handled. Call it from
// time to time in a long computation, so that operations behind a fence are sent, and collective
// calls that were started go on.
func (p *PE) Progress() int {
	n := p.worker.Progress()
	p.drive(context.Background())
	return n
}

// Close ends the PE: it waits until the others close, too, unless one has failed, ends the
// connections and releases the memory. Do not use blocks and their Local slices afterwards. If ctx
// ends first, Close ends the rest at once. So it does if the others make another call: then all get
// [ErrMismatch], which Close does not return if an earlier call has. It returns an error that joins
// all failures. It is collective, and no other goroutine may be in a call of the PE.
func (p *PE) Close(ctx context.Context) error {
	const op = "close"
	if err := needContext(op, ctx); err != nil {
		return err
	}
	if err := p.enter(op); err != nil {
		return err
	}
	defer p.collective.Unlock()
	p.closing.Store(true)
	p.closeRequests()
	p.world.enterCall(leavingBit | p.world.record.Step)
	err := p.meet(ctx, op)
	for i := range p.peers {
		t := &p.peers[i]
		if e := t.ep.Close(ctx); e != nil && err == nil && !errors.Is(e, transport.ErrPeerClosed) {
			err = t.opError(op, e)
		}
	}
	return errwrap.Join(err, p.free())
}

// Stats is a snapshot of a PE.
type Stats struct {
	HeapSize   int             `json:"heap_size"` // bytes
	HeapUsed   int             `json:"heap_used"` // bytes in blocks
	HeapBlocks int             `json:"heap_blocks"`
	Barriers   uint64          `json:"barriers"`
	Transport  transport.Stats `json:"transport"`
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

// target checks the PE and the memory that an operation names, and returns the peer.
func (p *PE) target(op string, to int, off uint64, bytes int) (*peer, error) {
	if uint(to) >= uint(len(p.peers)) {
		return nil, invalid(op, "PE %d: the numbers are 0 to %d", to, len(p.peers)-1)
	}
	if off < p.layout.user || bytes > len(p.heap) || off > uint64(len(p.heap)-bytes) {
		if err := p.inHeap(off, bytes); err != nil {
			return nil, opError(op, err)
		}
	}
	return &p.peers[to], nil
}

// inHeap returns what is wrong with a piece of symmetric memory; nil if nothing is.
func (p *PE) inHeap(off uint64, bytes int) error {
	if bytes == 0 || off >= p.layout.user && bytes <= len(p.heap) && off <= uint64(len(p.heap)-bytes) {
		return nil
	}
	return fmt.Errorf("%w: %d bytes of symmetric memory at offset %d: the heap of this PE has offsets %d "+
		"to %d: it comes from an Alloc of other PEs",
		verbs.ErrInvalid, bytes, off, p.layout.user, len(p.heap))
}

// checkWait checks the arguments of a wait.
func (p *PE) checkWait(op string, off uint64, n, bytes int, cmp Cmp) error {
	if n == 0 {
		return invalid(op, "s has no element")
	}
	if cmp > LE {
		return invalid(op, "cmp %d: must be EQ to LE", cmp)
	}
	if err := p.inHeap(off, bytes); err != nil {
		return opError(op, err)
	}
	return nil
}

// peer is a PE as seen from this one; every PE has one for itself, too.
type peer struct {
	pe    *PE // the PE that it is a peer of
	id    int // the peer's number
	ep    *transport.Endpoint
	heap  ibverbx.RemoteMR
	short int // longest put that is copied into the work request, bytes
	bcopy int // longest put or get through a registered buffer, bytes
	// multiNIC says that several NICs write the peer's memory: their writes can pass each other on
	// the way to it.
	multiNIC bool
	fenced   atomic.Uint64           // how many of PE.fences are in force for this peer
	gone     atomic.Pointer[PEError] // why it failed or closed; nil while it has not

	// Guarded by exchange.mu.
	mailboxes
	asked   uint64 // key of the last call that the PE has asked this peer about
	crossed uint64 // at the last look this peer waited in a call of another team: see PE.crosses
	wakes   bool   // the PE has asked this peer to wake it
}

// String returns the PE's name in errors, "PE 3".
func (t *peer) String() string { return fmt.Sprintf("PE %d", t.id) }

// failed is the endpoint's OnError: the connection to the peer has ended.
func (t *peer) failed(_ *transport.Endpoint, err error) {
	gone := &PEError{PE: t.id, Err: err}
	t.gone.Store(gone)
	if t.pe.closing.Load() && errors.Is(err, transport.ErrPeerClosed) {
		return // the peer closes a little earlier than this PE
	}
	t.pe.gone.CompareAndSwap(nil, gone)
}

// call is the part of an operation that outlives its stack frame. It goes back to the pool once no
// NIC can write to it any more.
type call struct {
	comp transport.Completion
	old  uint64    // the result of an atomic
	word [1]uint64 // the source or target of one value
}

func (p *PE) getCall() *call  { return p.calls.Get().(*call) }
func (p *PE) putCall(c *call) { p.calls.Put(c) }

// wait waits for a call's operations and returns the call to the pool. It reports whether they have
// ended: if not, the call is left to the garbage collector.
func (p *PE) wait(ctx context.Context, c *call) (ended bool, err error) {
	err = p.worker.Wait(ctx, &c.comp)
	if ended = c.comp.Fired(); ended {
		p.putCall(c)
	}
	return ended, err
}

// fetched waits for an atomic, unless err says that it has not started. It returns the call to the
// pool, and the value before to the caller.
func (p *PE) fetched(ctx context.Context, c *call, err error) (uint64, error) {
	if err != nil {
		p.putCall(c)
		return 0, err
	}
	err = p.worker.Wait(ctx, &c.comp)
	old := c.old
	if c.comp.Fired() {
		p.putCall(c)
	}
	return old, err
}

// closeRegion ends the registration of memory for one call. If the call's ctx has ended and its
// operation goes on, NICs still use the memory, so Quiet or Close ends the registration. Closing
// the region here might succeed: a virtual queue pair over a single physical one does not hold it.
func (p *PE) closeRegion(mr *ibverbx.MR, ended bool) {
	if !ended || mr.Close() != nil {
		p.keepOrphans(mr)
	}
}

// takeOrphans takes the registrations of calls that ended before the NICs were done.
func (p *PE) takeOrphans() (list []*ibverbx.MR) {
	p.mu.Lock()
	if len(p.orphans) != 0 {
		list, p.orphans = p.orphans, nil
	}
	p.mu.Unlock()
	return list
}

// keepOrphans keeps registrations until the NICs are done.
func (p *PE) keepOrphans(list ...*ibverbx.MR) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orphans = append(p.orphans, list...)
}

// closeOrphans ends registrations whose operations have ended.
func (p *PE) closeOrphans(list []*ibverbx.MR) {
	for _, mr := range list {
		if mr.Close() != nil {
			p.keepOrphans(mr)
		}
	}
}

// free releases what the PE holds.
func (p *PE) free() error {
	var errs []error
	if p.worker != nil {
		errs = append(errs, p.worker.Close())
	}
	p.closeOrphans(p.takeOrphans())
	if p.region != nil {
		errs = append(errs, p.region.Close())
	}
	return errors.Join(errs...)
}

// flushBegun sends what a program that has returned began. A program that wants to know whether it
// arrived calls Quiet.
func (p *PE) flushBegun(ctx context.Context) {
	_ = p.worker.Flush(ctx, transport.FlushLocal)
}

// usage is how full the heap is, for Stats.
type usage struct{ bytes, blocks int }

// updateUsage copies how full the heap is for Stats, which then need not wait for a collective call
// to end.
func (p *PE) updateUsage() {
	p.mu.Lock()
	p.usage = usage{bytes: int(p.blocks.used), blocks: len(p.blocks.taken)}
	p.mu.Unlock()
}

// opError returns the error of a call whose operation on another PE failed.
func (t *peer) opError(op string, err error) error {
	var gone *transport.EndpointError
	if errors.As(err, &gone) {
		err = &PEError{PE: t.id, Err: err}
	}
	return opError(op, err)
}

// opError returns the error of a call that concerned all PEs. The endpoint that err is about may
// have failed a moment ago, before failed was called.
func (p *PE) opError(op string, err error) error {
	for i := range p.peers {
		if gone := p.peers[i].ep.Err(); gone != nil && errors.Is(err, gone) {
			return opError(op, &PEError{PE: i, Err: gone})
		}
	}
	return opError(op, err)
}
