package transport

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"ibverbx/internal/worded"
	"ibverbx/verbs"
)

// Wait makes progress until the completion has fired and returns its first error. If ctx ends
// before, Wait returns ctx's error; the operations go on, and the NICs still own their memory. If
// the worker is closed before, Wait returns ErrClosed; the memory is the caller's once Close has
// returned.
func (w *Worker) Wait(ctx context.Context, comp *Completion) error {
	if comp == nil {
		return fmt.Errorf("transport: wait: %w: no completion", verbs.ErrInvalid)
	}
	every := time.Duration(0)
	if !comp.waiting.CompareAndSwap(nil, w) && comp.waiting.Load() != w {
		every = retryInterval // a goroutine waits in another worker: Done wakes only that one
	}
	if err := w.WaitFor(ctx, every, comp.Fired); err != nil {
		return err
	}
	return comp.Err()
}

// WaitFor makes progress until done reports true, or ctx ends. done is called often, between rounds
// of progress, with no lock held. If only progress can change its result, every is 0; otherwise
// done is called at least that often while WaitFor sleeps. It is not called again once it has
// reported true, and so may have effects.
func (w *Worker) WaitFor(ctx context.Context, every time.Duration, done func() bool) error {
	if err := needContext("wait", ctx); err != nil {
		return err
	}
	if done == nil {
		return fmt.Errorf("transport: wait: %w: no done function", verbs.ErrInvalid)
	}
	slept, err := w.waitFor(ctx, every, done)
	if slept && w.sleep.any() {
		w.sleep.wake() // this call may have consumed an event: another has to ask for the next
	}
	return err
}

// needContext refuses a call without a context.
func needContext(op string, ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("transport: %s: %w: no context", op, verbs.ErrInvalid)
	}
	return nil
}

func (w *Worker) waitFor(ctx context.Context, every time.Duration, done func() bool) (slept bool, err error) {
	var spin spinner
	for round := 1; ; round++ {
		if done() {
			return slept, nil
		}
		if w.Progress() != 0 {
			// Other endpoints may keep the worker busy all the time.
			if spin = (spinner{}); round%64 != 0 || ctx.Err() == nil {
				continue
			}
		}
		if err := worded.Ended(ctx); err != nil {
			return slept, err
		}
		if w.life.closed() {
			return slept, fmt.Errorf("transport: wait: %w", ErrClosed)
		}
		if err := w.life.deadError("wait"); err != nil {
			return slept, err
		}
		if idle := w.cfg.Idle; idle != nil {
			idle()
			continue
		}
		if spin.more(w.cfg.Spin) {
			continue
		}
		slept = true
		if w.sleepOrPoll(ctx, every, done) {
			return slept, nil
		}
	}
}

// spinner decides how long a goroutine polls without success before it sleeps. Its decision stays:
// a goroutine that is woken and finds nothing new sleeps again at once.
type spinner struct {
	rounds int
	start  time.Time
	enough bool
}

// more reports whether to poll once more.
func (s *spinner) more(limit time.Duration) bool {
	if s.enough || limit <= 0 {
		return false
	}
	if s.rounds++; s.rounds%4 == 0 {
		runtime.Gosched() // with few cores, what it waits for may need this one
	}
	if s.rounds%16 == 1 { // the clock costs as much as a round
		if s.start.IsZero() {
			s.start = time.Now()
		}
		s.enough = time.Since(s.start) >= limit
	}
	return !s.enough
}

// retryInterval is how often progress is made while a NIC refuses work, or a request waits for
// something outside of the worker: no event announces the end of it.
const retryInterval = time.Millisecond

// sleepOrPoll sleeps until there may be something new. It makes progress once after arming the CQ,
// and does not sleep if that did something, or done, which it returns, is true.
func (w *Worker) sleepOrPoll(ctx context.Context, every time.Duration, done func() bool) bool {
	me := w.sleep.enter()
	defer w.sleep.leave(me)
	w.mu.Lock()
	err := w.cq.Arm()
	w.keepAlive()
	switch alive := time.Until(w.probes.at); {
	case w.chores.refused || w.schedule.asks() || w.cq.Stats().Retrying != 0:
		every = retryInterval
	case w.cfg.KeepAlive > 0 && w.endpoints.open != 0 && (every == 0 || alive < every):
		every = max(alive, 1)
	}
	w.mu.Unlock()
	if err != nil {
		every = retryInterval // no events from a CQ that has died; its endpoints are failing
	}
	// The order matters: an event between a poll and Arm would wake nobody.
	if w.Progress() != 0 {
		return false
	}
	if done() {
		return true
	}
	if w.life.closed() || w.life.dead() {
		return false
	}
	if every > 0 {
		me.timer.Reset(every)
	}
	select {
	case <-w.cq.Events():
	case <-me.wake:
	case <-me.timer.C:
	case <-ctx.Done():
	}
	return false
}

// Start starts a goroutine that makes progress until Close: it polls for Config.Spin after each
// round that did something, and then sleeps until the NICs have an event. Callbacks run on it, or
// on other goroutines that make progress.
func (w *Worker) Start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life.closed() {
		return fmt.Errorf("transport: start: %w", ErrClosed)
	}
	if err := w.life.deadError("start"); err != nil {
		return err
	}
	if w.sleep.cancel != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.sleep.cancel, w.sleep.ended = cancel, make(chan struct{})
	go func() {
		defer close(w.sleep.ended)
		_ = w.WaitFor(ctx, 0, func() bool { return false }) // ends with ctx
	}()
	return nil
}
