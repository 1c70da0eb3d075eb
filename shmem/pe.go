package shmem

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
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
	heap     []byte      // layout.user bytes of the package's own, then the user's
	region   *ibverbx.MR // all of heap, registered
	peers    []peer      // by their numbers, this PE among them
	loopback *transport.Endpoint
	// sleepStep is how long this PE sleeps, between looks at its heap, where others wake it.
	sleepStep time.Duration
	calls     sync.Pool // of *call

	// collective is held by the goroutine that is in a collective call; it guards this group.
	collective sync.Mutex
	blocks     *blocks
	record     record
	wakers     int           // peers that this PE has asked to wake it
	syncs      atomic.Uint64 // barriers so far; Stats reads it without the lock

	fences  atomic.Uint64           // calls of Fence so far
	gone    atomic.Pointer[PEError] // the first other PE that failed or closed; nil while none has
	closing atomic.Bool             // Close has begun: collective calls are refused, peers may close

	mu          sync.Mutex // guards this group
	usage       usage
	unclosedMRs []*ibverbx.MR // registered for calls whose ctx has ended: see closeLater
}

// ID is this PE's number.
func (p *PE) ID() int { return p.id }

// PEs is how many PEs there are.
func (p *PE) PEs() int { return len(p.peers) }

// Config is the configuration in force.
func (p *PE) Config() Config { return p.cfg }

// Progress makes progress without waiting; it returns how much it did. A program that computes for
// long between its calls may call it, so that what waits behind a fence leaves.
func (p *PE) Progress() int { return p.worker.Progress() }

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

// inHeap says what is wrong with a piece of symmetric memory; nil if nothing is.
func (p *PE) inHeap(off uint64, bytes int) error {
	if bytes == 0 || off >= p.layout.user && bytes <= len(p.heap) && off <= uint64(len(p.heap)-bytes) {
		return nil
	}
	return fmt.Errorf("%w: %d bytes of symmetric memory at offset %d: the heap of this PE has offsets %d "+
		"to %d: it comes from an Alloc of other PEs",
		verbs.ErrInvalid, bytes, off, p.layout.user, len(p.heap))
}
