package tagged

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// Every field of the configuration takes its smallest and its largest value, and nothing beyond:
// the error names the field, its value and both bounds.
func TestBoundsOfTheConfiguration(t *testing.T) {
	for _, f := range []struct {
		name        string
		least, most int // 1<<40 either way: there is no limit
		set         func(c *Config, v int)
	}{
		{"EagerLimit", -1 << 40, 1 << 30, func(c *Config, v int) { c.EagerLimit = v }},
		{"Chunk", 1, 1 << 30, func(c *Config, v int) { c.Chunk = v }},
		{"Window", 1, 1 << 16, func(c *Config, v int) { c.Window = v }},
		{"MaxUnexpected", 1, 65535, func(c *Config, v int) { c.MaxUnexpected = v }},
		{"MaxLeftover", -1 << 40, 1 << 40, func(c *Config, v int) { c.MaxLeftover = v }},
		{"MaxRequests", 1, 1 << 30, func(c *Config, v int) { c.MaxRequests = v }},
		{"Transport.BufferSize", 416, 1 << 30, func(c *Config, v int) { c.Transport.BufferSize = v }},
	} {
		for v, ok := range map[int]bool{f.least: true, f.most: true, f.least - 1: false, f.most + 1: false} {
			if v == 0 || v > 1<<40 || v < -1<<40 {
				continue // asks for the default
			}
			var c Config
			f.set(&c, v)
			c = c.withDefaults()
			want := "<nil>"
			if !ok {
				want = fmt.Sprintf("tagged: config: invalid argument: %s %d: must be %d to %d", f.name, v,
					max(f.least, 0), f.most)
			}
			if err := c.validate(); fmt.Sprint(err) != want || !ok && !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s %d: %v, want %s", f.name, v, err, want)
			}
		}
	}
	// Negative: none.
	c := Config{EagerLimit: -5, MaxLeftover: -5}.withDefaults()
	if c.EagerLimit != 0 || c.MaxLeftover != 0 {
		t.Errorf("%d and %d, want none", c.EagerLimit, c.MaxLeftover)
	}
	for _, c := range []Config{{MaxUnexpected: 7}, {}} {
		if d := c.withDefaults(); d.MaxLeftover != d.MaxUnexpected {
			t.Errorf("%d messages are left over, want as many as %d", d.MaxLeftover, d.MaxUnexpected)
		}
	}
}

// A card is accepted up to the limits of what it may say.
func TestBoundsOfACard(t *testing.T) {
	good := func() Card {
		return Card{Version: wireVersion, MaxUnexpected: 1, Transport: transport.Card{BufferSize: 416,
			Handlers: ^uint64(0)}}
	}
	for _, c := range []struct {
		name string
		set  func(c *Card)
		ok   bool
	}{
		{"the smallest", func(*Card) {}, true},
		{"the largest window", func(c *Card) { c.MaxUnexpected = 65535 }, true},
		{"a larger one", func(c *Card) { c.MaxUnexpected = 65536 }, false},
		{"no window", func(c *Card) { c.MaxUnexpected = 0 }, false},
		{"large buffers", func(c *Card) { c.Transport.BufferSize = 1 << 30 }, true},
		{"buffers too small", func(c *Card) { c.Transport.BufferSize = 415 }, false},
		{"an older version", func(c *Card) { c.Version-- }, false},
		{"a newer version", func(c *Card) { c.Version++ }, false},
	} {
		card := good()
		c.set(&card)
		if err := card.check(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for id := range 64 {
		card := good()
		card.Transport.Handlers &^= 1 << id
		needed := id >= int(amEager) && id <= int(amBatch)
		if err := card.check(); (err != nil) != needed {
			t.Errorf("without a handler for active message %d: %v", id, err)
		}
	}
}

// Regions may touch, and not overlap by a byte, whichever comes first.
func TestRegionsTouchAndDoNotOverlap(t *testing.T) {
	mem := make([]byte, 100)
	for _, c := range []struct {
		name   string
		region []byte
		ok     bool
	}{
		{"just before", mem[30:40], true},
		{"into the first byte", mem[30:41], false},
		{"the same", mem[40:60], false},
		{"the first byte", mem[40:41], false},
		{"the last byte", mem[59:60], false},
		{"all around", mem[39:61], false},
		{"out of the last byte", mem[59:70], false},
		{"just behind", mem[60:70], true},
	} {
		var table regionTable
		add := func(b []byte) bool { return table.add(&Region{buf: b, start: address(b), use: ForSends}) }
		if !add(mem[40:60]) || !add(mem[80:90]) || !add(mem[10:20]) {
			t.Fatal("apart, and refused")
		}
		if add(c.region) != c.ok {
			t.Errorf("%s: %v", c.name, !c.ok)
		}
		if n := len(table.sorted); c.ok != (n == 4) {
			t.Errorf("%s: %d regions", c.name, n)
		}
	}
}

// A buffer is found in the region that holds all of it, and in no other.
func TestBuffersInRegions(t *testing.T) {
	mem := make([]byte, 100)
	var table regionTable
	first := &Region{buf: mem[10:20], start: address(mem[10:]), use: ForSends}
	second := &Region{buf: mem[20:40], start: address(mem[20:]), use: ForSends | ForReceives}
	if !table.add(second) || !table.add(first) {
		t.Fatal("refused")
	}
	for from := range 60 {
		for to := from + 1; to <= 60; to++ {
			for _, use := range []Use{ForSends, ForReceives} {
				var want *Region
				switch {
				case from >= 10 && to <= 20 && use == ForSends:
					want = first
				case from >= 20 && to <= 40:
					want = second
				}
				got, off := table.find(mem[from:to], use)
				if got != want || got != nil && off != uint64(address(mem[from:])-want.start) {
					t.Fatalf("bytes %d to %d for %d: offset %d of %+v", from, to, use, off, got)
				}
			}
		}
	}
	table.remove(first)
	if r, _ := table.find(mem[12:15], ForSends); r != nil {
		t.Error("found in a region that is gone")
	}
	if !table.add(&Region{buf: mem[15:20], start: address(mem[15:])}) {
		t.Error("refused where a region was")
	}
}

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
