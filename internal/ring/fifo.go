package ring

// FIFO is a growable queue of values. The zero value is empty and ready to use.
//
// Invariant: 0 <= tail-head <= len(slots), which is a power of two or zero; slots that hold no
// value are zero, unless callers of Open and Drop left something there.
type FIFO[T any] struct {
	slots      []T
	head, tail uint64
}

// minFIFO is the number of slots of a queue after its first value.
const minFIFO = 16

// Len returns the number of values.
func (f *FIFO[T]) Len() int { return int(f.tail - f.head) }

// Cap returns how many values the queue holds without growing.
func (f *FIFO[T]) Cap() int { return len(f.slots) }

// Push adds a value.
func (f *FIFO[T]) Push(v T) { *f.Open() = v }

// Open adds a value and returns it for the caller to fill.
func (f *FIFO[T]) Open() *T {
	if f.Len() == len(f.slots) {
		f.grow()
	}
	f.tail++
	return &f.slots[(f.tail-1)&uint64(len(f.slots)-1)]
}

// Front returns the oldest value. There must be one.
func (f *FIFO[T]) Front() *T { return &f.slots[f.head&uint64(len(f.slots)-1)] }

// Back returns the newest value. There must be one.
func (f *FIFO[T]) Back() *T { return &f.slots[(f.tail-1)&uint64(len(f.slots)-1)] }

// Pop removes the oldest value and returns it. There must be one.
func (f *FIFO[T]) Pop() (v T) {
	var zero T
	slot := f.Front()
	v, *slot = *slot, zero
	f.head++
	return v
}

// Drop removes the oldest value without clearing its slot, for values that keep nothing alive:
// clearing would cost as much as copying. There must be one.
func (f *FIFO[T]) Drop() { f.head++ }

func (f *FIFO[T]) grow() {
	slots := make([]T, max(minFIFO, 2*len(f.slots)))
	for n := f.head; n != f.tail; n++ {
		slots[n&uint64(len(slots)-1)] = f.slots[n&uint64(len(f.slots)-1)]
	}
	f.slots = slots
}
