package transport

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
