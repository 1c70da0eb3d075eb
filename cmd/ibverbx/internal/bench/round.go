package bench

import (
	"context"
	"errors"
	"fmt"
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

	idle      int // polls in vain, one after the other
	idleSince time.Time
	spin      time.Duration // how long an adaptive round polls in vain before it sleeps
}

const (
	// idleSpins is how many polls in vain before others get the core: a software NIC of this process needs it more than
	// the next poll does.
	idleSpins = 8
	// idleCheck is how many polls in vain before a look whether the round has to end.
	idleCheck = 4096
	// patientSpin is how long an adaptive round polls in vain before it sleeps. Where two NICs copy on two cores that is worth
	// a sixth of the bandwidth, and half of it when another process wants a core too.
	patientSpin = 20 * time.Microsecond
)

// newRound makes lanes of the flows: an end that neither sends nor is notified has none. Where another process drives one end, the
// other has one in any case, so that it sees what happens to it.
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

// run drives the lanes until the round is over. Requests that failed are errFailed.
func (r *round) run(ctx context.Context, wait Wait) error {
	r.failed = false
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
		if finished && r.apart != nil && !r.failed {
			var err error
			if finished, err = r.apart.agreed(); err != nil {
				return err
			}
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
			if r.idle%idleCheck == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			runtime.Gosched()
			return nil
		}
	}
	if r.apart != nil {
		return r.apart.sleep(ctx)
	}
	r.idle = 0
	var cqs []*ibverbx.VirtualCQ
	for _, l := range r.lanes {
		if !r.finished(l) {
			cqs = append(cqs, l.end.cq)
		}
	}
	return waitAny(ctx, cqs)
}

// waitAny sleeps until one of the virtual CQs has completions, or until ctx ends; the error is then its cause. Meanwhile each
// virtual CQ belongs to a goroutine of its own.
func waitAny(ctx context.Context, cqs []*ibverbx.VirtualCQ) error {
	first, cancel := context.WithCancel(ctx)
	defer cancel()
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
	if l.rx != nil && !r.failed {
		if err := l.rx.credit(); err != nil {
			return false, r.note(err)
		}
	}
	if l.tx != nil {
		if r.failed && !l.tx.closed {
			l.tx.stop()
		}
		posted, err := l.tx.pump()
		if err != nil {
			return false, err
		}
		if l.tx.failed {
			r.failed = true
		}
		moved = moved || posted
	}
	wcs, err := l.end.poll()
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

// note takes requests that failed for the end of the round, not for an error.
func (r *round) note(err error) error {
	if errors.Is(err, errFailed) {
		r.failed = true
		return nil
	}
	return err
}

// finished says whether an end has nothing more to do. After a failure it is the end that has only what failed to collect.
func (r *round) finished(l *lane) bool {
	if r.failed {
		return l.tx == nil || !l.tx.failed || l.tx.drained()
	}
	return (l.tx == nil || l.tx.drained()) && (l.rx == nil || l.rx.complete())
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

// slowest is the speed, in bytes a second, below which real NICs, emulated ones too, are taken for dead.
const slowest = 5e6

// patience bounds a round: nothing may take that long. It is generous, for a slow machine is no error. idle is how long nothing
// may happen at all.
func patience(p *Params, idle time.Duration, bytes int) time.Duration {
	if p.unknownSpeed() {
		return idle + time.Duration(float64(bytes)/slowest*float64(time.Second))
	}
	d := idle
	for _, s := range p.Speeds {
		if s > 0 {
			d = max(d, idle+4*time.Duration(float64(bytes)/float64(s)*float64(time.Second)))
		}
	}
	return d
}

// idlePatience is how long nothing may happen between two ends in this process.
const idlePatience = 20 * time.Second

// bounded is a context in which a round must end.
func bounded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w within %v", ErrStalled, d))
}
