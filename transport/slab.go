package transport

import (
	"encoding/binary"

	"ibverbx"
	"ibverbx/verbs"
)

// slab is the registered memory of one endpoint: its receive buffers, then bounce buffers of its
// own, then cells of eight bytes for the results of atomics, then the scratch words that probes and
// remote flushes read into.
//
// Invariant: there are more cells than operations may be outstanding, so no two of them share one.
type slab struct {
	mr     *ibverbx.MR
	mem    []byte
	buffer int    // size of a buffer of either kind, bytes
	stride uint64 // from one buffer to the next
	own    uint64 // offset of its own bounce buffers
	cells  uint64 // offset of the cells
	mask   uint64 // the number of cells less one: they are a power of two
	words  uint64 // offset of the scratch words, one for each rail
}

// newSlab registers the memory for so many receive buffers, operations and rails.
func newSlab(dom *ibverbx.Domain, buffers, size, ops, rails int) (s slab, err error) {
	s.buffer, s.stride = size, uint64(size+7)&^7
	s.own = uint64(buffers) * s.stride
	s.cells = s.own + ownBuffers*s.stride
	for s.mask = 1; int(s.mask) < ops; {
		s.mask = s.mask<<1 | 1
	}
	s.words = s.cells + 8*(s.mask+1)
	s.mem = make([]byte, int(s.words)+8*rails)
	s.mr, err = dom.Register(s.mem, localWrite)
	return s, err
}

// bytes returns the memory of a receive buffer.
func (s *slab) bytes(slot uint32) []byte { return s.mem[uint64(slot)*s.stride:][:s.buffer] }

// receive names a receive buffer.
func (s *slab) receive(slot uint32) ibverbx.Segment {
	return s.mr.Slice(uint64(slot)*s.stride, uint64(s.buffer))
}

// ownBytes returns the memory of one of the endpoint's own bounce buffers.
func (s *slab) ownBytes(k int32) []byte {
	off := s.own + uint64(k)*s.stride
	return s.mem[off : off+uint64(s.buffer) : off+uint64(s.buffer)]
}

// ownSegment names the first n bytes of one of its own bounce buffers.
func (s *slab) ownSegment(k int32, n int) ibverbx.Segment {
	return s.mr.Slice(s.own+uint64(k)*s.stride, uint64(n))
}

// cell names the cell of operation n.
func (s *slab) cell(n uint64) ibverbx.Segment { return s.mr.Slice(s.cellOffset(n), 8) }

func (s *slab) cellBytes(n uint64) []byte { return s.mem[s.cellOffset(n):][:8] }

// cellValue returns the result of operation n, an atomic.
func (s *slab) cellValue(n uint64) uint64 { return binary.NativeEndian.Uint64(s.mem[s.cellOffset(n):]) }

func (s *slab) cellOffset(n uint64) uint64 { return s.cells + 8*(n&s.mask) }

// scratch names the first n bytes of the scratch words.
func (s *slab) scratch(n uint64) ibverbx.Segment { return s.mr.Slice(s.words, n) }

// ownBuffers is the number of bounce buffers that an endpoint has beside the shared ones, so that
// peers whose operations do not end cannot take them all. With two, one is filled while the other
// is sent.
const ownBuffers = 2

// bouncePool is registered memory cut into buffers of one size, which all endpoints share. The
// buffer given back last is taken first, because it is in the cache.
//
// Invariant: each buffer is in free, or held by exactly one outstanding operation, or by the call
// that fills it.
type bouncePool struct {
	mr   *ibverbx.MR
	mem  []byte
	size int
	free []int32
}

func newBouncePool(dom *ibverbx.Domain, count, size int) (bouncePool, error) {
	p := bouncePool{mem: make([]byte, count*size), size: size, free: make([]int32, count)}
	for i := range p.free {
		p.free[i] = int32(count - 1 - i)
	}
	var err error
	p.mr, err = dom.Register(p.mem, localWrite)
	return p, err
}

// A bounce buffer of an operation is a number: 0 and up of those that all share, firstOwn and down
// of the endpoint's own.
const (
	noBuffer = int32(-1)
	firstOwn = int32(-2)
)

// hasBuffer reports whether the endpoint can take a bounce buffer.
func (p *peerState) hasBuffer() bool { return len(p.w.bounce.free) != 0 || p.sending.ownBuffers != 0 }

// takeBuffer takes a bounce buffer, one of the endpoint's own if there is no other. There must be
// one: see hasBuffer.
func (p *peerState) takeBuffer() int32 {
	pool := &p.w.bounce
	if n := len(pool.free); n != 0 {
		i := pool.free[n-1]
		pool.free = pool.free[:n-1]
		return i
	}
	return p.sending.takeOwnBuffer()
}

// putBuffer gives a bounce buffer back.
func (p *peerState) putBuffer(i int32) {
	if i < 0 {
		p.sending.ownBuffers |= 1 << (firstOwn - i)
		return
	}
	p.w.bounce.free = append(p.w.bounce.free, i)
}

// bufferBytes returns the memory of a bounce buffer.
func (p *peerState) bufferBytes(i int32) []byte {
	if i < 0 {
		return p.mem.ownBytes(firstOwn - i)
	}
	pool := &p.w.bounce
	off := int(i) * pool.size
	return pool.mem[off : off+pool.size : off+pool.size]
}

// bufferSegment names the first n bytes of a bounce buffer.
func (p *peerState) bufferSegment(i int32, n int) ibverbx.Segment {
	if i < 0 {
		return p.mem.ownSegment(firstOwn-i, n)
	}
	pool := &p.w.bounce
	return pool.mr.Slice(uint64(int(i)*pool.size), uint64(n))
}

// templates are work requests with their constant fields filled in, and memory that posts use only
// while they run. Setting the other fields is cheaper than clearing 250 bytes. Worker.mu guards
// them.
//
// Invariant: between posts the fields Inline and SGL are nil, EveryRail is false, and Flags lacks
// SendFence, but for control, which only sendControl uses.
type templates struct {
	send, put, get, atomic, control [1]ibverbx.SendWR

	recv   []ibverbx.RecvWR  // as long as the longest batch of receives so far
	inline []byte            // a message that goes inline
	sgl    []ibverbx.Segment // pieces of a zcopy
}

func newTemplates(maxInline int) templates {
	t := templates{inline: make([]byte, max(maxInline, wireHeader))}
	t.send[0] = ibverbx.SendWR{Opcode: verbs.OpSend, Relaxed: true}
	t.put[0] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite}
	t.get[0] = ibverbx.SendWR{Opcode: verbs.OpRDMARead}
	t.control[0] = ibverbx.SendWR{Opcode: verbs.OpSend, Relaxed: true, Flags: verbs.SendSignaled |
		verbs.SendInline}
	return t
}
