package ibverbx

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx/verbs"
)

// refWR is the reference for a staged work request.
type refWR struct {
	id     uint64
	sgl    []verbs.SGE
	inline []byte
}

// checkBatch checks that a batch holds what was staged, and every scatter list in its own place.
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
		b := newSendBatch(1+rng.IntN(size), width)
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
					// A scatter list may become shorter than the room reserved for it.
					b.setSGL(wr, width)
					sgl := b.setSGL(wr, rng.IntN(width+1))
					for i := range sgl {
						sgl[i] = verbs.SGE{Addr: w.id, Length: uint32(i), LKey: rng.Uint32()}
					}
					w.sgl = slices.Clone(sgl)
				}
				want = append(want, w)
			case op < 8:
				n := rng.IntN(len(want) + 1)
				b.posted(n)
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

// The pool lends what came back last, never one batch twice, and none whose lists are too short for
// a rail that was added meanwhile.
func TestBatchPoolLends(t *testing.T) {
	p := batchPool{}
	p.fit(2)
	a, b := p.lend(), p.lend()
	if a == b || a.width != 2 {
		t.Fatalf("lent twice: %v; lists of %d", a == b, a.width)
	}
	p.giveBack(a)
	p.giveBack(b)
	if p.lend() != b || p.lend() != a {
		t.Error("what came back last is not lent first")
	}
	p.giveBack(a)
	p.fit(1)
	p.fit(4) // b is still lent
	p.giveBack(b)
	if c := p.lend(); c == a || c == b || c.width != 4 || len(c.sges) != 4*len(c.wrs) {
		t.Errorf("lists of %d", c.width)
	}
}
