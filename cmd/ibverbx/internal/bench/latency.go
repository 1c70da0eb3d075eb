package bench

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"ibverbx"
)

const (
	// latencyWindow is the memory that latency is measured over: small, for the NIC is in question
	// and not the memory.
	latencyWindow = 1 << 20
	// latencyWarmup is how many messages go before the measured ones.
	latencyWarmup   = 200
	latencyPatience = 20 * time.Millisecond // that they may take
	// latencySpin is how long an end polls in vain for what another process sends before it sleeps:
	// longer than any message is under way between real NICs, and no longer, for emulated ones need
	// the core.
	latencySpin = time.Millisecond
	// longest is the longest latency that the histogram tells apart, in nanoseconds.
	longest = int64(100 * time.Second)
)

// latency measures a cell: one message at a time from end a. Where the target is notified it
// answers with a message of the same kind, and a sample is half of the round trip; else a sample is
// the time from the post to the completion.
func (c *cell) latency() error {
	pp := &pinger{cell: c, ping: c.flows[0], hist: newHistogram()}
	if len(c.flows) > 1 {
		pp.pong = c.flows[1]
	}
	err := c.batches(pp.batch, pp.hist)
	c.result.Latency = percentiles(pp.hist, pp.pong != nil)
	return err
}

// newHistogram is one that latencies fit into.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, 3) }

// record takes in a sample in nanoseconds.
func record(h *hdrhistogram.Histogram, took int64) {
	_ = h.RecordValue(min(max(took, 1), longest)) // in range
}

// percentiles is the distribution of what was recorded.
func percentiles(h *hdrhistogram.Histogram, half bool) *Percentile {
	return &Percentile{
		HalfRoundTrip: half, Samples: h.TotalCount(), Min: h.Min(), Mean: h.Mean(),
		P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99),
		P999: h.ValueAtQuantile(99.9), Max: h.Max(),
	}
}

// pinger sends messages one at a time.
type pinger struct {
	*cell
	ping, pong *flow // pong is nil where the target is not notified
	hist       *hdrhistogram.Histogram
	watch      *watchdog
	idleSince  time.Time
}

// batch sends n messages, each of which has a slot to itself, and says how many can be sent a
// second.
func (p *pinger) batch(n int, warmup bool) (rate float64, err error) {
	start := time.Now()
	err = p.survive(p.exchange(n, warmup))
	return float64(n) / max(time.Since(start).Seconds(), 1e-9), err
}

func (p *pinger) exchange(n int, warmup bool) error {
	number := p.mem.nextRound()
	p.ping.start(number, n, &p.brake)
	p.ping.before, p.ping.faults, p.ping.tx = p.rig.sent, nil, 1
	if !warmup {
		p.ping.faults = p.rig.faults
	}
	if p.pong != nil {
		p.pong.start(number, n, &p.brake)
	}
	if p.peer != nil {
		return p.leadSeries(n, warmup)
	}
	ctx, watch, cancel := p.deadline(n)
	defer cancel()
	p.watch = watch
	if p.pong == nil {
		return p.series(ctx, n, warmup)
	}
	p.pong.tx = 1
	for _, f := range p.flows {
		if err := f.credit(); err != nil {
			return err
		}
	}
	if p.p.Wait != Events {
		return p.series(ctx, n, warmup)
	}
	answers, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	echoed := make(chan error, 1)
	go func() {
		err := p.echo(answers)
		if err != nil {
			stop(err) // wakes nobody by itself: the series waits on answers too
		}
		echoed <- err
	}()
	err := p.series(answers, n, warmup)
	stop(errOver)
	if echo := <-echoed; echo != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = echo
	}
	return err
}

// leadSeries is exchange where another process drives the answering end.
func (p *pinger) leadSeries(n int, warmup bool) error {
	if err := p.begin(n, warmup); err != nil {
		return err
	}
	ctx, watch, cancel := p.deadline(n)
	defer cancel()
	p.watch = watch
	verified := p.result.Verified
	if err := p.series(ctx, n, warmup); err != nil {
		return err
	}
	p.ping.limit = p.ping.posted
	if err := p.lanes.run(ctx, p.p.Wait, watch); err != nil { // the end is all that is left of it
		return err
	}
	_, err := p.conclude(p.result.Verified-verified, 0)
	return err
}

// errOver ends the answering side.
var errOver = errors.New("the series is over")

