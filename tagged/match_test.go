package tagged

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/verbs/soft"
)

// TestMatchingAgainstAList compares the hash tables with the rule itself: a message takes the first
// receive that takes it, a receive the first message.
func TestMatchingAgainstAList(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var p posted
		var u unexpected
		p.exact.init(rng.Uint64())
		u.hash(rng.Uint64())
		var receives, messages []*entry
		tags := 1 + rng.Uint64N(300)
		for step := range 2000 {
			tag, mask := rng.Uint64N(tags), Exact
			if rng.IntN(3) == 0 {
				mask = rng.Uint64() & rng.Uint64()
			}
			switch rng.IntN(5) {
			case 0, 1: // a message
				i := slices.IndexFunc(receives, func(e *entry) bool { return e.takes(tag) })
				got := p.find(tag)
				switch {
				case i < 0 && got == nil:
					e := &entry{tag: tag, mask: Exact, in: &inbound{}}
					messages = append(messages, e)
					u.push(e)
				case i < 0 || got != receives[i]:
					t.Fatalf("seed %d, step %d: tag %d takes %v, not receive %d", seed, step, tag, got, i)
				default:
					p.remove(got)
					receives = slices.Delete(receives, i, i+1)
				}
			case 2, 3: // a receive
				i := slices.IndexFunc(messages, func(e *entry) bool { return (e.tag^tag)&mask == 0 })
				got := u.find(tag, mask)
				switch {
				case i < 0 && got == nil:
					e := &entry{tag: tag, mask: mask, req: &Request{}}
					receives = append(receives, e)
					p.push(e, uint64(step))
				case i < 0 || got != messages[i].in:
					t.Fatalf("seed %d, step %d: %#x under %#x takes %v, not message %d", seed, step, tag,
						mask, got, i)
				default:
					u.remove(messages[i])
					messages = slices.Delete(messages, i, i+1)
				}
			default: // a cancelled receive
				if len(receives) != 0 {
					i := rng.IntN(len(receives))
					p.remove(receives[i])
					receives = slices.Delete(receives, i, i+1)
				}
			}
			if p.count != len(receives) || u.byTag.count != len(messages) {
				t.Fatalf("seed %d, step %d: %d receives, %d messages: want %d, %d", seed, step, p.count,
					u.byTag.count, len(receives), len(messages))
			}
			if step%100 == 0 {
				sameReceives(t, p.all(), receives)
			}
		}
	}
}

// sameReceives demands the same receives, in any order.
func sameReceives(t *testing.T, got, want []*entry) {
	t.Helper()
	order := func(a, b *entry) int { return cmp.Compare(a.seq, b.seq) }
	slices.SortFunc(got, order)
	if !slices.Equal(got, want) {
		t.Fatalf("%d receives are listed, of %d", len(got), len(want))
	}
}

// chain is the mean number of entries that stand before a tag in its bucket, itself included.
func (t *hashTable) chain() float64 {
	sum := 0
	for i := range t.buckets {
		n := t.buckets[i].Len()
		sum += n * (n + 1) / 2
	}
	return float64(sum) / float64(t.count)
}

// TestCollidingTags: a peer that knows this package cannot choose tags that share a bucket, since
// it does not know the factor of the worker.
func TestCollidingTags(t *testing.T) {
	const known, n = 0x9e3779b97f4a7c15, 20000
	inverse := uint64(1)
	for range 6 {
		inverse *= 2 - known*inverse // Newton: the number of right bits doubles
	}
	fill := func(factor uint64) *hashTable {
		var table hashTable
		table.init(factor)
		for i := range uint64(n) {
			table.push(&entry{tag: i * inverse, mask: Exact})
		}
		return &table
	}
	if chain := fill(known).chain(); chain < n/4 {
		t.Fatalf("the tags do not collide: %v entries on the way to one", chain)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		factor := rng.Uint64()
		if chain := fill(factor).chain(); chain > 20 {
			t.Errorf("factor %#x: %v entries on the way to one", factor, chain)
		}
	}
}

// A table begins with 64 buckets, and has the fewest that are at least half as many as its entries:
// few entries share one.
func TestATableGrowsWithItsEntries(t *testing.T) {
	var table hashTable
	table.init(1)
	want := 64
	for n := 1; n <= 5000; n++ {
		table.push(&entry{tag: uint64(n), mask: Exact})
		if 2*want < n {
			want *= 2
		}
		if len(table.buckets) != want || 1<<(64-table.shift) != want || table.count != n {
			t.Fatalf("%d entries, counted as %d: %d buckets, shift %d", n, table.count, len(table.buckets),
				table.shift)
		}
	}
}

// TestFactors: each worker draws its own.
func TestFactors(t *testing.T) {
	f, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(f.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[uint64]bool{}
	for range 3 {
		w, err := NewWorker(dom, Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range []*hashTable{&w.matching.posted.exact, &w.matching.unexpected.byTag} {
			drawn[table.factor] = true
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(drawn) != 3 {
		t.Errorf("factors of three workers: %v", drawn)
	}
	if err := errors.Join(dom.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}

// BenchmarkMatch posts a receive and finds it, or keeps a message and finds it, among n others with
// other tags. Wild receives are those of a mask.
func BenchmarkMatch(b *testing.B) {
	const factor = 0x9e3779b97f4a7c15
	for _, c := range []struct {
		name string
		mask uint64
		n    []int
	}{{"posted", Exact, []int{0, 100, 10000}}, {"wild", Exact &^ 1, []int{0, 100, 1000}}} {
		for _, n := range c.n {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				var p posted
				p.exact.init(factor)
				seq := uint64(0)
				push := func(e *entry) { seq++; p.push(e, seq) }
				for i := range n {
					push(&entry{tag: uint64(i) + 1<<40, mask: c.mask, req: &Request{}})
				}
				e := &entry{tag: 7, mask: c.mask, req: &Request{}}
				b.ReportAllocs()
				for b.Loop() {
					push(e)
					first := p.find(7)
					if p.remove(first); first != e {
						b.Fatal("lost")
					}
				}
			})
		}
	}
	for _, n := range []int{0, 100, 10000} {
		b.Run(fmt.Sprintf("unexpected/%d", n), func(b *testing.B) {
			var u unexpected
			u.hash(factor)
			for i := range n {
				u.push(&entry{tag: uint64(i) + 1<<40, mask: Exact, in: &inbound{}})
			}
			e := &entry{tag: 7, mask: Exact, in: &inbound{}}
			b.ReportAllocs()
			for b.Loop() {
				u.push(e)
				if u.find(7, Exact) != e.in {
					b.Fatal("lost")
				}
				u.remove(e)
			}
		})
	}
}
