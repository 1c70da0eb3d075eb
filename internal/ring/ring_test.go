package ring

import (
	"math/rand/v2"
	"testing"
)

func TestWindowKeepsNumbersAcrossGrowth(t *testing.T) {
	w := NewWindow[uint64]()
	if w.Len() != 0 {
		t.Fatal("not empty")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		if w.Len() > 0 && rng.IntN(5) < 2 {
			w.Head++
		} else {
			n := w.Tail
			*w.Push() = n * 3
		}
		if w.Len() > len(w.slots) || len(w.slots)&(len(w.slots)-1) != 0 || int(w.mask) != len(w.slots)-1 {
			t.Fatalf("%d requests in %d slots, mask %#x", w.Len(), len(w.slots), w.mask)
		}
	}
	for n := w.Head; n != w.Tail; n++ {
		if *w.At(n) != n*3 {
			t.Fatalf("slot of %d holds %d", n, *w.At(n))
		}
	}
	if w.grown == 0 || len(w.slots) != MinWindow<<w.grown {
		t.Errorf("grown %d times to %d slots", w.grown, len(w.slots))
	}
}

func TestWindowSlotsKeepWhatTheyOwn(t *testing.T) {
	w := NewWindow[[]int]()
	for range MinWindow {
		*w.Push() = make([]int, 0, 10)
	}
	w.Head = w.Tail
	for range MinWindow {
		if s := w.Push(); cap(*s) != 10 {
			t.Fatal("a reused slot has lost its memory")
		}
		w.Head++
	}
	if w.grown != 0 {
		t.Error("the ring grew although it was never full")
	}
}

func TestWindowResolvesLowBits(t *testing.T) {
	const (
		lowBits = 28
		wrap    = 1 << lowBits
		lowMask = wrap - 1
	)
	for _, head := range []uint64{1, 100, wrap - 5, wrap, 7*wrap - 5, 1<<40 + 3} {
		w := NewWindow[int]()
		w.Head, w.Tail = head, head
		for range 10 {
			w.Push()
		}
		for n := head; n < head+10; n++ {
			if got, ok := w.Resolve(n&lowMask, lowMask); !ok || got != n {
				t.Errorf("head %d: %#x resolves to %d, %v, want %d", head, n&lowMask, got, ok, n)
			}
		}
		for _, stale := range []uint64{head - 1, head + 10, head + wrap/2, head - 10} {
			if got, ok := w.Resolve(stale&lowMask, lowMask); ok {
				t.Errorf("head %d: %#x is no live request, resolves to %d", head, stale&lowMask, got)
			}
		}
		w.Head = w.Tail
		if _, ok := w.Resolve(head&lowMask, lowMask); ok {
			t.Errorf("head %d: an empty window resolves", head)
		}
	}
}

func TestFIFOKeepsOrder(t *testing.T) {
	f := FIFO[int]{}
	rng := rand.New(rand.NewPCG(2, 2))
	in, out := 0, 0
	for i := range 50_000 {
		// Up to a few hundred waiting, and down to none again.
		if push := rng.IntN(1000) < 500+400*(1-i/10_000%2*2); push {
			f.Push(in)
			if got := *f.Back(); got != in {
				t.Fatalf("the newest is %d, want %d", got, in)
			}
			in++
		} else if f.Len() != 0 {
			if got := f.Pop(); got != out {
				t.Fatalf("popped %d, want %d", got, out)
			}
			out++
		}
		if f.Len() != in-out || f.Len() > len(f.slots) || len(f.slots)&(len(f.slots)-1) != 0 {
			t.Fatalf("length %d of %d slots, want %d", f.Len(), len(f.slots), in-out)
		}
	}
	for ; out < in; out++ {
		if got := f.Pop(); got != out {
			t.Fatalf("popped %d, want %d", got, out)
		}
	}
}

func TestFIFOForgetsWhatItGivesAway(t *testing.T) {
	f := FIFO[*int]{}
	for range 3 {
		f.Push(new(int))
		f.Pop()
	}
	for i, p := range f.slots {
		if p != nil {
			t.Errorf("slot %d keeps its value alive", i)
		}
	}
}
