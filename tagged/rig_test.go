package tagged_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// rig is some workers over software NICs. When the test ends it checks that everything was
// released.
type rig struct {
	t       testing.TB
	fabric  *soft.Fabric
	workers []*tagged.Worker
	domains []*ibverbx.Domain
	before  []func() // run first at the end
	leaks   uint64   // registrations that a test has kept from being undone
}

func newRig(t testing.TB, workers, nics int, cfg tagged.Config) *rig {
	t.Helper()
	return newRigOver(t, soft.Config{Devices: workers * nics}, workers, cfg,
		func(d *soft.Device) verbs.Device { return d })
}

// newRigOver makes a rig on the NICs of a fabric, which wrap may wrap.
func newRigOver(t testing.TB, fabric soft.Config, workers int, cfg tagged.Config,
	wrap func(*soft.Device) verbs.Device) *rig {
	t.Helper()
	f, err := soft.New(fabric)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, fabric: f}
	t.Cleanup(r.close)
	nics := fabric.Devices / workers
	for i := range workers {
		var devices []verbs.Device
		for j := range nics {
			devices = append(devices, wrap(f.Device(i*nics+j)))
		}
		dom, err := ibverbx.NewDomain(devices...)
		if err != nil {
			t.Fatal(err)
		}
		r.domains = append(r.domains, dom)
		cfg.Transport.QP.Conn.Patience = ibverbx.PatienceShort
		w, err := tagged.NewWorker(dom, cfg)
		if err != nil {
			t.Fatal(err)
		}
		r.workers = append(r.workers, w)
	}
	return r
}

// newJoined makes a rig of workers that have joined, with a NIC each; change is that of join.
func newJoined(t testing.TB, ranks int, cfg tagged.Config, change ...func(int, *tagged.Config)) *rig {
	t.Helper()
	f, err := soft.New(soft.Config{Devices: ranks})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, fabric: f, workers: make([]*tagged.Worker, ranks)}
	t.Cleanup(r.close)
	for i := range ranks {
		dom, err := ibverbx.NewDomain(f.Device(i))
		if err != nil {
			t.Fatal(err)
		}
		r.domains = append(r.domains, dom)
	}
	cfg.Transport.QP.Conn.Patience = ibverbx.PatienceShort
	for i, err := range r.join(cfg, change...) {
		if err != nil {
			t.Fatalf("rank %d: %v", i, err)
		}
	}
	return r
}

// join has all workers join, and returns their errors; change may change the configuration of each.
func (r *rig) join(cfg tagged.Config, change ...func(rank int, cfg *tagged.Config)) []error {
	errs := make([]error, len(r.workers))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	all := newAllGather(len(r.workers))
	var wg sync.WaitGroup
	for i := range r.workers {
		cfg := cfg
		cfg.Rank, cfg.Size = i, len(r.workers)
		cfg.Exchange = func(ctx context.Context, mine []byte) ([][]byte, error) {
			return all.call(ctx, i, mine)
		}
		for _, f := range change {
			f(i, &cfg)
		}
		wg.Go(func() {
			w, err := tagged.Join(ctx, r.domains[i], cfg)
			if errs[i] = err; err == nil {
				r.workers[i] = w
			}
		})
	}
	wg.Wait()
	return errs
}

