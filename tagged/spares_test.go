package tagged

import (
	"testing"

	"ibverbx/transport"
)

// A block is as large as its class, the smallest that holds the fragment, and no larger than the
// longest fragment. Blocks are kept up to a number of bytes, and used again.
func TestBlocksOfEachSize(t *testing.T) {
	p := blockPool{most: 2 * 416, largest: 416}
	for n, size := range map[int]int{0: 64, 1: 64, 64: 64, 65: 128, 128: 128, 129: 256, 256: 256, 257: 416,
		416: 416} {
		b := p.get(n)
		if len(b.data) != n || cap(b.data) != size || p.used != size {
			t.Errorf("%d bytes: a block of %d with %d, %d in use: want one of %d", n, cap(b.data),
				len(b.data), p.used, size)
		}
		p.put(b)
		if p.used != 0 || p.bytes != size {
			t.Errorf("%d bytes: %d in use and %d free, want 0 and %d", n, p.used, p.bytes, size)
		}
		if again := p.get(n); again != b || again.next != nil || len(again.data) != n || p.bytes != 0 {
			t.Errorf("%d bytes: the free block is not used again, or %d bytes are free", n, p.bytes)
		}
		p.used = 0
	}
	one, two, three := p.get(416), p.get(300), p.get(1)
	p.put(one)
	p.put(two)
	p.put(three) // there is no room for it
	if p.bytes != 2*416 || p.used != 0 {
		t.Errorf("%d bytes are kept, want %d; %d in use", p.bytes, 2*416, p.used)
	}
	if x, y := p.get(416), p.get(416); x != two || y != one || p.bytes != 0 || p.get(1) == three {
		t.Error("what is kept is not what there was room for")
	}
}

// waiting is an endpoint without a connection, whose worker keeps two messages' structures.
func waiting() *Endpoint {
	w := &Worker{}
	w.matching.init(1)
	w.spares.init(&Config{MaxUnexpected: 2, MaxRequests: 2, Transport: transport.Config{BufferSize: 416}})
	return &Endpoint{w: w}
}

// A message that waits is in both lists until it is dropped. The structures of as many as
// configured are kept, with nothing of the message in them.
func TestMessagesThatWait(t *testing.T) {
	e := waiting()
	w := e.w
	var list []*inbound
	for i := range 3 {
		in := e.newInbound(uint64(i), 100)
		in.keep(&w.spares.blocks, make([]byte, 60))
		if in.whole() {
			t.Error("60 bytes of 100 are whole")
		}
		in.keep(&w.spares.blocks, make([]byte, 40))
		if !in.whole() || in.fragments != 2 || in.head.next != in.tail || in.tail.next != nil {
			t.Errorf("100 bytes of 100: %+v", in)
		}
		if in.info() != (Info{Tag: uint64(i), Length: 100, Source: e}) {
			t.Errorf("%+v", in.info())
		}
		list = append(list, in)
	}
	if in := e.newInbound(9, 0); true {
		in.announced = true
		if in.whole() {
			t.Error("an announced message is whole")
		}
		w.drop(in)
	}
	e.partial.in = list[1]
	w.drop(list[0])
	if e.partial.in != list[1] {
		t.Error("the message that is arriving is forgotten with another one")
	}
	w.drop(list[1])
	if e.partial.in != nil || w.matching.unexpected.all.Len() != 1 || e.kept.all.Len() != 1 {
		t.Error("a message that was dropped is still there")
	}
	w.drop(list[2])
	p := &w.spares.inbounds
	if p.count != 2 || w.spares.blocks.used != 0 || w.stats.unexpected != 4 {
		t.Errorf("%d are kept, %d bytes in use, %d counted: want 2, 0 and 4", p.count,
			w.spares.blocks.used, w.stats.unexpected)
	}
	for want := 1; want >= 0; want-- {
		if in := p.get(); *in != (inbound{}) || p.count != want {
			t.Errorf("%d are left, want %d: %+v", p.count, want, in)
		}
	}
	if p.get() == nil || p.free != nil || p.count != 0 {
		t.Errorf("none is kept: %+v", p)
	}
}

// Requests are kept up to the configured number, counted, and have nothing of the call before.
func TestRequestsThatAreKept(t *testing.T) {
	w := waiting().w
	p := &w.spares.requests
	var list []*Request
	for range 3 {
		list = append(list, w.newRequest(5, [][]byte{{1}, nil, {2, 3}}, 3))
	}
	if p.made != 3 || p.busy != 3 || len(list[0].data.bufs) != 2 || list[0].data.length != 3 {
		t.Fatalf("%d made, %d busy, %+v", p.made, p.busy, list[0].data)
	}
	list[0].from, list[1].awaited, list[2].freed = &Endpoint{}, true, true
	for _, r := range list {
		r.discard()
	}
	if p.busy != 0 || len(p.free) != 2 {
		t.Errorf("%d busy and %d kept, want 0 and 2", p.busy, len(p.free))
	}
	for _, want := range []*Request{list[1], list[0]} {
		r := w.newRequest(6, nil, 0)
		if r != want || r.from != nil || r.awaited || r.freed || r.info != (Info{Tag: 6}) ||
			r.stage != requestQueued || len(r.data.bufs) != 0 || r.sendState != (sendState{}) || r.Done() {
			t.Errorf("a request that is used again: %+v", r)
		}
	}
	if p.made != 3 || p.busy != 2 {
		t.Errorf("%d made, %d busy: want 3 and 2", p.made, p.busy)
	}
}
