package perftest

import (
	"context"
	"errors"
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

// waiter is how an end waits for what queue pairs bring: for as long as something moves, while the
// peer is there.
type waiter struct {
	talk  *talk
	idle  int       // looks that found nothing since something moved
	since time.Time // of the first clock reading of these
	over  bool      // the peer has gone on to its next message, or has gone
	why   error     // why it has gone; nil where it has gone on
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
	if waited < awake {
		runtime.Gosched()
		return nil
	}
	time.Sleep(nap)
	if !w.over {
		select {
		case w.why = <-w.talk.early:
			w.over, w.since = true, time.Now()
			return nil
		default:
		}
	}
	ctx := w.talk.ctx
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.over && waited > grace && w.why != nil:
		return w.talk.explain(w.why, "while messages were under way", 0, 0)
	case w.over && waited > grace:
		return fmt.Errorf("%w: the peer has gone on while this end still waits for messages; %s", ErrMismatch,
			agree)
	case waited > w.talk.timeout:
		return fmt.Errorf("%w: nothing has completed or come for %v; %s", ErrTimeout, w.talk.timeout, agree)
	}
	return nil
}

// under is an error while messages were under way, of which so many were done.
func under(err error, done, of int) error {
	for _, known := range []error{ErrGone, ErrTimeout, ErrMismatch, context.Canceled} {
		if errors.Is(err, known) {
			return fmt.Errorf("after %d of %d messages: %w", done, of, err)
		}
	}
	return err
}
