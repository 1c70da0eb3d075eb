package transport

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// sleepers are the goroutines that wait for the worker and have stopped polling. An event of the
// NICs wakes one of them, which makes progress and wakes the others, since it may be theirs.
type sleepers struct {
	count  atomic.Int32
	mu     sync.Mutex
	list   []*sleeper
	spare  []*sleeper
	cancel context.CancelFunc // ends the goroutine of Start
	ended  chan struct{}
}

// sleeper is one of them. Its parts are used again.
type sleeper struct {
	wake  chan struct{}
	timer *time.Timer
}

func (s *sleepers) any() bool { return s.count.Load() != 0 }

func (s *sleepers) enter() *sleeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	var me *sleeper
	if n := len(s.spare); n != 0 {
		me, s.spare = s.spare[n-1], s.spare[:n-1]
		select {
		case <-me.wake: // left over from when it was somebody else's
		default:
		}
	} else {
		me = &sleeper{wake: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
		me.timer.Stop()
	}
	s.list = append(s.list, me)
	s.count.Store(int32(len(s.list)))
	return me
}

// leave takes a sleeper out.
func (s *sleepers) leave(me *sleeper) {
	me.timer.Stop()
	s.mu.Lock()
	for i := range s.list {
		if s.list[i] == me {
			s.list[i] = s.list[len(s.list)-1]
			s.list = s.list[:len(s.list)-1]
			break
		}
	}
	s.spare = append(s.spare, me)
	s.count.Store(int32(len(s.list)))
	s.mu.Unlock()
}

func (s *sleepers) wake() {
	s.mu.Lock()
	s.wakeLocked()
	s.mu.Unlock()
}

func (s *sleepers) wakeLocked() {
	for _, other := range s.list {
		select {
		case other.wake <- struct{}{}:
		default:
		}
	}
}

// posted is called with mu held after something was handed to the NICs, or is to be told by
// progress, so that who sleeps does not miss what will not wake it by an event.
func (w *Worker) posted() {
	if w.sleep.any() && (w.retrying || len(w.failing)+len(w.closing) != 0 || w.cq.Stats().Retrying != 0) {
		w.sleep.wake()
	}
}

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
		if w.ended.Load() {
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
		w.doze(ctx, every, done)
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

// doze sleeps until there may be something new.
func (w *Worker) doze(ctx context.Context, every time.Duration, done func() bool) {
	me := w.sleep.enter()
	defer w.sleep.leave(me)
	w.mu.Lock()
	err := w.cq.Arm()
	w.keepAlive()
	switch alive := time.Until(w.aliveAt); {
	case w.retrying || w.cq.Stats().Retrying != 0:
		every = retryInterval
	case w.cfg.KeepAlive > 0 && w.open != 0 && (every == 0 || alive < every):
		every = max(alive, 1)
	}
	w.mu.Unlock()
	if err != nil {
		every = retryInterval // no events from a CQ that has died; its endpoints are failing
	}
	// In any other order what comes in between wakes nobody.
	if w.Progress() != 0 || done() || w.ended.Load() {
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
	if w.closed {
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

// stop ends the goroutine of Start, and wakes everybody else.
func (s *sleepers) stop() {
	if s.cancel != nil {
		s.cancel()
		<-s.ended
	}
	s.wake()
}
