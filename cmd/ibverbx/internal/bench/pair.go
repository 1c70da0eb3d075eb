package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/verbs"
)

// OpenFunc opens a provider that has two times the given number of NICs, the first half for one
// end; with [Params.Shared] the ends share that number.
type OpenFunc func(nics int) (verbs.Provider, error)

// pair is a column of the table: two connected ends that use one scheme, or this process's one. End
// 0 is a, the initiator, and end 1 is b, the target.
type pair struct {
	p        *Params
	scheme   Scheme
	provider verbs.Provider // nil when it is not the pair's to close
	mem      *memory
	ends     [2]*layers.End    // nil if another process drives it
	devices  [2][]verbs.Device // all NICs of an end, of which single uses the first
	failed   bool              // nothing more can be measured

	// Only of virtual queue pairs, to make them fail:

	nics   [2][]verbs.Device // that the queue pairs are on
	rails  [2][]verbs.QP     // an end's queue pairs in the order of the rails; the notify QP comes last
	faults *faultPlan
	// sent is how many timed messages end a has posted in the column in earlier rounds, over all
	// sizes. Faults strike by it.
	sent  int
	watch stopwatch // of the timed rounds, over all sizes
	// losses are why the ends have lost queue pairs, over all sizes.
	losses [2][]Loss
	// carried is how many bytes a second went in each direction when it was measured last; 0
	// before.
	carried float64
}

// endName is how an end is called.
func endName(end int) string { return [...]string{"a", "b"}[end] }

// closePatience is how long the ends of a layer may take to close in order.
const closePatience = 2 * time.Second

