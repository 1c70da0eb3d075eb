package soft

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"ibverbx/verbs/internal/nic"
)

// spinWindow is the time before a simulated deadline at which the worker stops sleeping, because
// the runtime's timers may be late by a millisecond.
const spinWindow = int64(1200 * time.Microsecond)

// worker is a NIC's goroutine of the background engine, and its work. It starts when it is first
// needed.
type worker struct {
	started bool
	wakeAt  int64         // when to wake, while parked; the minimum while running, so that nothing wakes it
	nudge   chan struct{} // wakes it
	nudged  atomic.Bool   // wakes it while it spins

	first, last *QP // the run queue
	backlog     atomic.Int32
	timers      nic.TimerHeap[timed]
	// dueAt is the time of the first timer; MaxInt64 for none. Pollers read it without the lock.
	dueAt    atomic.Int64
	wireFree int64 // when the last message leaves the wire
}

func (w *worker) init() {
	w.nudge = make(chan struct{}, 1)
	w.wakeAt = math.MaxInt64
	w.dueAt.Store(math.MaxInt64)
}

// updateDue sets dueAt.
func (w *worker) updateDue() {
	w.dueAt.Store(w.timers.First(math.MaxInt64))
}

// enqueue adds a queue pair to the run queue.
func (w *worker) enqueue(q *QP) {
	s := &q.run.background
	s.queued, s.next = true, nil
	if w.last == nil {
		w.first = q
	} else {
		w.last.run.background.next = q
	}
	w.last = q
	w.backlog.Add(1)
}

// dequeue removes and returns the first queue pair of the run queue.
func (w *worker) dequeue() *QP {
	q := w.first
	s := &q.run.background
	w.first = s.next
	if w.first == nil {
		w.last = nil
	}
	s.queued, s.next = false, nil
	w.backlog.Add(-1)
	return q
}

// putBack puts a queue pair at the front of the run queue.
func (w *worker) putBack(q *QP) {
	s := &q.run.background
	s.queued, s.next = true, w.first
	w.first = q
	if w.last == nil {
		w.last = q
	}
	w.backlog.Add(1)
}

// wake wakes the worker of d if it sleeps.
func (b *background) wake(d *Device) {
	w := &d.worker
	if !w.started {
		if b.f.closed {
			return
		}
		w.started = true
		w.wakeAt = math.MinInt64
		b.workers.Add(1)
		go b.work(d)
		return
	}
	if w.wakeAt == math.MinInt64 {
		return
	}
	w.wakeAt = math.MinInt64
	w.nudged.Store(true)
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

// work is the worker's goroutine.
func (b *background) work(d *Device) {
	defer b.workers.Done()
	f, w := b.f, &d.worker
	sleeper := time.NewTimer(time.Hour)
	defer sleeper.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		b.fireDue(w)
		departure := int64(0)
		if w.first != nil {
			departure = b.departure(d)
		}
		if w.first != nil && departure == 0 {
			b.serve(w.dequeue())
			// Let posts and polls take the lock, too.
			f.mu.Unlock()
			f.mu.Lock()
			continue
		}
		if f.closed {
			return
		}
		w.wakeAt = math.MaxInt64
		var precise bool // matters only if there is a time to wake
		if len(w.timers) > 0 {
			w.wakeAt = w.timers[0].When
			precise = w.timers[0].Of.precise()
		}
		if departure != 0 && departure < w.wakeAt {
			w.wakeAt = departure
			precise = true
		}
		until := w.wakeAt
		w.nudged.Store(false)
		f.mu.Unlock()
		b.sleep(w, until, precise, sleeper)
		f.mu.Lock()
		w.wakeAt = math.MinInt64
	}
}

// sleep returns at a time, or when the worker is nudged.
func (b *background) sleep(w *worker, until int64, precise bool, sleeper *time.Timer) {
	if until == math.MaxInt64 {
		<-w.nudge
		return
	}
	d := until - b.now()
	if precise {
		d -= spinWindow
	}
	if d > 0 {
		sleeper.Reset(time.Duration(d))
		select {
		case <-w.nudge:
			return
		case <-sleeper.C:
		}
	}
	for precise && !w.nudged.Load() && b.now() < until {
		runtime.Gosched()
	}
}
