package transport_test

import (
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// patience bounds everything that a test waits for.
const patience = 20 * time.Second

// setup is the configuration of a test: the shape of an endpoint, and the limits of its worker.
type setup struct {
	name    string
	nics    int // an end; 0 means 1
	cfg     transport.Config
	peer    *transport.Config // of the end b, where it differs
	stepped bool
	seed    uint64
	fabric  soft.DeviceConfig
	memory  int // bytes of registered memory an end; 0 means 64 KiB
	// scramble lets completions of one queue appear out of order, which a single queue pair does
	// not tolerate.
	scramble bool
	handle   func(m *transport.Message) // b's handler 1; nil counts
	onError  func(ep *transport.Endpoint, err error)
	onReady  func(ep *transport.Endpoint)
}

// single reports whether an endpoint is one queue pair.
func (s setup) single() bool { return s.nics <= 1 && s.cfg.QP.QPsPerDevice == 1 }

// small are limits so low that every resource runs out.
func small() transport.Config {
	return transport.Config{AMBuffers: 2, BounceBuffers: 2, MaxOutstanding: 2}
}

// shapes are the ways in which an endpoint lies over queue pairs.
func shapes() []setup {
	qp := func(n int, scheme ibverbx.Scheme) transport.Config {
		return transport.Config{QP: ibverbx.Config{QPsPerDevice: n, Scheme: scheme, FragmentSize: 4096}}
	}
	return []setup{
		{name: "single QP", cfg: qp(1, ibverbx.DQPLB)},
		{name: "2 rails", cfg: qp(2, ibverbx.DQPLB)},
		{name: "4 rails", cfg: qp(4, ibverbx.DQPLB)},
		{name: "2 NICs of 1 rail", nics: 2, cfg: qp(1, ibverbx.DQPLB)},
		{name: "2 NICs of 2 rails", nics: 2, cfg: qp(2, ibverbx.DQPLB)},
		{name: "spray", cfg: qp(4, ibverbx.Spray)},
		{name: "spray, no notify QP", cfg: transport.Config{QP: ibverbx.Config{QPsPerDevice: 2,
			Scheme: ibverbx.Spray, FragmentSize: 4096, NoNotifyQP: true}}},
	}
}

// eachShape runs a test over every shape with the default limits.
func eachShape(t *testing.T, test func(t *testing.T, s setup)) {
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}

// each runs a test over every shape, with small limits and with the defaults.
func each(t *testing.T, test func(t *testing.T, s setup)) {
	eachShape(t, test)
	for _, s := range shapes() {
		tiny := small()
		tiny.QP = s.cfg.QP
		s.cfg = tiny
		s.name += ", small limits"
		t.Run(s.name, func(t *testing.T) { test(t, s) })
	}
}

// world is a fabric with workers on it. It is closed when the test ends; nothing may be left then.
type world struct {
	tb      testing.TB
	fabric  *soft.Fabric
	stepped bool
	workers []*transport.Worker
	domains []*ibverbx.Domain
	regions []*ibverbx.MR
	closed  bool
}

func newWorld(tb testing.TB, cfg soft.Config) *world {
	tb.Helper()
	f, err := soft.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, fabric: f, stepped: cfg.Stepped}
	tb.Cleanup(w.close)
	return w
}

// worker makes a worker over NICs of its own domain.
func (w *world) worker(cfg transport.Config, handlers map[transport.AMID]transport.Handler,
	nics ...*soft.Device) *transport.Worker {
	w.tb.Helper()
	devices := make([]verbs.Device, len(nics))
	for i := range nics {
		devices[i] = nics[i]
	}
	dom, err := ibverbx.NewDomain(devices...)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.domains = append(w.domains, dom)
	if w.stepped {
		cfg.KeepAlive = -1 // a stepped world has no clock
	}
	worker, err := transport.NewWorker(dom, cfg)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.workers = append(w.workers, worker)
	for id, h := range handlers {
		if err := worker.Handle(id, h); err != nil {
			w.tb.Fatal(err)
		}
	}
	return worker
}

// register makes memory known to a worker's NICs and fills it with a pattern.
func (w *world) register(of *transport.Worker, n int, pattern byte) ([]byte, *ibverbx.MR) {
	w.tb.Helper()
	mem := make([]byte, n)
	for i := range mem {
		mem[i] = pattern + byte(i) + byte(i>>8)
	}
	mr, err := of.Domain().Register(mem, verbs.AccessAll)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.regions = append(w.regions, mr)
	return mem, mr
}

// close closes everything, and fails the test for what is left: objects of the NICs, bounce
// buffers, or goroutines that do not end.
func (w *world) close() {
	if w.closed {
		return
	}
	w.closed = true
	stop := w.keepStepping()
	for _, x := range w.workers {
		_ = x.Close() // a test may have closed it, or killed its NICs
		if s := x.Stats(); s.BounceFree != s.BounceTotal {
			w.tb.Errorf("%d of %d bounce buffers came back", s.BounceFree, s.BounceTotal)
		} else if s.Endpoints != 0 {
			w.tb.Errorf("%d endpoints are left", s.Endpoints)
		}
	}
	for _, mr := range w.regions {
		if err := mr.Close(); err != nil {
			w.tb.Error(err)
		}
	}
	for _, dom := range w.domains {
		if err := dom.Close(); err != nil {
			w.tb.Error(err)
		}
	}
	stop()
	if o := w.fabric.Objects(); o != (soft.Objects{}) {
		w.tb.Errorf("left behind: %v", o)
	}
	if err := w.fabric.Close(); err != nil {
		w.tb.Error(err)
	}
}

// keepStepping steps the fabric beside calls that wait for the NICs, until stop is called.
func (w *world) keepStepping() (stop func()) {
	if !w.stepped {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			default:
				w.fabric.Step()
				runtime.Gosched()
			}
		}
	}()
	return func() { close(end); <-ended }
}

// progress makes one round of progress on every worker, after one step of the fabric if that is
// stepped.
func (w *world) progress() (n int) {
	if w.stepped {
		if _, ok := w.fabric.Step(); ok {
			n++
		}
	}
	for _, x := range w.workers {
		n += x.Progress()
	}
	return n
}

// until makes progress until done reports true.
func (w *world) until(what string, done func() bool) {
	w.tb.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if w.progress() != 0 {
			continue
		}
		if runtime.Gosched(); time.Now().After(deadline) {
			w.tb.Fatalf("does not happen: %s", what)
		}
	}
}

// quiet makes progress until there is nothing to do. It does not wait for what NICs do in the
// background: use until.
func (w *world) quiet() {
	w.tb.Helper()
	for idle, rounds := 0, 0; idle < 8; rounds++ {
		if idle++; w.progress() != 0 {
			idle = 0
		}
		if rounds > 1<<20 {
			w.tb.Fatal("does not come to rest")
		}
	}
}

// seeds is how many orders of events a stepped test tries.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return max(1, n/5)
	}
	return n
}
