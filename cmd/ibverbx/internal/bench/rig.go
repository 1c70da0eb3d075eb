package bench

import (
	"errors"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// OpenFunc opens a provider that has two times the given number of NICs, the first half for one
// end; with [Params.Shared] the ends share that number.
type OpenFunc func(nics int) (verbs.Provider, error)

// rig is a column: two connected ends.
type rig struct {
	scheme   Scheme
	provider verbs.Provider // nil when it is not the rig's to close
	a, b     *end           // nil: another process drives it
	regions  [2]regions     // of the ends
	devicesA []verbs.Device // all NICs of an end, of which single uses the first
	devicesB []verbs.Device
	rails    []verbs.QP // end a's physical queue pairs, in the order of the rails; the notify QP comes last
	railsB   []verbs.QP
	faults   *faultPlan
	sent     int  // timed messages of end a, over all sizes
	failed   bool // nothing more can be measured
}

// end is one end of the connection.
type end struct {
	name   string
	nics   []verbs.Device // that its queue pairs are on
	vqp    *ibverbx.VirtualQP
	cq     *ibverbx.VirtualCQ
	src    *ibverbx.MR // nil when the end sends nothing
	dst    *ibverbx.MR
	batch  []ibverbx.SendWR // posts are made of it
	recvs  []ibverbx.RecvWR
	wcs    []ibverbx.WC
	tally  tally
	closed bool
}

// regions are an end's memory as the other one names it.
type regions struct {
	Src ibverbx.RemoteMR `json:"src"`
	Dst ibverbx.RemoteMR `json:"dst"`
}

func (e *end) regions() (r regions) {
	if e.src != nil {
		r.Src = e.src.Remote()
	}
	r.Dst = e.dst.Remote()
	return r
}

// here lists the ends that this process drives.
func (r *rig) here() (list []*end) {
	for _, e := range []*end{r.a, r.b} {
		if e != nil {
			list = append(list, e)
		}
	}
	return list
}

// postBatch is how many requests are posted in one call.
const postBatch = 32

func newRig(p *Params, open OpenFunc, scheme Scheme, m *memory) (r *rig, err error) {
	r = &rig{scheme: scheme}
	if r.provider, err = open(p.NICs); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.devicesA, r.devicesB, err = p.share(r.provider); err != nil {
		return r, err
	}
	if err := p.setSpeeds(r.provider, r.devicesA, r.devicesB); err != nil {
		return r, err
	}
	if r.a, err = newEnd(p, "a", scheme, r.devicesA, &m.ends[0], &r.rails); err != nil {
		return r, err
	}
	if r.b, err = newEnd(p, "b", scheme, r.devicesB, &m.ends[1], &r.railsB); err != nil {
		return r, err
	}
	r.faults = newFaultPlan(r, p.Faults)
	r.regions = [2]regions{r.a.regions(), r.b.regions()}
	return r, connect(r.a, r.b)
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

func newEnd(p *Params, name string, scheme Scheme, devices []verbs.Device, mem *buffers,
	made *[]verbs.QP) (*end, error) {
	if scheme == Single {
		devices = devices[:1]
	}
	tapped := make([]verbs.Device, len(devices))
	for i, d := range devices {
		tapped[i] = tap{d, made}
	}
	vqp, err := ibverbx.Open(tapped, p.config(scheme))
	if err != nil {
		return nil, err
	}
	e := &end{
		name: name, nics: devices, vqp: vqp, cq: vqp.CQ(),
		batch: make([]ibverbx.SendWR, postBatch), recvs: make([]ibverbx.RecvWR, postBatch),
		wcs: make([]ibverbx.WC, 64),
	}
	dom := vqp.Domain()
	if len(mem.src) > 0 {
		if e.src, err = dom.Register(mem.src, verbs.AccessLocalWrite|verbs.AccessRemoteRead); err != nil {
			return nil, errors.Join(err, e.close())
		}
	}
	if e.dst, err = dom.Register(mem.dst, verbs.AccessAll); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// connect exchanges the business cards.
func connect(a, b *end) error {
	cardA, err := a.vqp.Card()
	if err != nil {
		return err
	}
	cardB, err := b.vqp.Card()
	if err != nil {
		return err
	}
	return errors.Join(a.vqp.Connect(cardB), b.vqp.Connect(cardA))
}

// poll takes in completions and counts them.
func (e *end) poll() ([]ibverbx.WC, error) {
	n, err := e.cq.Poll(e.wcs)
	for i := range n {
		e.tally.count(&e.wcs[i])
	}
	return e.wcs[:n], err
}

// close ends the end. What was outstanding comes back as flushed, so that afterwards each request
// must have had its completion.
func (e *end) close() error {
	if e.closed {
		return nil
	}
	return errors.Join(e.shut(func(*ibverbx.WC) error { return nil }), e.tally.check(e.name))
}

// shut is close with the completions that are left handed to take, and without the sum at the end.
func (e *end) shut(take func(*ibverbx.WC) error) error {
	e.closed = true
	errs := []error{e.vqp.Close(), e.empty(take)}
	for _, mr := range []*ibverbx.MR{e.src, e.dst} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(errs...)
}

// empty hands over the completions that there are.
func (e *end) empty(take func(*ibverbx.WC) error) error {
	var errs []error
	for {
		wcs, err := e.poll()
		for i := range wcs {
			if err := take(&wcs[i]); err != nil && len(errs) == 0 {
				errs = append(errs, err)
			}
		}
		if err != nil || len(wcs) == 0 {
			return errors.Join(errs...) // an error here says closed and drained
		}
	}
}

// close ends both ends and the provider, which must have nothing left open.
func (r *rig) close() error {
	var errs []error
	if r.faults != nil {
		r.faults.end()
	}
	for _, e := range r.here() {
		errs = append(errs, e.close())
	}
	if r.provider != nil {
		errs = append(errs, r.provider.Close())
	}
	return errors.Join(errs...)
}
