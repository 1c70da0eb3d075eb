package stream

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/internal/ring"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// budget bounds the memory that the streams of a hub have promised.
type budget struct {
	mu          sync.Mutex
	limit, used int64
}

// take takes n bytes, or none and reports false.
func (b *budget) take(n int64) bool { return b.takeBelow(n, b.limit) }

// takeForChunks takes n bytes for chunks, which keep them as long as their link. So it leaves a
// quarter of the budget to new streams.
func (b *budget) takeForChunks(n int64) bool { return b.takeBelow(n, b.limit/4*3) }

func (b *budget) takeBelow(n, limit int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > limit {
		return false
	}
	b.used += n
	return true
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
}

// chunk is a piece of memory into which the peer of a link puts bytes.
type chunk struct {
	mem   []byte
	state chunkState
	owner *Conn // unless it is free
}

type chunkState uint8

const (
	chunkFree    chunkState = iota
	chunkGranted            // the peer may write to it
	chunkUnread             // the stream has bytes in it, and the peer has given it up
)

// chunkPool is the receive memory of a link, which only the link's peer can write to. It grows by
// slabs, within the budget, and is closed with the link.
//
// Invariant: a chunk is in free if and only if its state is chunkFree.
type chunkPool struct {
	mu        sync.Mutex
	dom       *ibverbx.Domain
	budget    *budget
	slabs     []*ibverbx.MR
	announced int // slabs that the peer knows
	chunks    []chunk
	free      []uint32 // the last one is used next: it is the likeliest to be in a cache

	waits    atomic.Int32 // waiting.Len()
	waiting  ring.FIFO[waiting]
	late     *time.Timer   // calls link.grantLate while streams wait
	patience time.Duration // wantTime, except in tests
	closed   bool
}

// waiting is a stream that waits for chunks.
type waiting struct {
	conn  *Conn
	since time.Time
}

// grant takes up to n chunks for a stream, and appends their numbers to list. If it took none, it
// says whether it pays to wait for those of others. Beyond easyChunks there are more only for a
// stream that has waited.
func (p *chunkPool) grant(c *Conn, n int, late bool, list []uint32) (_ []uint32, wait bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; n > 0; n-- {
		if len(p.free) == 0 && (len(p.chunks) >= easyChunks && !late || !p.grow()) {
			break
		}
		k := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		p.chunks[k].state, p.chunks[k].owner = chunkGranted, c
		list = append(list, k)
	}
	return list, !late && len(p.chunks) != 0
}

// nextWaiting takes the first stream off the line if it is its turn: there is memory for it, or it
// has waited since before a time.
func (p *chunkPool) nextWaiting(before time.Time) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting.Len() == 0 || len(p.free) == 0 && !p.waiting.Front().since.Before(before) {
		return nil
	}
	c := p.waiting.Pop().conn
	p.waits.Store(int32(p.waiting.Len()))
	return c
}

// grow registers a slab, and reports whether it could.
func (p *chunkPool) grow() bool {
	if p.closed || len(p.slabs) == maxSlabs || !p.budget.takeForChunks(slabBytes) {
		return false
	}
	mr, err := p.dom.Alloc(slabBytes, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		p.budget.give(slabBytes)
		return false
	}
	p.slabs = append(p.slabs, mr)
	for i := range slabChunks {
		p.free = append(p.free, uint32(len(p.chunks)))
		p.chunks = append(p.chunks, chunk{mem: mr.Bytes()[i*chunkBytes : (i+1)*chunkBytes]})
	}
	return true
}

// announce sends the peer the location of the slabs of which chunks are about to be granted.
func (p *chunkPool) announce(l *link, ep *transport.Endpoint) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.announced < len(p.slabs) {
		text, err := json.Marshal(p.slabs[p.announced].Remote())
		if err != nil {
			return err
		}
		if err := l.sendText(ep, kindSlab, uint32(p.announced), text); err != nil {
			return err
		}
		p.announced++
	}
	return nil
}

// arrived returns the n bytes that the peer has put into a chunk of a stream.
func (p *chunkPool) arrived(c *Conn, k, n uint32) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case uint64(k) >= uint64(len(p.chunks)) || p.chunks[k].state != chunkGranted || p.chunks[k].owner != c:
		return nil, violation("bytes in chunk %d, which stream %d does not have", k, c.id)
	case n == 0 || n > chunkBytes:
		return nil, violation("%d bytes in a chunk of %d", n, chunkBytes)
	}
	p.chunks[k].state = chunkUnread
	return p.chunks[k].mem[:n], nil
}

