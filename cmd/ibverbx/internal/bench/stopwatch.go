package bench

import (
	"sync"
	"time"
)

// stopwatch measures the time of a column: it runs while a timed round is played and while the ends
// recover from a failure, and stands while messages are compared and other columns are measured.
type stopwatch struct {
	mu      sync.Mutex
	elapsed time.Duration // until it was stopped last
	started time.Time     // zero while it stands
}

// start lets it run; one that runs goes on.
func (w *stopwatch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started.IsZero() {
		w.started = time.Now()
	}
}

// stop lets it stand; one that stands does so still.
func (w *stopwatch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.started.IsZero() {
		w.elapsed += time.Since(w.started)
		w.started = time.Time{}
	}
}

// now is what it shows.
func (w *stopwatch) now() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started.IsZero() {
		return w.elapsed
	}
	return w.elapsed + time.Since(w.started)
}

// resume lets the time of the column run, and that of the faults in force.
func (c *pair) resume() {
	c.watch.start()
	c.faults.release()
}

// pause stops both.
func (c *pair) pause() {
	c.faults.hold()
	c.watch.stop()
}
