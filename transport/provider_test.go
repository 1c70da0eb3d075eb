package transport_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"ibverbx"
	"ibverbx/internal/unreliable"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// unreliableDomain is a domain over two NICs calls of which fail.
func unreliableDomain(t *testing.T) (w *world, dom *ibverbx.Domain, f *unreliable.Calls) {
	t.Helper()
	return unreliableNICs(t, 2)
}

// unreliableNICs is a domain over so many.
func unreliableNICs(t *testing.T, nics int) (w *world, dom *ibverbx.Domain, f *unreliable.Calls) {
	t.Helper()
	w, f = newWorld(t, setupFabric(nics)), &unreliable.Calls{At: -1}
	var devices []verbs.Device
	for i := range nics {
		devices = append(devices, unreliable.New(w.fabric.Device(i), f))
	}
	dom, err := ibverbx.NewDomain(devices...)
	must(t, err)
	w.domains = append(w.domains, dom)
	return w, dom, f
}

// Whatever call of the provider fails while a worker and an endpoint are made, its error is
// returned with the name of what was to be made, and what had been made before is released.
func TestFailedCreationLeavesNothing(t *testing.T) {
	cfg := transport.Config{QP: ibverbx.Config{QPsPerDevice: 2}, MaxEndpoints: 2}
	made := map[string]bool{}
	for at := 0; ; at++ {
		w, dom, f := unreliableDomain(t)
		f.N, f.At = 0, at
		worker, err := transport.NewWorker(dom, cfg)
		what := "new worker"
		if err == nil {
			w.workers = append(w.workers, worker)
			if _, err = worker.NewEndpoint(transport.EndpointConfig{}); err != nil {
				what = "new endpoint"
				if n := worker.Stats().Endpoints; n != 0 {
					t.Errorf("call %d, %s: %d endpoints", at, f.Name, n)
				}
				newEndpoint(t, worker, transport.EndpointConfig{}) // the next one can be made
			}
		}
		f.At = -1
		if f.Name == "" {
			if err != nil || at < 12 {
				t.Fatalf("%d calls, %v", at, err)
			}
			break
		}
		if made[f.Name] = true; err == nil && (f.Name == "query port" || f.Name == "query") {
			w.close() // Connect asks again; a NIC that does not say whether it is software counts as none
			continue
		}
		if !errors.Is(err, unreliable.Err) || !strings.HasPrefix(err.Error(), "transport: "+what+": ") {
			t.Errorf("call %d, %s: %v", at, f.Name, err)
		}
		w.close()
	}
	for _, name := range []string{"query", "query port", "create cq", "register", "create qp"} {
		if !made[name] {
			t.Errorf("no %s failed", name)
		}
	}
}

// The Close of a worker reports what cannot be released, and releases everything else.
func TestFailedCloseOfAWorkerIsReported(t *testing.T) {
	for _, c := range []struct {
		call string
		at   int
	}{
		{"close cq", 0}, {"close cq", 1},
		{"deregister", 0}, {"deregister", 1}, {"deregister", 2}, {"deregister", 3},
	} {
		w, dom, f := unreliableDomain(t)
		worker, err := transport.NewWorker(dom, transport.Config{})
		must(t, err)
		f.N, f.At, f.Only = 0, c.at, c.call
		if err := worker.Close(); !errors.Is(err, unreliable.Err) {
			t.Errorf("%s %d: %v", c.call, c.at, err)
		}
		w.close()
	}
}

// A goroutine that cannot wait for an event polls from time to time.
func TestWaitWhereTheCQCannotBeArmed(t *testing.T) {
	w, dom, f := unreliableDomain(t)
	worker, err := transport.NewWorker(dom, transport.Config{Spin: -1, KeepAlive: -1})
	must(t, err)
	w.workers = append(w.workers, worker)
	f.N, f.At, f.Only = 0, 0, "arm"
	calls := 0
	must(t, worker.WaitFor(within(t), 0, func() bool {
		calls++
		return calls == 4
	}))
	if f.Name == "" {
		t.Error("the CQ was armed")
	}
}

