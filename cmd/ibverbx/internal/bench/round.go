package bench

import (
	"context"
	"errors"
	"runtime"
	"time"

	"ibverbx"
)

// lane is what one end has to do in a round.
type lane struct {
	end *end
	tx  *flow // from the end; nil if it sends nothing
	rx  *flow // to the end; nil if it sees nothing of what arrives
}

// round is the lanes of the ends that this process drives, and how they end.
type round struct {
	lanes  []*lane
	failed bool     // a request failed: the other end need not go on
	apart  *parting // nil when both ends are driven here

	watch     *watchdog // of the round under way
	turns     int
	idle      int // polls in vain, one after the other
	idleSince time.Time
	spin      time.Duration // how long an adaptive round polls in vain before it sleeps
}

const (
	// idleSpins is how many polls in vain before others get the core: a software NIC of this
	// process needs it more than the next poll does.
	idleSpins = 8
	// endCheck is how many turns pass between looks whether the round has to end.
	endCheck = 4096
	// patientSpin is how long an adaptive round polls in vain before it sleeps. Where two NICs copy
	// on two cores that is worth a sixth of the bandwidth, and half of it when another process
	// wants a core too.
	patientSpin = 20 * time.Microsecond
)

// newRound makes lanes of the flows: an end that neither sends nor is notified has none. Where
// another process drives one end, the other has one in any case, so that it sees what happens to
// it.
func newRound(flows []*flow, peer *peer, here []*end) *round {
	r := &round{spin: patientSpin}
	at := func(e *end) *lane {
		for _, l := range r.lanes {
			if l.end == e {
				return l
			}
		}
		r.lanes = append(r.lanes, &lane{end: e})
		return r.lanes[len(r.lanes)-1]
	}
	for _, f := range flows {
		if f.from != nil {
			at(f.from).tx = f
		}
		if f.to != nil && f.op.notifies() {
			at(f.to).rx = f
		}
	}
	if peer != nil {
		r.apart = newParting(peer, flows, at(here[0]).end)
	}
	return r
}

// run drives the lanes until the round is over, or ctx ends. Requests that failed are errFailed.
// What moves is told to watch.
func (r *round) run(ctx context.Context, wait Wait, watch *watchdog) error {
	r.failed, r.watch = false, watch
	r.idle = 0
	if r.apart != nil {
		r.apart.start()
	}
	for _, l := range r.lanes { // receives first: nobody wants to meet a receiver that is not ready
		if l.rx != nil {
			if err := l.rx.credit(); err != nil {
				return err
			}
		}
	}
	for {
		if r.turns++; r.turns%endCheck == 0 {
			if err := r.look(ctx); err != nil {
				return err
			}
		}
		finished, progress := true, false
		for _, l := range r.lanes {
			if r.finished(l) && r.apart == nil {
				continue
			}
			moved, err := r.step(l)
			if err != nil {
				return err
			}
			progress = progress || moved
			finished = finished && r.finished(l)
		}
		if r.apart != nil && !r.failed {
			if err := r.apart.tell(ctx); err != nil {
				return err
			}
			finished = finished && r.apart.agreed()
		}
		switch {
		case finished:
			return r.verdict()
		case progress:
			r.idle = 0
		default:
			if err := r.rest(ctx, wait); err != nil {
				return err
			}
		}
	}
}

// look sees whether the round has to end, however busy it is.
func (r *round) look(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.apart != nil {
		_, err := r.apart.glance(r)
		return err
	}
	return nil
}

// rest is what happens when there is nothing to do.
func (r *round) rest(ctx context.Context, wait Wait) error {
	r.idle++
	if r.apart != nil {
		if news, err := r.apart.glance(r); err != nil || news {
			return err
		}
	}
	if wait != Events {
		if r.idle == 1 {
			r.idleSince = time.Now()
		}
		if r.idle%idleSpins != 0 {
			return nil
		}
		if wait == Poll || time.Since(r.idleSince) < r.spin {
			runtime.Gosched()
			return nil
		}
	}
	if r.apart != nil {
		return r.apart.sleep(ctx)
	}
	r.idle = 0
	var cqs []*ibverbx.VirtualCQ
	refused := false
	for _, l := range r.lanes {
		if !r.finished(l) {
			cqs = append(cqs, l.end.cq)
			refused = refused || l.tx != nil && l.tx.refused
		}
	}
	return waitAny(ctx, cqs, refused)
}

