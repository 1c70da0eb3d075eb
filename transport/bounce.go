package transport

import "ibverbx"

// ownBuffers is how many bounce buffers an endpoint has beside those that all share, so that peers
// whose operations do not end cannot take them all. With two, one is filled while the other is
// sent.
const ownBuffers = 2

// bouncePool is registered memory cut into buffers of one size, which all endpoints share. The
// buffer given back last is taken first, because it is in the cache.
//
// Invariant: each buffer is in free, or packing, or held by exactly one outstanding operation.
type bouncePool struct {
	mr   *ibverbx.MR
	mem  []byte
	size int
	free []int32
	// packing is the buffer that a pack function writes into now, of the pool or of an endpoint's
	// own; noBuffer for none.
	packing int32
}

func newBouncePool(dom *ibverbx.Domain, count, size int) (*bouncePool, error) {
	p := &bouncePool{mem: make([]byte, count*size), size: size, free: make([]int32, count), packing: noBuffer}
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
	pool := p.w.bounce
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

// bufferBytes is the memory of a bounce buffer.
func (p *peerState) bufferBytes(i int32) []byte {
	if i < 0 {
		return p.mem.ownBytes(firstOwn - i)
	}
	pool := p.w.bounce
	off := int(i) * pool.size
	return pool.mem[off : off+pool.size : off+pool.size]
}

// bufferSegment names the first n bytes of a bounce buffer.
func (p *peerState) bufferSegment(i int32, n int) ibverbx.Segment {
	if i < 0 {
		return p.mem.ownSegment(firstOwn-i, n)
	}
	pool := p.w.bounce
	return pool.mr.Slice(uint64(int(i)*pool.size), uint64(n))
}