// The memory of an endpoint that cannot be given back is counted, and the endpoint is gone all the
// same.
func TestMemoryThatCannotBeGivenBack(t *testing.T) {
	w, dom, f := unreliableDomain(t)
	worker, err := transport.NewWorker(dom, transport.Config{})
	must(t, err)
	w.workers = append(w.workers, worker)
	for leaked := range uint64(3) {
		if n := worker.Stats().Leaked; n != leaked {
			t.Errorf("%d registrations leaked, want %d", n, leaked)
		}
		e := newEndpoint(t, worker, transport.EndpointConfig{})
		f.N, f.At, f.Only = 0, 0, "deregister"
		must(t, e.Abort(nil))
		w.quiet()
		if n := worker.Stats().Endpoints; n != 0 {
			t.Errorf("%d endpoints are left", n)
		}
	}
}

// Spurious completions of a provider are counted and dropped, whatever they claim: nothing ends
// twice, no message arrives, and the endpoint goes on.
func TestSpuriousCompletionsAreDropped(t *testing.T) {
	w, dom, f := unreliableDomain(t)
	cfg := transport.Config{QP: ibverbx.Config{QPsPerDevice: 1}, AMBuffers: 4, KeepAlive: -1}
	one, err := ibverbx.NewDomain(unreliable.New(w.fabric.Device(0), f))
	must(t, err)
	w.domains = append(w.domains, one)
	worker, err := transport.NewWorker(one, cfg)
	must(t, err)
	w.workers = append(w.workers, worker)
	got := 0
	must(t, worker.Handle(1, func(*transport.Message) { got++ }))
	a, b := newEndpoint(t, worker, transport.EndpointConfig{}),
		newEndpoint(t, worker, transport.EndpointConfig{})
	must(t, transport.Connect(a, b))
	_ = dom
	qp := a.QPStats().Rails[0].QPNum
	const recv = 1 << 63
	want := uint64(0)
	for _, id := range []uint64{
		0, 5, 1<<32 - 1, // sends of this endpoint that are not outstanding
		1 << 32, 2 << 32, 77 << 32, 1 << 62, // of others, and of none
		recv | 4 + 3, recv | 0xffff, // receives into buffers that do not exist
		recv | 2<<32, recv | 77<<32, recv | 1<<62,
	} {
		for range 2 {
			f.Invents = append(f.Invents, verbs.WC{ID: id, QPNum: qp, Opcode: verbs.WCRecv, ByteLen: 8})
			want++
		}
	}
	w.quiet()
	if n := worker.Stats().StaleEvents; n != want {
		t.Errorf("%d dropped, want %d", n, want)
	}
	for i := range 20 {
		must(t, a.AMShort(1, nil, nil))
		w.until("the message", func() bool { return got == i+1 })
	}
	must(t, a.Err())
	must(t, b.Err())
}

// countedNIC counts who watches it.
type countedNIC struct {
	*soft.Device
	watching *int
}

func (d countedNIC) Watch(c chan<- verbs.Event) (stop func()) {
	*d.watching++
	end := d.Device.Watch(c)
	return func() {
		*d.watching--
		end()
	}
}

// A worker watches each of its NICs until it is closed.
func TestAClosedWorkerWatchesNoNIC(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	must(t, err)
	watching := 0
	dom, err := ibverbx.NewDomain(countedNIC{fabric.Device(0), &watching},
		countedNIC{fabric.Device(1), &watching})
	must(t, err)
	w, err := transport.NewWorker(dom, transport.Config{})
	must(t, err)
	if watching != 2 {
		t.Errorf("%d NICs are watched", watching)
	}
	must(t, w.Close())
	if watching != 0 {
		t.Errorf("%d NICs are watched by a closed worker", watching)
	}
	must(t, errors.Join(dom.Close(), fabric.Close()))
}

// failures collects what an endpoint's OnError is called with.
type failures []error

// only demands that there was one failure, of the queue pair and for this reason.
func (f failures) only(t *testing.T, reason error) {
	t.Helper()
	var e *transport.EndpointError
	if len(f) != 1 || !errors.Is(f[0], transport.ErrPeerFailed) || !errors.Is(f[0], reason) ||
		!errors.As(f[0], &e) || e.Cause == nil || !strings.Contains(f[0].Error(), reason.Error()) {
		t.Errorf("failures: %v; want one with %v", []error(f), reason)
	}
}

func (f *failures) add(_ *transport.Endpoint, err error) { *f = append(*f, err) }

// carrierOf is the number of the queue pair on which an endpoint takes messages.
func carrierOf(t *testing.T, e *end) uint32 {
	t.Helper()
	c := card(t, e.Endpoint).QP
	if c.NotifyQPNum != 0 && c.Scheme == ibverbx.DQPLB.String() {
		return c.NotifyQPNum
	}
	return c.QPNums[0]
}

