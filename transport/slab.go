package transport

import (
	"encoding/binary"

	"ibverbx"
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
	own    uint64 // where its own bounce buffers begin
	cells  uint64 // where the cells begin
	mask   uint64 // how many cells there are, less one: they are a power of two
	words  uint64 // where the scratch words begin, one for each rail
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

// bytes is the memory of a receive buffer.
func (s *slab) bytes(slot uint32) []byte { return s.mem[uint64(slot)*s.stride:][:s.buffer] }

// receive names a receive buffer.
func (s *slab) receive(slot uint32) ibverbx.Segment {
	return s.mr.Slice(uint64(slot)*s.stride, uint64(s.buffer))
}

// ownBytes is the memory of one of its own bounce buffers.
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

// cellValue is the result of operation n, an atomic.
func (s *slab) cellValue(n uint64) uint64 { return binary.NativeEndian.Uint64(s.mem[s.cellOffset(n):]) }

func (s *slab) cellOffset(n uint64) uint64 { return s.cells + 8*(n&s.mask) }

// scratch names the first n bytes of the scratch words.
func (s *slab) scratch(n uint64) ibverbx.Segment { return s.mr.Slice(s.words, n) }
