package ibverbx

import (
	"math"
	"testing"

	"ibverbx/verbs"
)

func TestKeysCoverTheirRangeAndNoMore(t *testing.T) {
	const top = math.MaxUint64
	for _, c := range []struct {
		base, length, addr, n uint64
		want                  bool
	}{
		{1000, 100, 1000, 100, true},
		{1000, 100, 1000, 101, false},
		{1000, 100, 999, 1, false},
		{1000, 100, 999, 0, false},
		{1000, 100, 1099, 1, true},
		{1000, 100, 1100, 0, true},
		{1000, 100, 1100, 1, false},
		{1000, 100, 1050, top, false},
		{1000, 100, 1050, top - 1049, false}, // the sum is 0
		{top - 9, 10, top - 9, 10, true},     // up to the end
		{top - 9, 10, top, 1, true},
		{top - 9, 10, top, 2, false},
		{top - 9, 10, 0, 1, false}, // wraps
		{top - 9, 10, top - 9, top, false},
		{0, 0, 0, 0, true},
		{0, 0, 0, 1, false},
		{0, top, 0, top, true}, // raw memory
		{0, top, 1 << 63, 1 << 62, true},
		{0, top, top - 5, 5, true},
		{0, top, top - 5, 100, false}, // wraps
		{0, top, 1 << 63, 1 << 63, false},
	} {
		k := Keys{base: c.base, length: c.length}
		if got := k.covers(c.addr, c.n); got != c.want {
			t.Errorf("%s covers %s: %v", addrRange(c.base, c.length), addrRange(c.addr, c.n), got)
		}
	}
}

func TestKeysByDevice(t *testing.T) {
	k := NewKeys(map[verbs.DeviceID]uint32{0: 7, 63: 9, 64: 11, 255: 12})
	for _, c := range []struct {
		dev verbs.DeviceID
		key uint32
		ok  bool
	}{{0, 7, true}, {1, 0, false}, {63, 9, true}, {64, 0, false}, {255, 0, false}} {
		if key, ok := k.Key(c.dev); key != c.key || ok != c.ok {
			t.Errorf("device %d: key %d, %v", c.dev, key, ok)
		}
	}
	if k.have != 1|1<<63 || k.at(63) != 9 {
		t.Errorf("have %#x", k.have)
	}
	if key, ok := (*Keys)(nil).Key(0); ok || key != 0 {
		t.Error("nil keys have a key")
	}
}
