package transport

import "ibverbx"

// bouncePool is registered memory cut into buffers of one size. The buffer given back last is taken
// first, because it is in the cache.
//
// Invariant: each buffer is either in free or held by exactly one outstanding operation.
type bouncePool struct {
	mr   *ibverbx.MR
	mem  []byte
	size int
	free []int32
}

func newBouncePool(dom *ibverbx.Domain, count, size int) (*bouncePool, error) {
	p := &bouncePool{mem: make([]byte, count*size), size: size, free: make([]int32, count)}
	for i := range p.free {
		p.free[i] = int32(count - 1 - i)
	}
	var err error
	p.mr, err = dom.Register(p.mem, localWrite)
	return p, err
}

// noBuffer is the bounce buffer of an operation that has none.
const noBuffer = int32(-1)

// take takes a buffer out of free, where there must be one.
func (p *bouncePool) take() int32 {
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return i
}

// put gives a buffer back.
func (p *bouncePool) put(i int32) { p.free = append(p.free, i) }

func (p *bouncePool) bytes(i int32) []byte {
	off := int(i) * p.size
	return p.mem[off : off+p.size : off+p.size]
}

// segment names the first n bytes of a buffer.
func (p *bouncePool) segment(i int32, n int) ibverbx.Segment {
	return p.mr.Slice(uint64(int(i)*p.size), uint64(n))
}
