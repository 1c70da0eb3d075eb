package roce

import (
	"container/heap"
	"time"

	"ibverbx/verbs/roce/internal/rc"
)

// timer is when the engine of a queue pair has to be called. Each has one, so that arming it
// allocates nothing.
type timer struct {
	when int64
	at   int // 1 + index in the heap; 0 when it is not armed
	qp   *QP
}

func (t *timer) init(q *QP) { t.qp = q }

// timers are those of a NIC. The NIC's lock guards them.
//
// A timer that is put off stays where it is in the heap, and is put off when it comes up: most are,
// with every packet that arrives.
type timers struct {
	dev   *Device
	heap  timerHeap
	alarm alarm
	next  int64 // when the alarm goes off; rc.Never if it is not set
}

func (t *timers) init(d *Device) {
	t.dev, t.next = d, rc.Never
	t.alarm = time.AfterFunc(time.Hour, d.tick)
	t.alarm.Stop()
}

func (t *timers) stop() { t.alarm.Stop() }

// arm sets a timer.
func (t *timers) arm(x *timer, when int64) {
	switch {
	case x.at != 0 && x.when <= when:
		return // it is looked at then
	case when == rc.Never:
		return
	}
	x.when = when
	if x.at != 0 {
		heap.Fix(&t.heap, x.at-1)
	} else {
		heap.Push(&t.heap, x)
	}
	t.wind()
}

// disarm stops a timer.
func (t *timers) disarm(x *timer) {
	if x.at != 0 {
		heap.Remove(&t.heap, x.at-1)
	}
}

// wind sets the alarm to the first timer.
func (t *timers) wind() {
	if len(t.heap) != 0 && t.heap[0].when < t.next {
		t.next = t.heap[0].when
		t.alarm.Reset(time.Duration(t.next - t.dev.now()))
	}
}

// tick calls the engines whose time has come. What has arrived counts first: if the process did not
// run for a while, the answers that the engines wait for are there.
func (d *Device) tick() {
	_ = d.recv.receive()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.core.Closed != "" {
		return
	}
	t := &d.timers
	t.next = rc.Never
	now := d.now()
	for len(t.heap) != 0 && t.heap[0].when <= now {
		x := heap.Pop(&t.heap).(*timer)
		if x.qp.engine.Deadline() <= now {
			x.qp.engine.Tick(now)
		}
		x.qp.transmit()
	}
	t.wind()
}

// timerHeap is timers, the next one first.
type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].when < h[j].when }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i+1, j+1
}

// Push is container/heap's.
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	*h = append(*h, t)
	t.at = len(*h)
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
