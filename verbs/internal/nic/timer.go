package nic

import "container/heap"

// Timer is the timer of one event of its owner. It is a field of the owner, so that arming
// allocates nothing.
type Timer[T any] struct {
	Of   T     // the owner, and its event
	When int64 // the provider's time; set by Arm
	at   int   // 1 + index in its heap; 0 if it is not armed
}

// IsArmed reports whether the timer is in a heap.
func (t *Timer[T]) IsArmed() bool { return t.at != 0 }

// TimerHeap holds the armed timers, the next one first. Its Len, Less, Swap, Push and Pop are only
// for container/heap.
type TimerHeap[T any] []*Timer[T]

// Arm sets a timer, or changes its time if it is armed.
func (h *TimerHeap[T]) Arm(t *Timer[T], when int64) {
	t.When = when
	if t.at != 0 {
		heap.Fix(h, t.at-1)
	} else {
		heap.Push(h, t)
	}
}

// Disarm stops a timer if it is armed.
func (h *TimerHeap[T]) Disarm(t *Timer[T]) {
	if t.at != 0 {
		heap.Remove(h, t.at-1)
	}
}

// Due removes and returns the first timer if it is due; nil if none is.
func (h *TimerHeap[T]) Due(now int64) *Timer[T] {
	if len(*h) == 0 || (*h)[0].When > now {
		return nil
	}
	return heap.Pop(h).(*Timer[T])
}

// First returns the time of the first timer, or never if none is armed.
func (h TimerHeap[T]) First(never int64) int64 {
	if len(h) == 0 {
		return never
	}
	return h[0].When
}

// Len implements heap.Interface.
func (h TimerHeap[T]) Len() int { return len(h) }

// Less implements heap.Interface.
func (h TimerHeap[T]) Less(i, j int) bool { return h[i].When < h[j].When }

// Swap implements heap.Interface.
func (h TimerHeap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i+1, j+1
}

// Push implements heap.Interface.
func (h *TimerHeap[T]) Push(t any) {
	*h = append(*h, t.(*Timer[T]))
	t.(*Timer[T]).at = len(*h)
}

// Pop implements heap.Interface.
func (h *TimerHeap[T]) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.at = 0
	return t
}