func newPair(p *Params, open OpenFunc, scheme Scheme, m *memory) (*pair, error) {
	c := &pair{p: p, scheme: scheme, mem: m}
	c.faults = newFaultPlan(c, p.Faults)
	var err error
	if c.provider, err = open(p.NICs); err != nil {
		return nil, err
	}
	if err := c.openBoth(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// openBoth makes both ends in this process and connects them.
func (c *pair) openBoth() (err error) {
	if c.devices[0], c.devices[1], err = c.p.share(c.provider); err != nil {
		return err
	}
	if err := c.p.setSpeeds(c.provider, c.devices[:]...); err != nil {
		return err
	}
	if err := c.connectBoth(c.devices); err != nil {
		if c.p.Layered() {
			return fmt.Errorf("%s: %w", c.scheme, err)
		}
		return err
	}
	return c.checkLongest()
}

// connectBoth makes the ends on these devices and connects them.
func (c *pair) connectBoth(devices [2][]verbs.Device) error {
	cfgs := [2]layers.Config{c.config(0, devices[0]), c.config(1, devices[1])}
	ends, err := layers.NewPair(&cfgs)
	if err == nil {
		c.ends = ends
	}
	return err
}

// newHalf makes this process's end of a pair.
func newHalf(p *Params, scheme Scheme, m *memory, end int, devices []verbs.Device) (*pair, error) {
	c := &pair{p: p, scheme: scheme, mem: m}
	c.faults = newFaultPlan(c, nil)
	c.devices[end] = devices
	cfg := c.config(end, devices)
	var err error
	c.ends[end], err = layers.New(&cfg)
	return c, err
}

// share says which of a provider's NICs are which end's.
func (p *Params) share(provider verbs.Provider) (a, b []verbs.Device, err error) {
	devices, err := provider.Devices()
	switch {
	case err != nil:
		return nil, nil, err
	case p.Shared && len(devices) < p.NICs:
		return nil, nil, usage("--nics %d: provider %s has %d", p.NICs, provider.Name(), len(devices))
	case p.Shared:
		return devices[:p.NICs], devices[:p.NICs], nil
	case len(devices) < 2*p.NICs:
		return nil, nil, usage("--nics %d: each end wants its own NICs, %d in all, and provider %s has %d",
			p.NICs, 2*p.NICs, provider.Name(), len(devices))
	}
	return devices[:p.NICs], devices[p.NICs : 2*p.NICs], nil
}

// setSpeeds slows the NICs of the ends down as asked.
func (p *Params) setSpeeds(provider verbs.Provider, ends ...[]verbs.Device) error {
	if len(p.Speeds) == 0 && len(p.Latencies) == 0 {
		return nil
	}
	for _, devices := range ends {
		for i, d := range devices {
			simulated, ok := d.(interface {
				SetSpeed(bandwidth uint64, latency time.Duration)
			})
			if !ok {
				return usage("--nic-speed and --nic-latency are of software NICs; provider %s has the "+
					"speed it has", provider.Name())
			}
			simulated.SetSpeed(uint64(pick(p.Speeds, i)), time.Duration(pick(p.Latencies, i)))
		}
	}
	return nil
}

// pick is the value for NIC i of a list of one for all or one each.
func pick[T any](list []T, i int) (v T) {
	switch len(list) {
	case 0:
		return v
	case 1:
		return list[0]
	}
	return list[i]
}

// config says what an end on these devices is made of. Its queue pairs are recorded where faults
// can strike.
func (c *pair) config(end int, devices []verbs.Device) layers.Config {
	p, m := c.p, c.mem
	if c.scheme == Single {
		devices = devices[:1]
	}
	c.nics[end], c.rails[end] = devices, nil
	if !p.Layered() {
		tapped := make([]verbs.Device, len(devices))
		for i, d := range devices {
			tapped[i] = tap{d, &c.rails[end]}
		}
		devices = tapped
	}
	largest := 0
	for _, z := range p.Sizes {
		largest = max(largest, int(z))
	}
	qp := p.config(c.scheme)
	qp.OnRail = func(e ibverbx.RailEvent) { c.noteLoss(end, e) }
	return layers.Config{
		Name: endName(end), Shape: p.Shape(), Kind: p.Kind, Endpoints: p.Endpoints,
		Window: max(p.TxDepth, leastLayerWindow), Largest: largest, Inline: p.Inline, QP: qp,
		Spin:    p.spin(),
		Devices: devices, Src: m.ends[end].src, Dst: m.ends[end].dst, Tail: p.wordsAt(m, end),
	}
}

// wordsAt is where the words of the layers lie in an end's target: behind the slots, if it has any.
func (p *Params) wordsAt(m *memory, end int) int {
	if len(m.ends[end].dst) <= tail {
		return 0
	}
	return m.behind()
}

// spin is how long an end polls without success before it sleeps, as transport.Config.Spin.
func (p *Params) spin() time.Duration {
	switch {
	case p.Wait == Poll:
		return time.Hour
	case p.Wait == Events:
		return -1
	case p.unknownSpeed() && p.Mode == Latency:
		return latencySpin
	}
	return patientSpin
}

// checkLongest checks that every size fits the kind that was asked for.
func (c *pair) checkLongest() error {
	end, _ := c.here()
	longest := end.Longest()
	for _, z := range c.p.Sizes {
		if longest > 0 && int(z) > longest {
			return usage("--size %v: --kind %s takes at most %v over these NICs; use --kind auto, or "+
				"smaller sizes", z, c.p.Kind, units.Size(longest))
		}
	}
	return nil
}

// here is an end that this process drives, and its number: a where it drives both.
func (c *pair) here() (e *layers.End, end int) {
	if c.ends[0] != nil {
		return c.ends[0], 0
	}
	return c.ends[1], 1
}

// queuePairs are the queue pairs of the ends here, by end;
// nil through a layer and of the other process's.
func (c *pair) queuePairs() (qps [2]*layers.QueuePair) {
	for i, e := range c.ends {
		if e != nil {
			qps[i] = e.QueuePair()
		}
	}
	return qps
}

// dataRails is how many queue pairs carry the messages of a connection.
func (c *pair) dataRails() int {
	if e, _ := c.here(); e.QueuePair() != nil {
		return e.QueuePair().VQP().DataRails()
	}
	if c.scheme == Single {
		return 1
	}
	return c.p.rails()
}

// run plays the round that both ends have begun, and returns when both are done. An end that fails
// ends the other one's part. One that has nothing to do is left alone, unless the other one needs
// its answer when a queue pair fails.
func (c *pair) run(ctx context.Context, tasks *[2]layers.Task) error {
	a, b := c.ends[0], c.ends[1]
	switch {
	case tasks[1].Send+tasks[1].Take == 0 && !c.p.Failover:
		return cause(ctx, a.Run(ctx, always))
	case a.QueuePair() != nil:
		return cause(ctx, layers.RunQueuePairs(ctx, a, b))
	}
	return c.runConcurrently(ctx, func(ctx context.Context) error { return a.Run(ctx, b.Over) })
}

// runConcurrently plays end b's part in a goroutine of its own while first plays a's.
func (c *pair) runConcurrently(ctx context.Context, first func(ctx context.Context) error) error {
	a, b := c.ends[0], c.ends[1]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan error, 1)
	go func() { over <- c.part("b", b.Run(ctx, a.Over), cancel) }()
	err := c.part("a", first(ctx), cancel)
	return errors.Join(cause(ctx, err), cause(ctx, <-over))
}

// errOver ends the part of an end whose peer has failed.
var errOver = errors.New("the series is over")

// part ends the other end's part too when this one has failed.
func (c *pair) part(end string, err error, cancel context.CancelCauseFunc) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		if c.p.Layered() {
			err = fmt.Errorf("end %s: %w", end, err)
		}
		cancel(errOver)
	}
	return err
}

func always() bool { return true }

// cause is why ctx ended where err says only that it has.
func cause(ctx context.Context, err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	if why := context.Cause(ctx); !errors.Is(why, errOver) {
		return why
	}
	return nil // the other end reports it
}

// close ends both ends and the provider, which must have nothing left open.
func (c *pair) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	if c.failed {
		cancel()
	}
	c.faults.end()
	var errs []error
	for _, e := range c.ends {
		if e != nil {
			errs = append(errs, e.Close(ctx))
		}
	}
	if c.provider != nil {
		errs = append(errs, c.provider.Close())
	}
	return errors.Join(errs...)
}
