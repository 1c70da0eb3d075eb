package transport

import (
	"fmt"
)

// die ends the worker if a callback has left it: by a panic or runtime.Goexit, and not by
// returning. It is deferred where callbacks run. What they were to leave in order is not: so
// nothing runs on the worker any more, and everybody is told.
func (w *Worker) die() {
	if w.calling == 0 {
		return
	}
	w.mu.Lock()
	w.deadBy = w.calling.String()
	w.calling = 0
	w.dead.Store(true)
	for _, p := range w.endpoints {
		if p != nil && p.ending.err == nil {
			p.end(stageFailed, ErrWorkerDead, w.diedOf())
		}
	}
	w.mu.Unlock()
	w.progressing.Unlock()
	w.sleep.wake()
}

// calling is what kind of callback runs.
type calling uint8

const (
	callingEvents  calling = iota + 1 // handlers, completion functions and error functions
	callingPending                    // a pending function, or OnReady
)

func (c calling) String() string {
	if c == callingPending {
		return "a pending function"
	}
	return "a handler, completion function or error function"
}

// diedOf says what has ended the worker.
func (w *Worker) diedOf() error {
	return fmt.Errorf("%s has panicked or called runtime.Goexit", w.deadBy)
}

// deadError is the error of a call on a worker that is dead; nil if it is not.
func (w *Worker) deadError(op string) error {
	if !w.dead.Load() {
		return nil
	}
	return fmt.Errorf("transport: %s: %w: %w: close the worker", op, ErrWorkerDead, w.diedOf())
}

// bury releases the endpoints of a dead worker. Their completions do not fire.
func (w *Worker) bury() {
	for _, p := range w.endpoints {
		if p != nil {
			p.release()
		}
	}
	w.events, w.afterRound, w.chores = nil, nil, chores{}
}
