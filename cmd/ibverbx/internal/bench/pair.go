package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/verbs"
)

// OpenFunc opens a provider with twice the given number of NICs, the first half for one end; with
// [Params.Shared] the ends share that number.
type OpenFunc func(nics int) (verbs.Provider, error)

// pair is a column of the table: two connected ends that use one scheme, or this process's one. End
// 0 is a, the initiator, and end 1 is b, the target.
type pair struct {
	p        *Params
	scheme   Scheme
	provider verbs.Provider // nil unless the pair closes it
	mem      *memory
	ends     [2]*layers.End    // nil if another process drives it
	devices  [2][]verbs.Device // all NICs of an end; single uses the first
	failed   bool              // nothing more can be measured

	// Only for virtual queue pairs, to make them fail:

	nics   [2][]verbs.Device // of the queue pairs
	faults *faultPlan
	// sent is how many timed messages end a has posted in earlier rounds of the column, over all
	// sizes. It decides when faults strike.
	sent   int
	watch  stopwatch // of the timed rounds, over all sizes
	losses []Loss    // why the ends have lost queue pairs, not yet reported in a cell
	// carried is the last measured bytes a second of each direction; 0 before.
	carried float64
}

// endName returns the name of an end.
func endName(end int) string { return [...]string{"a", "b"}[end] }

// closePatience is how long the ends of a layer may take for an orderly close.
const closePatience = 2 * time.Second

// newPair makes both ends in this process and connects them.
func newPair(p *Params, open OpenFunc, scheme Scheme, m *memory) (*pair, error) {
	c := &pair{p: p, scheme: scheme, mem: m}
	c.faults = newFaultPlan(c, p.Faults)
	var err error
	if c.provider, err = open(p.NICs); err != nil {
		return nil, err
	}
	if c.devices, err = p.share(c.provider); err == nil {
		err = p.setSpeeds(c.provider, c.devices[:]...)
	}
	if err == nil {
		cfgs := [2]layers.Config{c.config(0), c.config(1)}
		if c.ends, err = layers.NewPair(&cfgs); err != nil {
			err = fmt.Errorf("%s: %w", scheme, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// newHalf makes this process's end of a pair.
func newHalf(p *Params, scheme Scheme, m *memory, end int, devices []verbs.Device) (*pair, error) {
	c := &pair{p: p, scheme: scheme, mem: m}
	c.faults = newFaultPlan(c, nil)
	c.devices[end] = devices
	cfg := c.config(end)
	var err error
	c.ends[end], err = layers.New(&cfg)
	return c, err
}

// share divides a provider's NICs between the ends.
func (p *Params) share(provider verbs.Provider) (ends [2][]verbs.Device, err error) {
	devices, err := provider.Devices()
	switch {
	case err != nil:
		return ends, err
	case p.Shared && len(devices) < p.NICs:
		return ends, usage("--nics %d: provider %s has %d", p.NICs, provider.Name(), len(devices))
	case p.Shared:
		return [2][]verbs.Device{devices[:p.NICs], devices[:p.NICs]}, nil
	case len(devices) < 2*p.NICs:
		return ends, usage("--nics %d: each end wants its own NICs, %d in all, and provider %s has %d",
			p.NICs, 2*p.NICs, provider.Name(), len(devices))
	}
	return [2][]verbs.Device{devices[:p.NICs], devices[p.NICs : 2*p.NICs]}, nil
}

// setSpeeds sets the speeds of the ends' NICs.
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

// pick returns the value for NIC i from a list of one for all or one each.
func pick[T any](list []T, i int) (v T) {
	switch len(list) {
	case 0:
		return v
	case 1:
		return list[0]
	}
	return list[i]
}

// config returns the configuration of an end.
func (c *pair) config(end int) layers.Config {
	p, m, devices := c.p, c.mem, c.devices[end]
	if c.scheme == Single {
		devices = devices[:1]
	}
	c.nics[end] = devices
	qp := p.config(c.scheme)
	qp.Events.Rail = func(e ibverbx.RailEvent) { c.noteLoss(end, e) }
	cfg := layers.Config{Name: endName(end), Shape: p.Shape(), Window: p.TxDepth, Inline: p.Inline, QP: qp,
		Devices: devices, Src: m.ends[end].src, Dst: m.ends[end].dst,
		Watch: p.Watch, WatchAs: fmt.Sprint(c.scheme, " ", endName(end))}
	if len(cfg.Dst) > tail {
		cfg.Tail = (m.window + 7) &^ 7 // behind the slots
	}
	return cfg
}

// spin returns how long an end polls in vain before it sleeps; if negative, it does not poll.
func (p *Params) spin() time.Duration {
	switch {
	case p.Wait == Poll:
		return time.Hour
	case p.Wait == Events:
		return -1
	case p.unknownSpeed() && p.Mode.Series():
		return latencySpin
	}
	return patientSpin
}

// here returns an end that this process drives, and its number: a if it drives both.
func (c *pair) here() (e *layers.End, end int) {
	if c.ends[0] != nil {
		return c.ends[0], 0
	}
	return c.ends[1], 1
}

// queuePairs iterates over the queue pairs of the ends here, by end. A layer has none.
func (c *pair) queuePairs() iter.Seq2[int, *layers.QueuePair] {
	return func(yield func(int, *layers.QueuePair) bool) {
		for i, e := range c.ends {
			if e != nil && e.QueuePair() != nil && !yield(i, e.QueuePair()) {
				return
			}
		}
	}
}

// dataRails returns how many queue pairs carry the messages of a connection.
func (c *pair) dataRails() int {
	if e, _ := c.here(); e.QueuePair() != nil {
		return e.QueuePair().VQP.DataRails()
	}
	if c.scheme == Single {
		return 1
	}
	return c.p.rails()
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

// maxLosses bounds the recorded causes. Further ones are left out.
const maxLosses = 64

// noteLoss records that an end has lost a queue pair, for [ibverbx.Events].
func (c *pair) noteLoss(end int, e ibverbx.RailEvent) {
	if !e.Down {
		return
	}
	l := Loss{End: endName(end), Device: e.Device, Cause: e.Cause.Error(), Times: 1}
	at := slices.IndexFunc(c.losses, func(of Loss) bool {
		return of.End == l.End && of.Device == l.Device && of.Cause == l.Cause
	})
	switch {
	case at >= 0:
		c.losses[at].Times++
	case len(c.losses) < maxLosses:
		c.losses = append(c.losses, l)
	}
}

// repairs returns the repairs of the NICs of the ends here, if they count them. Those of shared
// NICs belong to end a.
func (c *pair) repairs() (n [2]Repairs) {
	for i, devices := range c.nics {
		if i == 1 && slices.Equal(devices, c.nics[0]) {
			continue
		}
		for _, d := range devices {
			if counting, ok := d.(verbs.RepairCounter); ok {
				n[i].add(counting.Repairs(cmp.Or(int(c.p.Conn.Port), d.DefaultPort())), nil)
			}
		}
	}
	return n
}

// count returns the statistics of the virtual queue pairs of the ends here.
func (c *pair) count() (n [2]ibverbx.Stats) {
	for i, q := range c.queuePairs() {
		n[i] = q.VQP.Stats()
	}
	return n
}
