package tagged

import (
	"fmt"
	"testing"
)

// BenchmarkMatch posts a receive and finds it, or keeps a message and finds it, among n others with
// other tags.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{0, 100, 10000} {
		b.Run(fmt.Sprintf("posted/%d", n), func(b *testing.B) {
			var p posted
			p.exact.init()
			for i := range n {
				p.push(&entry{tag: uint64(i) + 1<<40, mask: Exact, req: &Request{}})
			}
			e := &entry{tag: 7, mask: Exact, req: &Request{}}
			b.ReportAllocs()
			for b.Loop() {
				p.push(e)
				if p.take(7) != e.req {
					b.Fatal("lost")
				}
			}
		})
		b.Run(fmt.Sprintf("unexpected/%d", n), func(b *testing.B) {
			var u unexpected
			u.byTag.init()
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
			p.exact.init()
			for i := range n {
				p.push(&entry{tag: uint64(i) + 1<<40, mask: Exact &^ 1, req: &Request{}})
			}
			e := &entry{tag: 7, mask: Exact &^ 1, req: &Request{}}
			b.ReportAllocs()
			for b.Loop() {
				p.push(e)
				if p.take(7) != e.req {
					b.Fatal("lost")
				}
			}
		})
	}
}
