package transport

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Wait makes progress until the completion has fired and returns its first error. If ctx ends
// before, Wait returns ctx's error, and everything goes on: the operations, and the ownership of
// their memory. When the worker is closed before, it returns ErrClosed; the memory is the caller's
// once Close has returned.
func (w *Worker) Wait(ctx context.Context, comp *Completion) error {
	every := time.Duration(0)
	if !comp.waiting.CompareAndSwap(nil, w) && comp.waiting.Load() != w {
		every = retryInterval // somebody waits in another worker, and nobody would wake this one
	}
	if err := w.WaitFor(ctx, every, comp.Fired); err != nil {
		return err
	}
	return comp.Err()
}

// WaitFor makes progress until done reports true, or ctx ends. Done is called often, between rounds
// of progress, with no lock held; what changes its answer is progress, or, looked at every so often
// at the latest, something else. With every 0 nothing else is looked for.
func (w *Worker) WaitFor(ctx context.Context, every time.Duration, done func() bool) error {
	slept, err := w.waitFor(ctx, every, done)
	if slept && w.sleep.any() {
		w.sleep.wake() // it may have taken an event, and somebody has to ask for the next
	}
	return err
}

func (w *Worker) waitFor(ctx context.Context, every time.Duration, done func() bool) (slept bool, err error) {
	var spin spinner
	for round := 1; ; round++ {
		if done() {
			return slept, nil
		}
		if w.Progress() != 0 {
			// others may keep the worker busy for ever
			if spin = (spinner{}); round%64 != 0 || ctx.Err() == nil {
				continue
			}
		}
		if err := ctx.Err(); err != nil {
			return slept, err
		}
		if w.closed.Load() {
			return slept, fmt.Errorf("transport: wait: %w", ErrClosed)
		}
		if idle := w.cfg.Idle; idle != nil {
			idle()
			continue
		}
		if spin.more(w.cfg.Spin) {
			continue
		}
		slept = true
		w.sleepOrPoll(ctx, every, done)
	}
}

// spinner says how long a goroutine polls in vain before it sleeps. Once it has said enough it
// keeps to that: who is woken and finds nothing new sleeps on at once.
type spinner struct {
	rounds int
	start  time.Time
	enough bool
}

func (s *spinner) more(limit time.Duration) bool {
	if s.enough || limit <= 0 {
		return false
	}
	if s.rounds++; s.rounds%4 == 0 {
		runtime.Gosched() // on few cores what is waited for may need this one
	}
	if s.rounds%16 == 1 { // the clock costs as much as a round
		if s.start.IsZero() {
			s.start = time.Now()
		}
		s.enough = time.Since(s.start) >= limit
	}
	return !s.enough
}

// retryInterval is how often progress is made while a NIC refuses work for now: no event tells when
// it would not.
const retryInterval = time.Millisecond

// sleepOrPoll sleeps until there may be something new.
func (w *Worker) sleepOrPoll(ctx context.Context, every time.Duration, done func() bool) {
	me := w.sleep.enter()
	defer w.sleep.leave(me)
	w.mu.Lock()
	err := w.cq.Arm()
	w.keepAlive()
	switch alive := time.Until(w.probeAt); {
	case w.chores.refused || w.cq.Stats().Retrying != 0:
		every = retryInterval
	case w.cfg.KeepAlive > 0 && w.open != 0 && (every == 0 || alive < every):
		every = max(alive, 1)
	}
	w.mu.Unlock()
	if err != nil {
		every = retryInterval // no events from a CQ that has died; its endpoints are failing
	}
	// In any other order what comes in between wakes nobody.
	if w.Progress() != 0 || done() || w.closed.Load() {
		return
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
}

// Start has a goroutine make progress until Close: it polls for Config.Spin after the last thing
// that happened and then sleeps until the NICs have an event. Callbacks run on it, but for those of
// rounds of progress that others make.
func (w *Worker) Start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed.Load() {
		return fmt.Errorf("transport: start: %w", ErrClosed)
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
