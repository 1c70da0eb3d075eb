package bench

import "time"

// stopwatch measures the time of a column: it runs while a timed round is played, and stands while
// messages are compared and other columns are measured.
type stopwatch struct {
	elapsed time.Duration // until it was stopped last
	started time.Time     // zero while it stands
}

// start lets it run.
func (w *stopwatch) start() { w.started = time.Now() }

// stop lets it stand.
func (w *stopwatch) stop() { w.elapsed, w.started = w.now(), time.Time{} }

// now is what it shows.
func (w *stopwatch) now() time.Duration {
	if w.started.IsZero() {
		return w.elapsed
	}
	return w.elapsed + time.Since(w.started)
}
