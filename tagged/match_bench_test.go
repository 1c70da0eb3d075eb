package tagged

import (
	"fmt"
	"testing"
)

// BenchmarkMatch posts a receive and finds it, or keeps a message and finds it, among n others with
// other tags.
func BenchmarkMatch(b *testing.B) {
	const factor = 0x9e3779b97f4a7c15
	seq := uint64(0)
	for _, n := range []int{0, 100, 10000} {
		b.Run(fmt.Sprintf("posted/%d", n), func(b *testing.B) {
			var p posted
			p.exact.init(factor)
			for i := range n {
				seq++
				p.push(&entry{tag: uint64(i) + 1<<40, mask: Exact, req: &Request{}}, seq)
			}
			e := &entry{tag: 7, mask: Exact, req: &Request{}}
			b.ReportAllocs()
			for b.Loop() {
				seq++
				p.push(e, seq)
				first := p.find(7)
				if p.remove(first); first != e {
					b.Fatal("lost")
				}
			}
		})
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
		if n == 10000 {
			n = 1000
		}
		b.Run(fmt.Sprintf("wild/%d", n), func(b *testing.B) {
			var p posted
			p.exact.init(factor)
			for i := range n {
				seq++
				p.push(&entry{tag: uint64(i) + 1<<40, mask: Exact &^ 1, req: &Request{}}, seq)
			}
			e := &entry{tag: 7, mask: Exact &^ 1, req: &Request{}}
			b.ReportAllocs()
			for b.Loop() {
				seq++
				p.push(e, seq)
				first := p.find(7)
				if p.remove(first); first != e {
					b.Fatal("lost")
				}
			}
		})
	}
}