// again grants a chunk that the stream has read once more.
func (p *chunkPool) again(k uint32) {
	p.mu.Lock()
	p.chunks[k].state = chunkGranted
	p.mu.Unlock()
}

// release takes a chunk back from a stream.
func (p *chunkPool) release(k uint32) {
	p.mu.Lock()
	p.chunks[k].state, p.chunks[k].owner = chunkFree, nil
	p.free = append(p.free, k)
	p.mu.Unlock()
}

// returned takes back a chunk that the peer does not use.
func (p *chunkPool) returned(c *Conn, k uint32) error {
	p.mu.Lock()
	owned := uint64(k) < uint64(len(p.chunks)) && p.chunks[k].state == chunkGranted && p.chunks[k].owner == c
	p.mu.Unlock()
	if !owned {
		return violation("chunk %d is returned, which stream %d does not have", k, c.id)
	}
	p.release(k)
	return nil
}

// releaseGranted takes back the chunks of a stream whose peer sends nothing more.
func (p *chunkPool) releaseGranted(c *Conn) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range p.chunks {
		if p.chunks[k].owner == c && p.chunks[k].state == chunkGranted {
			p.chunks[k].state, p.chunks[k].owner = chunkFree, nil
			p.free = append(p.free, uint32(k))
			n++
		}
	}
	return n
}

// close unregisters the memory. No NIC and no reader uses it any more.
func (p *chunkPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.late != nil {
		p.late.Stop()
	}
	var errs []error
	for _, mr := range p.slabs {
		errs = append(errs, mr.Close())
		p.budget.give(slabBytes)
	}
	p.slabs, p.chunks, p.free, p.closed = nil, nil, nil, true
	return errors.Join(errs...)
}

// piece is registered memory of this end, through which a part of a large write goes.
type piece struct {
	stage *staging
	mem   []byte
	at    uint64 // of mem in the registered memory, bytes
	comp  transport.Completion
	fired func(*transport.Completion)
	conn  *Conn
	chunk uint32
	n     int
}

// stagingPieces is the number of pieces that all links over the same NICs share. They are in a
// cache most of the time.
const stagingPieces = 32

// staging is the pieces of a carrier.
type staging struct {
	mu      sync.Mutex
	mr      *ibverbx.MR
	free    []*piece
	starved []*link // have writers that wait for a piece
}

// take takes a piece; nil if there is none, and the stream's writer is woken when it is its turn.
// The memory is registered on first use.
func (s *staging) take(dom *ibverbx.Domain, c *Conn) (*piece, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mr == nil {
		mr, err := dom.Alloc(stagingPieces*chunkBytes, verbs.AccessLocalWrite)
		if err != nil {
			return nil, err
		}
		s.mr = mr
		for i := range stagingPieces {
			at := i * chunkBytes
			p := &piece{stage: s, at: uint64(at), mem: mr.Bytes()[at : at+chunkBytes]}
			p.fired = func(*transport.Completion) { p.conn.putDone(p) }
			s.free = append(s.free, p)
		}
	}
	// A link gets no more than it leaves to others: one whose peer is silent cannot take all.
	if len(s.free) <= c.link.staged {
		c.link.pieces.add(c)
		if !slices.Contains(s.starved, c.link) {
			s.starved = append(s.starved, c.link)
		}
		return nil, nil
	}
	p := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	c.link.staged++
	c.link.pieces.remove(c)
	s.wake()
	return p, nil
}

// segment is the first n bytes of a piece.
func (p *piece) segment() ibverbx.Segment {
	return p.stage.mr.Slice(p.at, uint64(p.n))
}

// give gives a piece of a link back.
func (s *staging) give(p *piece, l *link) {
	p.conn = nil
	s.mu.Lock()
	l.staged--
	s.free = append(s.free, p)
	s.wake()
	s.mu.Unlock()
}

// wake wakes a writer of each link that may take a piece.
func (s *staging) wake() {
	s.starved = slices.DeleteFunc(s.starved, func(l *link) bool {
		if len(s.free) > l.staged {
			l.pieces.next()
		}
		return l.pieces.n.Load() == 0
	})
}

// close unregisters the memory.
func (s *staging) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mr == nil {
		return nil
	}
	return s.mr.Close()
}
