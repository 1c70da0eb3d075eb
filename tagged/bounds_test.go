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
