package soft

import "container/heap"

// timerKind says what happens when a timer runs out.
type timerKind uint8

const (
	timerRetry  timerKind = iota // a receiver was not ready, or the peer did not answer
	timerAck                     // the oldest acknowledgement is back
	timerArrive                  // the oldest message that is still on its way to a receive is there
	timerKinds
)

// timer is something that happens to a queue pair at a time. Each has one of every kind, so arming
// allocates nothing.
type timer struct {
	when int64
	at   int // 1 + index in its heap; 0 when it is not armed
	qp   *QP
	kind timerKind
}

// precise reports whether being late, by the scheduler's delays, would spoil a simulated speed.
func (t *timer) precise() bool { return t.kind != timerRetry }

// timerHeap is a worker's timers, the next one first.
type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].when < h[j].when }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i+1, j+1
}

// Push is container/heap's.
func (h *timerHeap) Push(t any) {
	*h = append(*h, t.(*timer))
	t.(*timer).at = len(*h)
}

// Pop is container/heap's.
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.at = 0
	return t
}

// arm sets a timer, new or again.
func (h *timerHeap) arm(t *timer, when int64) {
	t.when = when
	if t.at != 0 {
		heap.Fix(h, t.at-1)
	} else {
		heap.Push(h, t)
	}
}

// disarm stops a timer if it is set.
func (h *timerHeap) disarm(t *timer) {
	if t.at != 0 {
		heap.Remove(h, t.at-1)
	}
}

// due removes and returns the first timer if its time has come.
func (h *timerHeap) due(now int64) *timer {
	if len(*h) == 0 || (*h)[0].when > now {
		return nil
	}
	return heap.Pop(h).(*timer)
}
