package transport

import (
	"fmt"
	"sync/atomic"
)

// lifetime is the life of a worker: how far Close has come, and whether a callback has ended the
// worker before.
//
//	| stage    | is entered by                             | leads to          |
//	| open     | NewWorker                                 | closing, released |
//	| closing  | Close                                     | released          |
//	| released | the end of Close; NewWorker, if it fails  |                   |
//
// In each stage the worker is alive or dead. It dies when a callback does not return.
//
// Invariant: the stage only moves down the table, and a dead worker stays dead. Both change with
// Worker.mu held; goroutines that wait read them without.
type lifetime struct {
	stage  atomic.Uint32 // a lifeStage
	deadBy atomic.Uint32 // the callback that has ended the worker; 0 while it is alive
	// calling is the callback that runs now; 0 for none. Worker.progressing guards it.
	calling callback
}

type lifeStage = uint32

const (
	lifeOpen lifeStage = iota
	lifeClosing
	lifeReleased
)

// callback is a kind of callback.
type callback uint8

const (
	callbackEvent   callback = iota + 1 // handlers, completion functions and error functions
	callbackPending                     // a pending function, or OnReady
)

func (c callback) String() string {
	if c == callbackPending {
		return "a pending function"
	}
	return "a handler, completion function or error function"
}

// closed reports whether Close has begun.
func (l *lifetime) closed() bool { return l.stage.Load() != lifeOpen }

// released reports whether Close is over.
func (l *lifetime) released() bool { return l.stage.Load() == lifeReleased }

// dead reports whether a callback has ended the worker.
func (l *lifetime) dead() bool { return l.deadBy.Load() != 0 }

// close enters the stage closing. It reports whether the worker was open.
func (l *lifetime) close() bool { return l.stage.CompareAndSwap(lifeOpen, lifeClosing) }

// release enters the stage released. It reports whether the worker was in an earlier one.
func (l *lifetime) release() bool { return l.stage.Swap(lifeReleased) != lifeReleased }

// call records that a callback begins, and returned that it has returned.
func (l *lifetime) call(c callback) { l.calling = c }

func (l *lifetime) returned() { l.calling = 0 }

// interrupted reports whether a callback runs: when deferred, that it did not return.
func (l *lifetime) interrupted() bool { return l.calling != 0 }

// die ends the worker because of the callback that did not return.
func (l *lifetime) die() {
	l.deadBy.Store(uint32(l.calling))
	l.calling = 0
}

// diedOf returns the error that has ended the worker.
func (l *lifetime) diedOf() error {
	return fmt.Errorf("%v has panicked or called runtime.Goexit", callback(l.deadBy.Load()))
}

// deadError is the error of a call on a worker that is dead; nil if it is alive.
func (l *lifetime) deadError(op string) error {
	if !l.dead() {
		return nil
	}
	return fmt.Errorf("transport: %s: %w: %w: close the worker", op, ErrWorkerDead, l.diedOf())
}

// die ends the worker if a callback has left it: by a panic or runtime.Goexit, and not by
// returning. It is deferred where callbacks run. The round is in the middle of its callbacks, so
// nothing runs on the worker from then on: every endpoint fails, and goroutines that wait return.
func (w *Worker) die() {
	if !w.life.interrupted() {
		return
	}
	w.mu.Lock()
	w.life.die()
	for p := range w.endpoints.all {
		if p.ending.err == nil {
			p.end(stageFailed, ErrWorkerDead, w.life.diedOf())
		}
	}
	w.mu.Unlock()
	w.progressing.Unlock()
	w.sleep.wake()
}

// releaseDead releases the endpoints of a dead worker. Their completions do not fire.
func (w *Worker) releaseDead() {
	for p := range w.endpoints.all {
		p.release()
	}
	w.round.drop()
	w.chores = chores{}
}