// refusedPause is how long an end that sleeps waits before it offers the NIC again what that has
// refused for now. There may be no completion to wake it.
const refusedPause = time.Millisecond

// waitAny sleeps until one of the virtual CQs has completions, for a moment only if a NIC has
// refused something for now, or until ctx ends; the error is then its cause. Meanwhile each virtual
// CQ belongs to a goroutine of its own.
func waitAny(ctx context.Context, cqs []*ibverbx.VirtualCQ, refused bool) error {
	first, cancel := context.WithCancel(ctx)
	defer cancel()
	if refused {
		defer time.AfterFunc(refusedPause, cancel).Stop()
	}
	errs := make(chan error, len(cqs))
	for i, cq := range cqs {
		wait := func() {
			errs <- cq.Wait(first)
			cancel()
		}
		if i < len(cqs)-1 {
			go wait()
		} else {
			wait()
		}
	}
	var failed error
	for range cqs {
		if err := <-errs; err != nil && !errors.Is(err, context.Canceled) {
			failed = err
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return failed
}

// step does what an end can do now. It reports whether that was anything.
func (r *round) step(l *lane) (bool, error) {
	moved := false
	if l.answersFirst() {
		posted, err := r.pump(l)
		if err != nil {
			return false, err
		}
		moved = posted
	}
	if l.rx != nil && !r.failed {
		if err := l.rx.credit(); err != nil {
			return false, r.note(err)
		}
	}
	if l.tx != nil {
		posted, err := r.pump(l)
		if err != nil {
			return false, err
		}
		moved = moved || posted
	}
	wcs, err := l.end.poll()
	if len(wcs) > 0 {
		r.watch.feed()
	}
	for i := range wcs {
		switch {
		case wcs[i].ID&recvBit != 0 && l.rx != nil:
			err = errors.Join(err, r.note(l.rx.arrived(&wcs[i])))
		case wcs[i].ID&recvBit == 0 && l.tx != nil:
			err = errors.Join(err, l.tx.sent(&wcs[i]))
			if l.tx.failed {
				r.failed = true
			}
		}
	}
	return moved || len(wcs) > 0, err
}

// answersFirst says whether an answer need not wait for new receives to be posted: the other end
// takes its time, and there are enough.
func (l *lane) answersFirst() bool {
	return l.tx != nil && l.tx.echoes != nil && l.rx.expected > l.rx.received
}

// pump posts what an end sends. It reports whether that was anything.
func (r *round) pump(l *lane) (bool, error) {
	if r.failed && !l.tx.closed {
		l.tx.stop()
	}
	posted, err := l.tx.pump()
	if l.tx.failed {
		r.failed = true
	}
	return posted, err
}

// note takes requests that failed for the end of the round, not for an error.
func (r *round) note(err error) error {
	if errors.Is(err, errFailed) {
		r.failed = true
		return nil
	}
	return err
}

// finished says whether an end has nothing more to do. After a failure it is the end that has only
// what failed to collect.
func (r *round) finished(l *lane) bool {
	if r.failed {
		return l.tx == nil || !l.tx.failed || l.tx.drained()
	}
	return (l.tx == nil || l.tx.drained()) && (l.rx == nil || l.rx.complete())
}

// took is how long the round has taken: between two processes until all that this one sends was
// reported, for what comes after that is conversation.
func (r *round) took(start time.Time) time.Duration {
	if r.apart != nil {
		return r.apart.took(start)
	}
	return time.Since(start)
}

// verdict is the outcome of a round in which all ends have finished.
func (r *round) verdict() error {
	if r.failed {
		return errFailed
	}
	if r.apart != nil {
		return r.apart.verdict()
	}
	return nil
}
