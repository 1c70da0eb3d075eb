package list

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type element struct {
	a, b Link[element] // it can be in two lists at a time
	n    int
}

// elements walks a list, both ways, and checks its invariant.
func elements(t *testing.T, l *List[element]) (all []*element) {
	t.Helper()
	var prev *Link[element]
	for n := l.Front(); n != nil; n = n.Next() {
		if n.prev != prev || !n.Listed() {
			t.Fatalf("element %d of the list: links %+v", len(all), n)
		}
		all = append(all, n.Owner())
		prev = n
	}
	if l.tail != prev || l.Len() != len(all) || l.Empty() != (len(all) == 0) {
		t.Fatalf("%d elements, tail %p: %+v", len(all), prev, l)
	}
	if len(all) != 0 && l.First() != all[0] || len(all) == 0 && l.First() != nil {
		t.Fatalf("First is %v of %v", l.First(), all)
	}
	return all
}

// TestAgainstSlices does the same to two lists, which share their elements, and to two slices.
func TestAgainstSlices(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var listA, listB List[element]
	var a, b []*element
	pool := make([]element, 20)
	for i := range pool {
		pool[i].n = i
	}
	step := func(l *List[element], s []*element, link func(*element) *Link[element]) []*element {
		e := &pool[rng.IntN(len(pool))]
		n := link(e)
		i := slices.Index(s, e)
		if n.Listed() != (i >= 0) {
			t.Fatalf("element %d: Listed is %v, at %d", e.n, n.Listed(), i)
		}
		switch {
		case i >= 0:
			l.Remove(n)
			s = slices.Delete(s, i, i+1)
		case rng.IntN(4) == 0:
			l.PushFront(n, e)
			s = slices.Insert(s, 0, e)
		case rng.IntN(4) == 0:
			got := l.PopFront()
			if len(s) == 0 && got != nil || len(s) != 0 && got != s[0] {
				t.Fatalf("PopFront is %v of %v", got, s)
			}
			s = s[min(1, len(s)):]
		default:
			l.PushBack(n, e)
			s = append(s, e)
		}
		if got := elements(t, l); !slices.Equal(got, s) {
			t.Fatalf("%v, want %v", got, s)
		}
		return s
	}
	for range 10000 {
		a = step(&listA, a, func(e *element) *Link[element] { return &e.a })
		b = step(&listB, b, func(e *element) *Link[element] { return &e.b })
	}
}

// TestRemoveWhileWalking takes elements out on the way: the next link has to be read before.
func TestRemoveWhileWalking(t *testing.T) {
	var l List[element]
	pool := make([]element, 6)
	for i := range pool {
		pool[i].n = i
		l.PushBack(&pool[i].a, &pool[i])
	}
	for n := l.Front(); n != nil; {
		next := n.Next()
		if n.Owner().n%2 == 0 {
			l.Remove(n)
		}
		n = next
	}
	if got := elements(t, &l); len(got) != 3 || got[0].n != 1 || got[2].n != 5 {
		t.Errorf("%v", got)
	}
}

// TestNothingIsAllocated holds the point of links inside the elements.
func TestNothingIsAllocated(t *testing.T) {
	var l List[element]
	var e, f element
	if n := testing.AllocsPerRun(100, func() {
		l.PushBack(&e.a, &e)
		l.PushFront(&f.a, &f)
		l.Remove(&e.a)
		l.PopFront()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