// A NIC that refuses receives for now gets them later, and no message is lost.
func TestReceivesThatAreRefusedForNow(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.cfg.QP.Conn.RNRRetry = verbs.RNRRetryForever // however late this end is with the others
		l := newLink(t, s)
		refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.b.nics[0],
			QPNum: carrierOf(t, l.b), Count: 5})
		sent := 0
		for ; sent < 500 && refusal.Hits() < 5 || sent < 20; sent++ {
			l.send(l.a, []byte("again"))
		}
		l.until("all have arrived", func() bool { return l.got == sent })
		if refusal.Hits() != 5 {
			t.Errorf("%d receives were refused", refusal.Hits())
		}
	})
}

// A worker that sleeps tries again by itself what its NIC has refused for now: no event tells when
// the NIC would take it.
func TestASleeperTriesRefusedReceivesAgain(t *testing.T) {
	for _, s := range shapes()[:2] {
		s.cfg.AMBuffers, s.cfg.KeepAlive, s.cfg.Spin = 2, -1, -1
		var got atomic.Int64
		s.handle = func(*transport.Message) { got.Add(1) }
		l := newLink(t, s)
		refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.b.nics[0],
			QPNum: carrierOf(t, l.b), Count: 5})
		must(t, l.b.w.Start())
		for n := range int64(20) {
			l.send(l.a, []byte("again"))
			l.until("it has arrived", func() bool { return got.Load() > n })
		}
		if refusal.Hits() != 5 {
			t.Errorf("%s: %d receives were refused", s.name, refusal.Hits())
		}
	}
}

// A NIC that refuses receives permanently fails the endpoint, once, and no other one of the worker.
func TestReceivesThatAreRefusedPermanently(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		var reported failures
		x, y := *l.a, *l.b
		x.Endpoint = newEndpoint(t, x.w, transport.EndpointConfig{Name: "b"})
		y.Endpoint = newEndpoint(t, y.w, transport.EndpointConfig{Name: "a", OnError: reported.add})
		must(t, transport.Connect(x.Endpoint, y.Endpoint))
		l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: y.nics[0], QPNum: carrierOf(t, &y),
			Count: -1, Err: verbs.ErrNotSupported})
		l.until("the endpoint fails", func() bool {
			_ = x.AMShort(1, nil, []byte("x"))
			return len(reported) != 0
		})
		l.quiet()
		reported.only(t, verbs.ErrNotSupported)
		if err := y.AMShort(1, nil, nil); !errors.Is(err, transport.ErrPeerFailed) {
			t.Errorf("a send behind it: %v", err)
		}
		got := l.got
		l.send(l.a, []byte("on"))
		l.until("the other endpoint's message", func() bool { return l.got == got+1 })
		must(t, y.Abort(nil))
		must(t, x.Abort(nil))
	})
}

// Credits whose message is refused for now are given later; refused permanently, the endpoint
// fails.
func TestCreditsThatAreRefused(t *testing.T) {
	for _, err := range []error{verbs.ErrNoMemory, verbs.ErrNotSupported} {
		eachShape(t, func(t *testing.T, s setup) {
			var reported failures
			s.cfg.AMBuffers, s.cfg.KeepAlive = 4, -1
			l := newLink(t, s)
			l.join(transport.EndpointConfig{}, l.b, l.a) // b is the one with the handlers below
			l.b.Endpoint = newEndpoint(t, l.b.w, transport.EndpointConfig{OnError: reported.add})
			l.a.Endpoint = newEndpoint(t, l.a.w, transport.EndpointConfig{})
			must(t, transport.Connect(l.a.Endpoint, l.b.Endpoint))
			refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.b.nics[0], Count: 4,
				Err:   err,
				QPNum: carrierOf(t, l.b)})
			if verbs.IsTransient(err) {
				for range 40 {
					l.send(l.a, nil)
				}
				l.until("all have arrived", func() bool { return l.got == 40 })
				if len(reported) != 0 || refusal.Hits() != 4 && s.single() {
					t.Errorf("%d refused, failures %v", refusal.Hits(), reported)
				}
				return
			}
			l.until("the endpoint fails", func() bool {
				_ = l.a.AMShort(1, nil, nil)
				return len(reported) != 0
			})
			l.quiet()
			reported.only(t, err)
		})
	}
}
