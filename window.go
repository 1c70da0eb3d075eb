package ibverbx

// window holds the live requests of one direction. Requests are numbered 1, 2, 3, ... in posting
// order and end in the same order, so the live ones are a contiguous run of numbers: a ring indexed
// by number, without a search and without moving anything.
//
// Invariant: 1 <= head <= tail; tail-head <= len(slots); len(slots) is a power of two. The request
// numbered n, with head <= n < tail, is in slots[n&mask].
type window[T any] struct {
	slots []T
	mask  uint64
	head  uint64 // oldest live request
	tail  uint64 // number of the next request
	grown uint64 // how often the ring was enlarged
}

// minWindow is the first size of a ring. It grows to what is really outstanding: with a hundred
// virtual queue pairs that have a request or two each, rings of 64 slots, walked round and round,
// do not stay in the cache.
const minWindow = 8

func newWindow[T any]() window[T] {
	return window[T]{slots: make([]T, minWindow), mask: minWindow - 1, head: 1, tail: 1}
}

// at returns the slot of request n, which must be live.
func (w *window[T]) at(n uint64) *T { return &w.slots[n&w.mask] }

// push opens the slot of the next request and returns it as its last user left it.
func (w *window[T]) push() *T {
	if w.tail-w.head == uint64(len(w.slots)) {
		w.grow()
	}
	t := &w.slots[w.tail&w.mask]
	w.tail++
	return t
}

// len is the number of live requests.
func (w *window[T]) len() int { return int(w.tail - w.head) }

// resolve finds the live request whose number has the given low bits, as a physical work-request id
// carries them. It reports false when no live request has: the completion is stale or invented.
func (w *window[T]) resolve(low, mask uint64) (n uint64, ok bool) {
	n = w.head + (low-w.head)&mask
	return n, n < w.tail
}

// grow doubles the ring. Slots keep what they own (copied scatter lists), so growth is the only
// allocation.
func (w *window[T]) grow() {
	slots := make([]T, 2*len(w.slots))
	mask := uint64(len(slots) - 1)
	for n := w.head; n != w.tail; n++ {
		slots[n&mask] = w.slots[n&w.mask]
	}
	w.slots, w.mask = slots, mask
	w.grown++
}

// fifo is a growable ring of values, for what waits its turn without a number.
//
// Invariant: tail-head <= len(slots), a power of two or zero.
type fifo[T any] struct {
	slots      []T
	head, tail uint64
}

func (f *fifo[T]) len() int { return int(f.tail - f.head) }

func (f *fifo[T]) push(v T) { *f.open() = v }

// open adds a value and returns it, to be filled.
func (f *fifo[T]) open() *T {
	if f.len() == len(f.slots) {
		slots := make([]T, max(16, 2*len(f.slots)))
		for n := f.head; n != f.tail; n++ {
			slots[n&uint64(len(slots)-1)] = f.slots[n&uint64(len(f.slots)-1)]
		}
		f.slots = slots
	}
	f.tail++
	return &f.slots[(f.tail-1)&uint64(len(f.slots)-1)]
}

func (f *fifo[T]) pop() (v T) {
	v = f.slots[f.head&uint64(len(f.slots)-1)]
	f.head++
	return v
}
