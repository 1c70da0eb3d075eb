package transport_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/guard"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// link is two connected endpoints, a and b, of two workers, and what both have registered.
type link struct {
	*world
	a, b *end
	got  int // messages that b's handler 1 took, where the test has none of its own
}

// end is one side of a link.
type end struct {
	*transport.Endpoint
	w    *transport.Worker
	mem  []byte
	mr   *ibverbx.MR
	peer ibverbx.RemoteMR // the other side's memory
	nics []*soft.Device
	// handler is called by a's handler 1, which does nothing else.
	handler func()
}

func newLink(tb testing.TB, s setup) *link {
	tb.Helper()
	n := max(s.nics, 1)
	l := &link{world: newWorld(tb, soft.Config{
		Devices: 2 * n, Stepped: s.stepped, Device: s.fabric,
	})}
	peer := s.cfg
	if s.peer != nil {
		peer = *s.peer
	}
	handle := s.handle
	if handle == nil {
		handle = func(*transport.Message) { l.got++ }
	}
	l.a = l.newEnd(s.cfg, 0, n, s.memory, func(*transport.Message) {
		if l.a.handler != nil {
			l.a.handler()
		}
	})
	l.b = l.newEnd(peer, n, n, s.memory, handle)
	l.join(transport.EndpointConfig{Name: "peer b", OnError: s.onError, OnReady: s.onReady}, l.a, l.b)
	return l
}

func (l *link) newEnd(cfg transport.Config, first, n, memory int, handle transport.Handler) *end {
	l.tb.Helper()
	e := &end{}
	for i := range n {
		e.nics = append(e.nics, l.fabric.Device(first+i))
	}
	e.w = l.worker(cfg, map[transport.AMID]transport.Handler{1: handle}, e.nics...)
	if memory == 0 {
		memory = 64 << 10
	}
	e.mem, e.mr = l.register(e.w, memory, byte(first+1)*77)
	return e
}

// join connects new endpoints of two ends' workers. Cards and memory descriptions travel as JSON,
// as between two processes.
func (l *link) join(cfg transport.EndpointConfig, a, b *end) {
	l.tb.Helper()
	a.Endpoint, b.Endpoint = newEndpoint(l.tb, a.w, cfg),
		newEndpoint(l.tb, b.w, transport.EndpointConfig{Name: "peer a"})
	ca, cb := card(l.tb, a.Endpoint), card(l.tb, b.Endpoint)
	if err := a.Connect(throughJSON(l.tb, cb)); err != nil {
		l.tb.Fatal(err)
	}
	if err := b.Connect(throughJSON(l.tb, ca)); err != nil {
		l.tb.Fatal(err)
	}
	a.peer, b.peer = throughJSON(l.tb, b.mr.Remote()), throughJSON(l.tb, a.mr.Remote())
}

// another connects one more pair of endpoints on the same two workers. It shares the memory.
func (l *link) another(cfg transport.EndpointConfig) (a, b *end) {
	l.tb.Helper()
	x, y := *l.a, *l.b
	l.join(cfg, &x, &y)
	return &x, &y
}

func newEndpoint(tb testing.TB, w *transport.Worker, cfg transport.EndpointConfig) *transport.Endpoint {
	tb.Helper()
	ep, err := w.NewEndpoint(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return ep
}

func card(tb testing.TB, ep *transport.Endpoint) transport.Card {
	tb.Helper()
	c, err := ep.Card()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func throughJSON[T any](tb testing.TB, v T) (out T) {
	tb.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		tb.Fatal(err)
	}
	return out
}

// must fails the test for an error.
func must(tb testing.TB, err error) {
	if err != nil {
		tb.Helper() // here, since it takes a microsecond
		tb.Fatal(err)
	}
}

// pack writes data into a bounce buffer.
func pack(data []byte) func([]byte) int {
	return func(dst []byte) int { return copy(dst, data) }
}

// try makes one call after another until one is refused, and returns how many were not.
func try(tb testing.TB, call func(i int) error) (n int) {
	tb.Helper()
	for ; n < 1<<16; n++ {
		if err := call(n); err == transport.ErrNoResource {
			return n
		} else if err != nil {
			tb.Fatal(err)
		}
	}
	tb.Fatal("resources without an end")
	return n
}

// fill sends puts of a byte each, byte i to address 60000+i, until the endpoint has no room for
// more operations.
func (e *end) fill(tb testing.TB) (n int) {
	tb.Helper()
	return try(tb, func(i int) error { return e.PutShort([]byte{byte(i)}, e.peer.At(60000+uint64(i))) })
}

// send sends active message 1, with progress until it goes out.
func (l *link) send(e *end, payload []byte) {
	l.tb.Helper()
	l.until("an active message is sent", func() bool {
		err := e.AMShort(1, nil, payload)
		if err != nil && err != transport.ErrNoResource {
			l.tb.Fatal(err)
		}
		return err == nil
	})
}

// flushed makes a remote flush while the link makes progress.
func (l *link) flushed(e *end) {
	l.tb.Helper()
	comp := transport.NewCompletion(1, nil)
	l.until("a remote flush begins", func() bool {
		done, err := e.StartFlush(transport.FlushRemote, comp)
		if err != nil && err != transport.ErrNoResource {
			l.tb.Fatal(err)
		}
		if done {
			comp.Done(nil)
		}
		return err == nil
	})
	l.until("a remote flush ends", comp.Fired)
	must(l.tb, comp.Err())
}

// landed compares memory with what it should hold.
func landed(tb testing.TB, what string, got, want []byte) {
	tb.Helper()
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		tb.Fatalf("%s: differs from byte %d on", what, at)
	}
}

// within is a context that ends after patience.
func within(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// setupFabric is a fabric of so many NICs that works in the background.
func setupFabric(devices int) soft.Config { return soft.Config{Devices: devices} }

// overlapping is the length of transfers that may overlap: a word under the race detector.
func overlapping(n uint64) uint64 {
	if guard.Race {
		return 8
	}
	return n
}

// patience bounds everything that a test waits for.
const patience = 20 * time.Second

// setup is the configuration of a test: the shape of an endpoint, and the limits of its worker.
type setup struct {
	name    string
	nics    int // an end; 0 means 1
	cfg     transport.Config
	peer    *transport.Config // of the end b, where it differs
	stepped bool
	fabric  soft.DeviceConfig
	memory  int                        // bytes of registered memory an end; 0 means 64 KiB
	handle  func(m *transport.Message) // b's handler 1; nil counts
	onError func(ep *transport.Endpoint, err error)
	onReady func(ep *transport.Endpoint)
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
	cfg.QP.Conn.Access = cmp.Or(cfg.QP.Conn.Access, verbs.AccessAll)
	cfg.QP.Conn.Patience = cmp.Or(cfg.QP.Conn.Patience, ibverbx.PatienceShort)
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
