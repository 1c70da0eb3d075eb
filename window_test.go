package ibverbx

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx/verbs"
)

// refWR is a staged work request as a test remembers it.
type refWR struct {
	id     uint64
	sgl    []verbs.SGE
	inline []byte
}

// checkBatch compares what waits in a batch with what was staged, and that every scatter list lies
// in its own place.
func checkBatch(t *testing.T, b *sendBatch, want []refWR) {
	t.Helper()
	if b.head < 0 || b.head > b.tail || b.tail > len(b.wrs) || b.tail-b.head != len(want) {
		t.Fatalf("head %d tail %d of %d, want %d waiting", b.head, b.tail, len(b.wrs), len(want))
	}
	for i, w := range want {
		at := b.head + i
		wr := &b.wrs[at]
		if wr.ID != w.id || !slices.Equal(wr.SGL, w.sgl) || !slices.Equal(wr.Inline, w.inline) {
			t.Fatalf("request %d is {%d %v %q}, want {%d %v %q}", i, wr.ID, wr.SGL, wr.Inline, w.id, w.sgl,
				w.inline)
		}
		if len(wr.SGL) != 0 && &wr.SGL[0] != &b.sges[at*b.width] {
			t.Fatalf("request %d: the scatter list is not in place %d", i, at)
		}
	}
}

func TestSendBatchKeepsRequestsWhole(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		size, width := 1+rng.IntN(9), 1+rng.IntN(4)
		b := newSendBatch(size, width)
		var want []refWR
		next := uint64(1)
		for range 5000 {
			switch op := rng.IntN(10); {
			case op < 6 && len(want) < size:
				w := refWR{id: next}
				next++
				wr := b.add()
				wr.ID = w.id
				if rng.IntN(4) == 0 {
					w.inline = []byte(fmt.Sprint("inline ", w.id))
					b.setInline(wr, w.inline)
				} else {
					// Like a scatter list that turns out shorter than was possible.
					b.setSGL(wr, width)
					sgl := b.setSGL(wr, rng.IntN(width+1))
					for i := range sgl {
						sgl[i] = verbs.SGE{Addr: w.id, Length: uint32(i), LKey: rng.Uint32()}
					}
					w.sgl = slices.Clone(sgl)
				}
				want = append(want, w)
			case op < 8:
				// A post that accepts some, as rail.post counts it.
				n := rng.IntN(len(want) + 1)
				b.head += n
				if b.head == b.tail {
					b.head, b.tail = 0, 0
				}
				want = want[n:]
			case op < 9:
				b.compact()
				if b.head != 0 && b.tail != 0 {
					t.Fatalf("compacted to %d..%d", b.head, b.tail)
				}
			default:
				lost := func(id uint64) bool { return id%3 == next%3 }
				b.drop(lost)
				want = slices.DeleteFunc(want, func(w refWR) bool { return lost(w.id) })
			}
			checkBatch(t, &b, want)
		}
	}
}

func TestRouteTable(t *testing.T) {
	table := &routeTable{}
	ref := map[uint32]*rail{}
	rng := rand.New(rand.NewPCG(4, 4))
	nums := []uint32{0, 1, 17, 1<<12 - 1, 1 << 12, 1<<24 - 1, 1<<24 - 2, 1 << 23}
	for range 100 {
		nums = append(nums, rng.Uint32N(1<<24))
	}
	for range 20_000 {
		num := nums[rng.IntN(len(nums))]
		switch {
		case ref[num] == nil:
			ref[num] = &rail{}
			table.add(num, ref[num])
		case rng.IntN(2) == 0:
			table.remove(num, &rail{}) // not its owner: no effect
		default:
			table.remove(num, ref[num])
			table.remove(num, ref[num]) // gone already
			delete(ref, num)
		}
		for _, n := range []uint32{num, nums[rng.IntN(len(nums))], num ^ 1, num ^ 1<<12} {
			if n &= 1<<24 - 1; table.find(n) != ref[n] {
				t.Fatalf("number %d leads to %p, want %p", n, table.find(n), ref[n])
			}
		}
	}
	for num, r := range ref {
		table.remove(num, r)
	}
	for i, page := range table.pages {
		if page != nil {
			t.Fatalf("page %d is left behind", i)
		}
	}
}

func TestWRIDRoundTrip(t *testing.T) {
	for _, kind := range []uint64{kindData, kindNumbered, kindFinal, kindRecv, kindCredit, kindImm,
		kindMessage} {
		for _, railIndex := range []int{0, 1, 127, MaxRails} { // MaxRails: the notify QP behind the last
			for _, aux := range []uint32{0, 1, 0xfffffe, wridAuxMask} {
				for _, number := range []uint64{0, 1, wridNumberMask, wridNumberMask + 1, 1<<40 + 12345,
					math.MaxUint64} {
					id := wrid(kind, uint64(railIndex)<<wridRailShift, aux, number)
					if wridKind(id) != kind || wridRail(id) != railIndex || wridAux(id) != aux ||
						wridNumber(id) != number&(1<<28-1) {
						t.Errorf("kind %d rail %d aux %#x number %#x came back as %d %d %#x %#x",
							kind, railIndex, aux, number, wridKind(id), wridRail(id), wridAux(id),
							wridNumber(id))
					}
				}
			}
		}
	}
}

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
		{top - 9, 10, top - 9, 10, true},     // up to the very end
		{top - 9, 10, top, 1, true},
		{top - 9, 10, top, 2, false},
		{top - 9, 10, 0, 1, false}, // round the end
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
	if _, ok := (*Keys)(nil).Key(0); ok {
		t.Error("no keys have a key")
	}
}
