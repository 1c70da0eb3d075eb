package transport_test

import (
	"errors"
	"strings"
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
		if made[f.Name] = true; err == nil && f.Name == "query port" {
			w.close() // who cannot be asked now is asked by Connect
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

// Whatever move of a queue pair fails on the way to a connection, and whichever receive, Connect
// returns its error, and the endpoint can be connected then: the receives of the first attempt,
// which were flushed, do not disturb the second.
func TestConnectWhereACallFails(t *testing.T) {
	for _, call := range []string{"modify", "post recv"} {
		for _, nics := range []int{1, 2} {
			for at, failed := 0, true; failed; at++ {
				w, dom, f := unreliableNICs(t, nics)
				got := 0
				worker, err := transport.NewWorker(dom, transport.Config{QP: ibverbx.Config{QPsPerDevice: 1},
					AMBuffers: 2})
				must(t, err)
				w.workers = append(w.workers, worker)
				must(t, worker.Handle(1, func(*transport.Message) { got++ }))
				a := newEndpoint(t, worker, transport.EndpointConfig{})
				b := newEndpoint(t, worker, transport.EndpointConfig{})
				f.N, f.At, f.Only, f.Name = 0, at, call, ""
				err = a.Connect(card(t, b))
				f.At = -1
				if failed = f.Name != ""; failed != errors.Is(err, unreliable.Err) || a.Err() != nil {
					t.Errorf("%s %d of %d NICs: %v, and then %v", call, at, nics, err, a.Err())
				}
				if failed {
					if err := a.AMShort(1, nil, nil); !errors.Is(err, transport.ErrNotConnected) {
						t.Errorf("a send before it is connected: %v", err)
					}
					must(t, a.Connect(card(t, b)))
				}
				must(t, b.Connect(card(t, a)))
				for range 8 { // more than were posted the first time
					must(t, b.AMShort(1, nil, []byte("to a")))
					must(t, a.AMShort(1, nil, []byte("to b")))
					before := got
					w.until("the messages arrive", func() bool { return got == before+2 })
				}
				if n := worker.Stats().StaleEvents; n != 0 {
					t.Errorf("%d stale completions", n)
				}
				if !failed && at < map[string]int{"modify": 3 * nics, "post recv": 1}[call] {
					t.Errorf("%d calls of %s", at, call)
				}
				w.close()
			}
		}
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
