package transport

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs/verbstest"
)

// The parts of an endpoint's memory lie in order and apart: receive buffers, bounce buffers of its
// own, cells, scratch words. All begin at multiples of eight bytes, which atomics need, and nothing
// is wasted but for that.
func TestPartsOfASlab(t *testing.T) {
	dom, err := ibverbx.NewDomain(verbstest.NewNull(1).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	const buffers, rails = 3, 2
	for _, size := range []int{1, 7, 8, 9, 15, 16, 17, 100, 8192} {
		for _, ops := range []int{1, 2, 3, 4, 7, 8, 9} {
			s, err := newSlab(dom, buffers, size, ops, rails)
			if err != nil {
				t.Fatal(err)
			}
			at := uint64(0)
			part := func(what string, got ibverbx.Segment, n, room int) {
				t.Helper()
				if got.Addr-s.mr.Addr() != at || got.Length != uint64(n) {
					t.Fatalf("buffers of %d, %d operations: %s has %d bytes at %d, want %d at %d", size, ops,
						what, got.Length, got.Addr-s.mr.Addr(), n, at)
				}
				at += uint64(room)
			}
			stride := (size + 7) / 8 * 8
			for slot := range uint32(buffers) {
				part("a receive buffer", s.receive(slot), size, stride)
				if b := s.bytes(slot); len(b) != size || &b[0] != &s.mem[int(slot)*stride] {
					t.Errorf("receive buffer %d: %d bytes elsewhere", slot, len(b))
				}
			}
			for k := range int32(ownBuffers) {
				part("an own buffer", s.ownSegment(k, size), size, stride)
				if b := s.ownBytes(k); len(b) != size || cap(b) != size {
					t.Errorf("own buffer %d: %d bytes, room for %d", k, len(b), cap(b))
				}
			}
			cells := 2
			for cells <= ops {
				cells *= 2
			}
			for n := range uint64(cells) {
				part("a cell", s.cell(n), 8, 8)
				s.cellBytes(n)[0] = byte(n + 1)
				if again := s.cellBytes(n + uint64(cells)); len(again) != 8 || again[0] != byte(n+1) ||
					s.cellValue(n) == 0 {
					t.Errorf("%d operations: cell %d is not that of operation %d", ops, n, n+uint64(cells))
				}
			}
			part("the scratch words", s.scratch(8*rails), 8*rails, 8*rails)
			if at != uint64(len(s.mem)) {
				t.Errorf("buffers of %d, %d operations: %d bytes, %d are used", size, ops, len(s.mem), at)
			}
			if err := s.mr.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A buffer is lent once: of those that all share the one given back last, and the endpoint's own
// when there is no other.
func TestBuffersAreLentOnce(t *testing.T) {
	dom, err := ibverbx.NewDomain(verbstest.NewNull(1).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := newBouncePool(dom, 2, 24)
	if err != nil {
		t.Fatal(err)
	}
	p := &peerState{w: &Worker{bounce: pool}}
	if p.mem, err = newSlab(dom, 1, 24, 1, 1); err != nil {
		t.Fatal(err)
	}
	p.sending.ownBuffers = 1<<ownBuffers - 1
	for range 2 {
		var taken []int32
		seen := map[uint64]bool{}
		for p.hasBuffer() {
			i := p.takeBuffer()
			b, s := p.bufferBytes(i), p.bufferSegment(i, 20)
			if len(b) != 24 || cap(b) != 24 || s.Length != 20 || seen[s.Addr] {
				t.Fatalf("buffer %d: %d bytes, room for %d, %v", i, len(b), cap(b), s)
			}
			seen[s.Addr] = true
			if own := len(taken) >= 2; own != (i <= firstOwn) {
				t.Errorf("buffer %d comes as number %d", i, len(taken))
			}
			taken = append(taken, i)
		}
		if len(taken) != 2+ownBuffers {
			t.Fatalf("%d buffers: %v", len(taken), taken)
		}
		for _, i := range taken {
			if p.putBuffer(i); !p.hasBuffer() {
				t.Fatalf("buffer %d was given back, and there is none", i)
			}
			if again := p.takeBuffer(); again != i {
				t.Errorf("given back %d, lent %d", i, again)
			}
		}
		for _, i := range []int32{taken[3], taken[1], taken[2], taken[0]} {
			p.putBuffer(i)
		}
		if last := p.takeBuffer(); last != taken[0] {
			t.Errorf("lent %d, and %d was given back last", last, taken[0])
		} else {
			p.putBuffer(last)
		}
		pool.free[0], pool.free[1] = 1, 0
	}
}

// The table finds endpoints by their ids, gives free places away again, and stops when asked to.
func TestTableOfEndpoints(t *testing.T) {
	var table endpointTable
	list := make([]*peerState, 4)
	for i := range list {
		if id := table.free(); id != i || table.at(uint32(i)) != nil {
			t.Fatalf("place %d is free, want %d", id, i)
		}
		list[i] = &peerState{id: uint32(i)}
		table.add(list[i])
	}
	table.remove(list[1])
	if table.open != 3 || table.free() != 1 || table.at(1) != nil || table.at(3) != list[3] ||
		table.at(4) != nil || table.at(1<<31) != nil {
		t.Errorf("%d open, place %d is free", table.open, table.free())
	}
	var all []*peerState
	for p := range table.all {
		if all = append(all, p); len(all) == 2 {
			break
		}
	}
	if len(all) != 2 || all[0] != list[0] || all[1] != list[2] {
		t.Errorf("yielded %v", all)
	}
	for p := range table.all {
		table.remove(p)
	}
	if table.open != 0 || table.free() != 0 {
		t.Errorf("%d open after all were removed", table.open)
	}
}

// The kinds of callbacks have names, for the error of a worker that one has ended.
func TestNamesOfCallbacks(t *testing.T) {
	if e, p := callbackEvent.String(), callbackPending.String(); p != "a pending function" ||
		e != "a handler, completion function or error function" {
		t.Errorf("%q and %q", e, p)
	}
}
