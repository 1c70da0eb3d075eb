package transport

import (
	"sync"

	"ibverbx"
)

// eventQueue calls the functions of Config.QP.Events outside of the worker's locks, in the order in
// which things happen. A virtual queue pair reports while the worker is locked, so an event is put
// into the queue, and a goroutine that lives as long as the queue is not empty calls its function.
//
// Invariant: there is a goroutine if and only if running is set; without one the queue is empty.
type eventQueue struct {
	mu      sync.Mutex
	list    []func()
	running bool
}

// maxEvents is the most events that wait for a function that does not return. Later ones are
// dropped.
const maxEvents = 1024

// put adds an event.
func (q *eventQueue) put(event func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == maxEvents {
		return
	}
	q.list = append(q.list, event)
	if !q.running {
		q.running = true
		go q.run()
	}
}

// run calls events until there are no more.
func (q *eventQueue) run() {
	for {
		q.mu.Lock()
		if len(q.list) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		event := q.list[0]
		q.list = q.list[1:]
		q.mu.Unlock()
		event()
	}
}

// behind returns events that are put into the queue, for those of e that are set.
func (q *eventQueue) behind(e ibverbx.Events) ibverbx.Events {
	return ibverbx.Events{
		Connected: queued(q, e.Connected), Rail: queued(q, e.Rail), Settled: queued(q, e.Settled),
		Withheld: queued(q, e.Withheld), Failed: queued(q, e.Failed),
	}
}

// queued returns a function that puts a call of f into the queue; nil if f is nil.
func queued[E any](q *eventQueue, f func(E)) func(E) {
	if f == nil {
		return nil
	}
	return func(e E) { q.put(func() { f(e) }) }
}
