// Package ring has the two rings in which the module stores outstanding work: [Window], whose
// values are found by their number, and [FIFO], a queue.
//
// Both are growable arrays of a power of two, indexed by counters that only move forward. A counter
// never wraps; the index is its low bits. So length is a subtraction, "full" and "empty" differ
// without a spare slot, and growing moves each value once. Once they have grown to what is really
// outstanding, they allocate nothing.
//
// Neither is safe for concurrent use.
package ring

// Window holds the live values of a sequence numbered 1, 2, 3, ... that end in the order in which
// they began: a contiguous run of numbers, found without a search.
//
// Invariant: 1 <= Head <= Tail; Tail-Head <= Cap(), a power of two. The value numbered n, with
// Head <= n < Tail, is in slots[n&mask].
type Window[T any] struct {
	// Head is the number of the oldest live value. The owner moves it forward, one by one, as
	// values end.
	Head uint64
	// Tail is the number of the next value. Only Push and Open move it.
	Tail  uint64
	slots []T
	mask  uint64
	grown uint64
}

// MinWindow is the number of slots of a new window, which grows to what is really outstanding. With
// a hundred connections of a request or two each, rings of 64 slots would not stay in the cache.
const MinWindow = 8

// NewWindow makes an empty window.
func NewWindow[T any]() Window[T] {
	return Window[T]{Head: 1, Tail: 1, slots: make([]T, MinWindow), mask: MinWindow - 1}
}

// At returns value n, which must be live.
func (w *Window[T]) At(n uint64) *T { return &w.slots[n&w.mask] }

// Front returns the oldest value. There must be one.
func (w *Window[T]) Front() *T { return &w.slots[w.Head&w.mask] }

// Push opens the slot of the next value and returns it as its last user left it.
func (w *Window[T]) Push() *T {
	if w.Full() {
		w.Grow()
	}
	return w.Open()
}

// Full reports whether there is no slot for another value: then Grow comes before Open. Push does
// all three, but the compiler does not inline it, which costs a hot path 15 instructions.
func (w *Window[T]) Full() bool { return w.Tail-w.Head > w.mask }

// Open is Push while the window is not full.
func (w *Window[T]) Open() *T {
	w.Tail++
	return &w.slots[(w.Tail-1)&w.mask]
}

// Len returns the number of live values.
func (w *Window[T]) Len() int { return int(w.Tail - w.Head) }

// Cap returns how many values the ring holds without growing.
func (w *Window[T]) Cap() int { return len(w.slots) }

// Grown returns how often the ring was enlarged.
func (w *Window[T]) Grown() uint64 { return w.grown }

// Resolve finds the live value whose number has the given low bits; mask has all of these bits set.
// It reports false if no live value has. The window must hold at most mask values.
func (w *Window[T]) Resolve(low, mask uint64) (n uint64, ok bool) {
	n = w.Head + (low-w.Head)&mask
	return n, n < w.Tail
}

// Grow doubles the ring. Slots keep what they own (such as slices), so that growth is the only
// allocation.
func (w *Window[T]) Grow() {
	slots := make([]T, 2*len(w.slots))
	mask := uint64(len(slots) - 1)
	for n := w.Head; n != w.Tail; n++ {
		slots[n&mask] = w.slots[n&w.mask]
	}
	w.slots, w.mask = slots, mask
	w.grown++
}
