package perftest

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

const (
	// spins is how often an end that finds nothing looks again before it reads the clock.
	spins = 256
	// awake is how long it looks without a pause: longer than messages are under way between NICs
	// of hardware, and no longer, because others need the core.
	awake = time.Millisecond
	// nap is its pause then.
	nap = 50 * time.Microsecond
	// grace is how long messages may still move once the peer has gone on or has gone.
	grace = 2 * time.Second
)

// waiter waits for what queue pairs bring: until ctx ends, or nothing moves for limit.
type waiter struct {
	ctx   context.Context
	limit time.Duration
	idle  int       // looks that found nothing since something moved
	since time.Time // of the first clock reading of these
}

// moved says that something has come.
func (w *waiter) moved() { w.idle = 0 }

// pause is called when nothing has come, and says when to give up.
func (w *waiter) pause() error {
	w.idle++
	switch {
	case w.idle < spins:
		runtime.Gosched()
		return nil
	case w.idle == spins:
		w.since = time.Now()
	}
	waited := time.Since(w.since)
	switch {
	case waited < awake:
		runtime.Gosched()
	case w.ctx.Err() != nil:
		return context.Cause(w.ctx)
	case waited > w.limit:
		return fmt.Errorf("%w: nothing has completed or come for %v; %s", ErrTimeout, w.limit, agree)
	default:
		time.Sleep(nap)
	}
	return nil
}
