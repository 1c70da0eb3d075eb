package transport

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/errwrap"
	"ibverbx/internal/roster"
	"ibverbx/verbs"
)

// Wait makes progress until the completion has fired and returns its first error. If ctx ends
// before, Wait returns ctx's error, with the names of the peers that have not answered unless ctx
// was canceled for a cause; the operations go on, and the NICs still own their memory. If the
// worker is closed before, Wait returns ErrClosed; the memory is the caller's once Close has
// returned.
//
// Finding those names means walking all endpoints. To wait briefly and repeatedly, call Progress
// and Completion.Fired instead.
func (w *Worker) Wait(ctx context.Context, comp *Completion) error {
	if comp == nil {
		return fmt.Errorf("transport: wait: %w: no completion", verbs.ErrInvalid)
	}
	every := time.Duration(0)
	if !comp.waiting.CompareAndSwap(nil, w) && comp.waiting.Load() != w {
		every = retryInterval // a goroutine waits in another worker: Done wakes only that one
	}
	if err := w.await(ctx, every, comp.Fired, awaited{comp: comp}); err != nil {
		return err
	}
	return comp.Err()
}

// WaitFor makes progress until done reports true, or ctx ends. done is called often, between rounds
// of progress, with no lock held. If only progress can change its result, every is 0; otherwise
// done is called at least that often while WaitFor sleeps. It is not called again once it has
// reported true, and so may have effects. ctx's error has the names of the peers that have not
// answered, whatever done waits for.
func (w *Worker) WaitFor(ctx context.Context, every time.Duration, done func() bool) error {
	if done == nil {
		return fmt.Errorf("transport: wait: %w: no done function", verbs.ErrInvalid)
	}
	return w.await(ctx, every, done, awaited{})
}

// await is WaitFor with a description of what it waits for.
func (w *Worker) await(ctx context.Context, every time.Duration, done func() bool, a awaited) error {
	if err := needContext("wait", ctx); err != nil {
		return err
	}
	slept, err := w.waitFor(ctx, every, done)
	if slept && w.sleep.any() {
		w.sleep.wake() // this call may have consumed an event: another must ask for the next
	}
	if err != nil {
		return w.late(ctx, err, a)
	}
	return nil
}

// needContext refuses a call without a context.
func needContext(op string, ctx context.Context) error {
	if ctx != nil {
		return nil
	}
	return noContext(op)
}

// noContext is separate so that needContext can be inlined.
func noContext(op string) error {
	return fmt.Errorf("transport: %s: %w: no context", op, verbs.ErrInvalid)
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
		if err := errwrap.ContextErr(ctx); err != nil {
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
		if s.rounds == 1 {
			s.start = time.Now()
			return true // also if this goroutine does not run for longer than limit now
		}
		s.enough = time.Since(s.start) >= limit
	}
	return !s.enough
}

// retryInterval is the interval of progress while a NIC refuses work, or a request waits for
// something outside of the worker, because no event announces the end of either.
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

// sleepers are the goroutines that wait for the worker and have stopped polling. An event of the
// NICs wakes one of them. That one makes progress and wakes the others, because what they wait for
// may have happened.
type sleepers struct {
	count  atomic.Int32
	missed atomic.Bool // a goroutine could not make progress because another did: wake all
	mu     sync.Mutex
	list   []*sleeper
	spare  []*sleeper
	cancel context.CancelFunc // ends the goroutine of Start
	ended  chan struct{}
}

// sleeper is one of them. It is used again when its goroutine has left.
type sleeper struct {
	wake  chan struct{}
	timer *time.Timer
}

func (s *sleepers) any() bool { return s.count.Load() != 0 }

// enter adds the calling goroutine to the list.
func (s *sleepers) enter() *sleeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	var me *sleeper
	if n := len(s.spare); n != 0 {
		me, s.spare = s.spare[n-1], s.spare[:n-1]
		select {
		case <-me.wake: // left over from its last use
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

// leave removes a sleeper from the list.
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
	defer s.mu.Unlock()
	for _, other := range s.list {
		select {
		case other.wake <- struct{}{}:
		default:
		}
	}
}

// stop ends the goroutine of Start and wakes all others.
func (s *sleepers) stop() {
	if s.cancel != nil {
		s.cancel()
		<-s.ended
	}
	s.wake()
}

// wakeForChores wakes the sleepers if there is something to do that no event announces. It is
// called with mu held after posts that may be refused for now, and after changes of the chores that
// no event announces.
func (w *Worker) wakeForChores() {
	if w.sleep.any() {
		w.wakeIfUrgent()
	}
}

// wakeIfUrgent is separate so that wakeForChores can be inlined.
func (w *Worker) wakeIfUrgent() {
	if w.chores.urgent() || w.cq.Stats().Retrying != 0 {
		w.sleep.wake()
	}
}

// awaited is what a wait is for; the zero value stands for anything.
type awaited struct {
	comp *Completion // its operations
	peer *peerState  // all operations of an endpoint
}

// late adds the peers that have not answered to the error of a wait that ctx has ended. There may
// be none: their operations wait to start, or have just ended.
func (w *Worker) late(ctx context.Context, err error, a awaited) error {
	ended := ctx.Err()
	if ended == nil || !errors.Is(err, ended) {
		return err
	}
	if cause := context.Cause(ctx); errors.Is(ended, context.Canceled) && !errors.Is(cause, ended) {
		return err // the cause is to blame, and these peers may wait for it as well
	}
	who := w.unanswered(a)
	if who == nil {
		who = w.unanswered(awaited{})
	}
	if who == nil {
		return err
	}
	return fmt.Errorf("%w: %s", err, roster.Named(who, "has not answered", "have not answered"))
}

// Unanswered names the endpoints with operations that have not completed, those of the transport
// itself included, such as the probes of Config.KeepAlive. It is for errors about peers that are
// late: it walks all operations.
func (w *Worker) Unanswered() []string { return w.unanswered(awaited{}) }

func (w *Worker) unanswered(a awaited) (names []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for p := range w.endpoints.all {
		if (a.peer == nil || a.peer == p) && p.sending.awaits(a.comp) {
			names = append(names, p.cfg.Name)
		}
	}
	return names
}

// awaits reports whether operations that comp counts are outstanding, or flushes that wait to
// start; for nil, whether any operation is outstanding.
func (s *sending) awaits(comp *Completion) bool {
	if comp == nil {
		return !s.idle()
	}
	for n := s.ops.Head; n != s.ops.Tail; n++ {
		if s.ops.At(n).comp == comp {
			return true
		}
	}
	for l := s.pending.list.Front(); l != nil; l = l.Next() {
		if l.Owner().internal {
			return true
		}
	}
	return false
}