// peer returns a rank's endpoint to another.
func (r *rig) peer(from, to int) *tagged.Endpoint {
	r.t.Helper()
	e, err := r.workers[from].Peer(to)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// allGather is an all-gather among the goroutines of a test.
type allGather struct {
	mu      sync.Mutex
	rows    [][]byte
	missing int
	full    chan struct{}
}

func newAllGather(n int) *allGather {
	return &allGather{rows: make([][]byte, n), missing: n, full: make(chan struct{})}
}

func (a *allGather) call(ctx context.Context, i int, mine []byte) ([][]byte, error) {
	a.mu.Lock()
	a.rows[i] = mine
	rows, full := a.rows, a.full
	if a.missing--; a.missing == 0 {
		n := len(rows)
		a.rows, a.missing, a.full = make([][]byte, n), n, make(chan struct{})
		close(full)
	}
	a.mu.Unlock()
	select {
	case <-full:
		return rows, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *rig) close() {
	for _, f := range r.before {
		f()
	}
	for i, w := range r.workers {
		if err := w.Close(); err != nil {
			r.t.Errorf("close worker %d: %v", i, err)
		}
		s := w.Stats()
		if s.Requests != 0 || s.Unexpected != 0 || s.UnexpectedBytes != 0 || s.Leaked > r.leaks {
			r.t.Errorf("worker %d is closed and holds %+v", i, s)
		}
		if err := r.domains[i].Close(); err != nil {
			r.t.Errorf("close domain %d: %v", i, err)
		}
	}
	if o := r.fabric.Objects(); o != (soft.Objects{}) {
		r.t.Errorf("left open: %v", o)
	}
	if err := r.fabric.Close(); err != nil {
		r.t.Error(err)
	}
}

// connect connects two workers by number.
func (r *rig) connect(i, j int) (a, b *tagged.Endpoint) {
	r.t.Helper()
	a, b = r.endpoint(i, tagged.EndpointConfig{}), r.endpoint(j, tagged.EndpointConfig{})
	if err := tagged.Connect(a, b); err != nil {
		r.t.Fatal(err)
	}
	return a, b
}

func (r *rig) endpoint(i int, cfg tagged.EndpointConfig) *tagged.Endpoint {
	r.t.Helper()
	e, err := r.workers[i].NewEndpoint(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// pair is two workers with an endpoint each.
func pair(t testing.TB, nics int, cfg tagged.Config) (r *rig, a, b *tagged.Endpoint) {
	t.Helper()
	r = newRig(t, 2, nics, cfg)
	a, b = r.connect(0, 1)
	return r, a, b
}

// send sends, and fails the test if that is refused; like Send it may return nil.
func (r *rig) send(e *tagged.Endpoint, tag uint64, bufs ...[]byte) *tagged.Request {
	r.t.Helper()
	req, err := e.Send(tag, bufs...)
	if err != nil {
		r.t.Fatal(err)
	}
	return req
}

func (r *rig) recv(w *tagged.Worker, tag, mask uint64, bufs ...[]byte) *tagged.Request {
	r.t.Helper()
	req, err := w.Recv(tag, mask, bufs...)
	if err != nil {
		r.t.Fatal(err)
	}
	return req
}

// done waits for requests; nil ones are done.
func (r *rig) done(reqs ...*tagged.Request) {
	r.t.Helper()
	for _, req := range reqs {
		if req != nil {
			r.until(req.Done)
		}
	}
}

// until makes progress on all workers until done reports true.
func (r *rig) until(done func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); {
		for _, w := range r.workers {
			w.Progress()
		}
		if time.Now().After(deadline) {
			for i, w := range r.workers {
				r.t.Logf("worker %d: %+v", i, w.Stats())
			}
			r.t.Fatal("the condition does not come true")
		}
	}
}

// settle makes progress until nothing happens any more.
func (r *rig) settle() {
	for quiet := 0; quiet < 3; quiet++ {
		for _, w := range r.workers {
			if w.Progress() != 0 {
				quiet = 0
			}
		}
	}
}

// background starts progress on all workers, and returns a context that ends only if the test
// hangs.
func background(r *rig) context.Context {
	for _, w := range r.workers {
		if err := w.Start(); err != nil {
			r.t.Fatal(err)
		}
	}
	return timeout(r.t, 20*time.Second)
}

func timeout(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// cut cuts b into pieces of different lengths, with empty ones between them.
func cut(b []byte, pieces int) [][]byte {
	var out [][]byte
	for i := pieces; i > 0; i-- {
		n := len(b)
		if i > 1 {
			n = n / i / (1 + i%2)
		}
		out = append(out, b[:n], nil)
		b = b[n:]
	}
	return out
}

// tap is a software NIC that records what is registered with it.
type tap struct {
	*soft.Device
	mu         sync.Mutex
	registered []verbs.AccessFlags
	before     func(access verbs.AccessFlags, n int) // may be nil; runs before each registration
	// refuse is with what registrations are refused, but for the next good ones, and deregister
	// with what memory is not given back; nil if it is.
	refuse, deregister error
	good               int
	left               []verbs.MR // that were not given back
}

// leaked gives back what was not.
func (d *tap) leaked() error {
	var errs []error
	for _, mr := range d.left {
		errs = append(errs, mr.Close())
	}
	d.left = nil
	return errors.Join(errs...)
}

// tappedMR is memory that may stay registered.
type tappedMR struct {
	verbs.MR
	tap *tap
}

func (m tappedMR) Close() error {
	if m.tap.deregister != nil {
		m.tap.left = append(m.tap.left, m.MR)
		return m.tap.deregister
	}
	return m.MR.Close()
}

func (d *tap) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return &tappedPD{PD: pd, tap: d}, err
}

// take returns what was registered since the last call.
func (d *tap) take() []verbs.AccessFlags {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.registered
	d.registered = nil
	return list
}

type tappedPD struct {
	verbs.PD
	tap *tap
}

func (p *tappedPD) Device() verbs.Device { return p.tap }

func (p *tappedPD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	p.tap.mu.Lock()
	p.tap.registered = append(p.tap.registered, access)
	before, refuse := p.tap.before, p.tap.refuse
	if p.tap.good > 0 {
		p.tap.good, refuse = p.tap.good-1, nil
	}
	p.tap.mu.Unlock()
	if before != nil {
		before(access, len(buf))
	}
	if refuse != nil {
		return nil, refuse
	}
	mr, err := p.PD.RegisterMR(buf, access)
	return tappedMR{mr, p.tap}, err
}

// tappedRig is a rig of workers whose NICs record what is registered.
func tappedRig(t testing.TB, workers int, cfg tagged.Config) (*rig, []*tap) {
	t.Helper()
	var taps []*tap
	wrap := func(d *soft.Device) verbs.Device {
		taps = append(taps, &tap{Device: d})
		return taps[len(taps)-1]
	}
	return newRigOver(t, soft.Config{Devices: workers}, workers, cfg, wrap), taps
}
