package shmem

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"ibverbx/transport"
)

// isNoResource reports whether an operation could not start because it lacks resources.
func isNoResource(err error) bool { return err != nil && errors.Is(err, transport.ErrNoResource) }

// begin starts an operation; while resources are lacking it makes progress and tries again. try
// does not escape, so it stays on its caller's stack.
func (p *PE) begin(ctx context.Context, try func() error) error {
	err := try()
	if !isNoResource(err) {
		return err
	}
	p.worker.Progress()
	waited := p.worker.WaitFor(ctx, 0, func() bool {
		err = try()
		return !isNoResource(err)
	})
	if waited != nil {
		return waited
	}
	return err
}

// await makes progress until done returns true; done looks at what other PEs write into this heap.
// It gives up when a PE has failed or closed.
func (p *PE) await(ctx context.Context, op string, done func() bool) error {
	v := watcher{p: p, ctx: ctx, op: op, step: p.cfg.Step}
	return v.watch(done)
}

// watcher is the state of one wait of a PE for others.
type watcher struct {
	p      *PE
	ctx    context.Context // of the call that waits
	op     string
	r      *Request      // the collective call that p waits for; nil if for a word of its heap
	step   time.Duration // how long p sleeps between looks at its heap
	checks int           // looks around so far
	looks  int           // calls of over so far
	next   time.Time     // when to look around, and to begin longer sleeps
	err    error         // why the wait must end
	met    bool          // what p waits for has happened
	found  bool          // err is a mismatch that p has found: no other PE says what differs
}

const (
	// maxStep is the longest a PE sleeps between looks at its heap if no peer wakes it.
	maxStep = time.Millisecond
	// defaultSleepStep is how long a PE sleeps between looks when others are to wake it: the most
	// that a lost wake-up costs, see askToWake.
	defaultSleepStep = 20 * time.Millisecond
	// asleepAfter is the number of times a PE looks around before it sleeps for long. The first
	// time it asks to be woken. A write that its peer made before it received that request wakes
	// nobody, but has arrived by the second time.
	asleepAfter = 2
	// lookRounds is the number of looks at the heap between two looks around if no clock may be
	// used.
	lookRounds = 1000
)

// A collective call knows which PEs it waits for. In a long wait the PE checks that all are in the
// same call, asks to be woken, and sleeps.

// watch makes progress until done returns true, and does not call it again after that: the word may
// have changed once more.
func (v *watcher) watch(done func() bool) error {
	if v.r != nil {
		defer v.stopWaking()
	}
	if done() {
		return nil
	}
	for {
		err := v.p.worker.WaitFor(v.ctx, v.step, func() bool {
			v.met = done()
			return v.met || v.over()
		})
		switch {
		case v.met || !v.found && done(): // even if the writer has failed or closed right afterwards
			return nil
		case err != nil && v.r != nil:
			return opError(v.op, v.late(err))
		case err != nil:
			return opError(v.op, err)
		case v.err != nil:
			return v.err
		}
	}
}

// over reports whether to stop this wait, because err is set or because longer steps are due.
func (v *watcher) over() bool {
	p := v.p
	if w := p.mustStop(); w != 0 {
		v.err = p.stopped(v.op, w)
		return true
	}
	gone := p.gone.Load()
	switch {
	case gone == nil && v.r != nil && v.r.rounds.words != 0:
		gone = v.r.from().gone.Load()
	case gone != nil && v.r != nil:
		gone = v.r.team.gone()
	}
	if gone != nil {
		v.err = opError(v.op, gone)
		return true
	}
	if v.looks++; !v.due() {
		return false
	}
	v.checks++
	if v.r != nil {
		if v.err = v.lookAround(); v.err != nil {
			v.found = errors.Is(v.err, ErrMismatch)
			return true
		}
	}
	step := v.step
	switch {
	case v.r == nil:
		v.step = min(2*step, maxStep)
	case v.checks < asleepAfter:
		v.step = 2 * step
	default:
		v.step = max(step, p.sleepStep)
	}
	return v.step != step
}