// series sends the messages of a batch, and takes the time of each.
func (p *pinger) series(ctx context.Context, n int, warmup bool) error {
	f := p.ping
	for i := 0; i < n && !p.brake.Load(); i++ {
		if f.faults != nil {
			if err := f.faults.strike(p.rig.sent); err != nil {
				return err
			}
		}
		start := time.Now()
		if err := p.await(ctx, i+1); err != nil {
			return err
		}
		took := time.Since(start)
		p.through += len(p.flows)
		if !warmup {
			p.timed += took
			p.rig.sent++
			p.result.Messages += len(p.flows)
			p.result.Bytes += uint64(len(p.flows)) * uint64(p.size)
		}
		if p.pong != nil {
			took /= 2
		}
		record(p.hist, int64(took))
		if err := p.check(i); err != nil {
			return err
		}
	}
	return p.settle(ctx)
}

// check compares message i and its answer. The answer being there, nobody touches them.
func (p *pinger) check(i int) error {
	if !p.p.Verify {
		return nil
	}
	if p.ping.op.Atomic() {
		p.result.Verified++
		return p.ping.verifyAtomic(i)
	}
	for _, f := range p.flows {
		if !f.compares() {
			continue
		}
		p.result.Verified++
		if err := f.mem.verifySlot(f.dst, f.src, f.round, i, f.size); err != nil {
			return err
		}
	}
	return nil
}

// await posts message n of the batch, and waits until it is over: reported, and answered if it is
// to be.
func (p *pinger) await(ctx context.Context, n int) error {
	p.idleSince = time.Time{}
	for idle := 1; ; idle++ {
		if p.ping.posted < n && !p.ping.failed {
			if _, err := p.ping.post(1); err != nil {
				return err
			}
		}
		moved, err := p.serve(p.rig.a, p.ping, p.pong)
		if err != nil {
			return err
		}
		if p.ping.failed {
			return errFailed
		}
		if p.ping.done >= n && (p.pong == nil || p.pong.received >= n) {
			return nil
		}
		if p.pong != nil && p.rig.b != nil && p.p.Wait != Events {
			if err := p.answer(); err != nil {
				return err
			}
		}
		if moved {
			p.watch.feed()
			continue
		}
		if p.p.Wait == Events || p.peer != nil && p.tired(idle) {
			if err := waitAny(ctx, []*ibverbx.VirtualCQ{p.rig.a.cq}, p.ping.refused); err != nil {
				return err
			}
			continue
		}
		if idle%1024 == 0 {
			runtime.Gosched()
		}
		if idle%endCheck == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// tired says whether it is time to sleep after so many polls in vain, with the answering end in
// another process.
func (p *pinger) tired(idle int) bool {
	switch {
	case p.p.Wait == Poll || idle%64 != 0:
		return false
	case p.idleSince.IsZero():
		p.idleSince = time.Now()
		return false
	}
	return time.Since(p.idleSince) > latencySpin
}

// settle takes in what is still to be reported once the last answer has come.
func (p *pinger) settle(ctx context.Context) error {
	if p.pong == nil || p.rig.b == nil || p.p.Wait == Events {
		return nil // echo does it, or the other process
	}
	for p.pong.done < p.pong.posted {
		if err := p.answer(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// serve takes in the completions of an end that sends tx and sees the messages of rx.
func (p *pinger) serve(e *end, tx, rx *flow) (bool, error) {
	wcs, err := e.poll()
	for i := range wcs { // all of them, whatever became of one: each has to be accounted for
		if failed := p.take(&wcs[i], tx, rx); failed != nil && !errors.Is(err, ErrVerify) {
			err = failed
		}
	}
	return len(wcs) > 0, err
}

func (p *pinger) take(wc *ibverbx.WC, tx, rx *flow) error {
	if wc.ID&recvBit == 0 {
		return tx.sent(wc)
	}
	if err := rx.arrived(wc); err != nil {
		return err
	}
	return rx.credit()
}

// answer lets end b answer what has come.
func (p *pinger) answer() error {
	if _, err := p.serve(p.rig.b, p.pong, p.ping); err != nil {
		return err
	}
	for p.pong.posted < p.ping.received && !p.pong.failed {
		if k, err := p.pong.post(1); err != nil {
			return err
		} else if k == 0 {
			break // for now
		}
	}
	if p.pong.failed {
		return errFailed
	}
	return nil
}

// echo answers until the series is over.
func (p *pinger) echo(ctx context.Context) error {
	for {
		if err := p.answer(); err != nil {
			return err
		}
		over := context.Cause(ctx) != nil
		if over && p.pong.done == p.pong.posted {
			return nil
		}
		wait := ctx
		if over {
			var cancel context.CancelFunc
			wait, cancel = context.WithTimeoutCause(context.Background(), time.Second, ErrStalled)
			defer cancel()
		}
		if err := waitAny(wait, []*ibverbx.VirtualCQ{p.rig.b.cq}, p.pong.refused); err != nil &&
			(over || context.Cause(wait) == nil) {
			return err
		}
	}
}