// due reports whether it is time to look around. Reading the time costs as much as a few looks.
func (v *watcher) due() bool {
	if v.p.cfg.Transport.Idle != nil {
		return v.looks%lookRounds == 0 // a program with its own scheduler has its own clock
	}
	asleep := v.r != nil && v.checks >= asleepAfter
	if !asleep && v.looks%16 != 1 {
		return false
	}
	now := time.Now()
	first := v.next.IsZero()
	if !first && !now.After(v.next) {
		return false
	}
	if v.next = now.Add(20 * v.step); asleep {
		v.next = now.Add(v.step)
	}
	return !first
}

// stopWaking withdraws the requests of askToWake, also those that an earlier call could not
// withdraw. Close does not need it: the peers may be gone.
func (v *watcher) stopWaking() {
	x := &v.p.exchange
	if v.p.wakers.Load() == 0 || v.p.closing.Load() || !x.mu.TryLock() {
		return
	}
	defer x.mu.Unlock()
	for i := range v.p.peers {
		v.p.peers[i].stopWaking(v.ctx)
	}
}

// lookAround compares the PEs' calls, and asks the PEs that calls wait for to wake this one.
func (v *watcher) lookAround() error {
	p, x := v.p, &v.p.exchange
	if !x.mu.TryLock() {
		return nil
	}
	defer x.mu.Unlock()
	if v.r.done.Load() {
		return nil
	}
	if !p.closing.Load() || p.compared {
		if err := p.compare(v.ctx, v.r); err != nil {
			return err
		}
	}
	for i := range p.peers {
		t := &p.peers[i]
		if slices.ContainsFunc(x.requests, func(r *Request) bool { return r.waitsFor(t) }) {
			t.askToWake(v.ctx)
		}
	}
	return nil
}

// A PE that waits long in a collective call sleeps. Writes by others raise no event, so it asks for
// one: it sets its sleep word in the heap of each PE that it waits for, and clears it after the
// wait. A PE that puts one of the package's own words for another PE then looks at that PE's sleep
// word, and if it is set sends an active message, behind a fence.
//
// A wake-up cannot be missed, except for writes in flight: either the word was put before the sleep
// word arrived, or the active message follows. A word that was put earlier has arrived when the PE
// has waited a little longer (asleepAfter). If that is not long enough, or the message has no
// credit, the PE looks again after sleepStep, so a lost wake-up only costs time.

// wakeID is the id of the active message that wakes a PE.
const wakeID transport.AMID = 0

// askToWake asks the peer to wake this PE after each word that it puts. If it cannot ask, the PE
// sleeps anyway; its endpoint reports a peer that has failed.
func (t *peer) askToWake(ctx context.Context) {
	if !t.wakes && t.order(ctx) == nil { // the last word that was put must not land after this one
		t.wakes = true
		t.pe.wakers.Add(1)
		_ = t.putSleepWord(ctx, 1)
	}
}

// stopWaking withdraws that request. If ctx ends before there is room to send it, the peer
// continues to wake this PE, and the next collective call withdraws the request.
func (t *peer) stopWaking(ctx context.Context) {
	if !t.wakes || t.order(ctx) != nil { // the two words must not pass each other
		return
	}
	if t.putSleepWord(ctx, 0) == nil {
		t.wakes = false
		t.pe.wakers.Add(-1)
	}
}

func (t *peer) putSleepWord(ctx context.Context, v uint64) error {
	return t.putOwnWord(ctx, t.pe.layout.sleeps(t.pe.id), v)
}

// wake wakes the peer, if it has asked for that, so that it sees the last word that was put. It
// reports whether it has done what it can, which is not so if there is no room.
func (t *peer) wake(ctx context.Context) bool {
	if atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.sleeps(t.id))) == 0 {
		return true
	}
	if ok, err := tried(t.order(ctx)); !ok {
		return err != nil
	}
	err := t.ep.AMShort(wakeID, nil, nil)
	if isNoResource(err) {
		t.pe.worker.Progress()
		err = t.ep.AMShort(wakeID, nil, nil)
	}
	return !isNoResource(err)
}

// woken handles the active message that wakes this PE. Its arrival suffices.
func woken(*transport.Message) {}
