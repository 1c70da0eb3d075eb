package transport_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// harm takes something away from an end: its first NIC, the link of that, or a queue pair.
type harm struct {
	name string
	do   func(f *soft.Fabric, nic *soft.Device)
	undo func(nic *soft.Device) // nil: what was lost comes back by itself, or not at all
}

func harms() []harm {
	return []harm{
		{"kill", func(_ *soft.Fabric, nic *soft.Device) { nic.Kill() }, nil},
		{"link", func(_ *soft.Fabric, nic *soft.Device) { nic.SetLink(false) },
			func(nic *soft.Device) { nic.SetLink(true) }},
		{"queue pair", func(f *soft.Fabric, nic *soft.Device) {
			f.Inject(soft.Fault{Kind: soft.FailQP, Device: nic})
		}, nil},
		{"cq", func(f *soft.Fabric, nic *soft.Device) {
			f.Inject(soft.Fault{Kind: soft.OverrunCQ, Device: nic})
		}, nil},
	}
}

// failoverConfig is a worker's whose endpoints can lose a NIC, and notice soon.
func failoverConfig(scheme ibverbx.Scheme) transport.Config {
	return transport.Config{QP: ibverbx.Config{Scheme: scheme, QPsPerDevice: 2, FragmentSize: 4096,
		Failover: true, Failback: 2 * time.Millisecond, Conn: ibverbx.ConnConfig{Timeout: 8, RetryCount: 2}}}
}

// eachHarm runs a test in both schemes with each NIC of either end lost in each way.
func eachHarm(t *testing.T, test func(t *testing.T, cfg transport.Config, h harm, nic int)) {
	t.Helper()
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, h := range harms() {
			for nic, where := range []string{"a's first", "a's second", "b's first", "b's second"} {
				if testing.Short() && (nic == 1 || nic == 2) {
					continue
				}
				t.Run(scheme.String()+"/"+h.name+"/"+where, func(t *testing.T) {
					t.Helper()
					test(t, failoverConfig(scheme), h, nic)
				})
			}
		}
	}
}

// An end loses one of its two NICs under active messages, puts and gets in both directions: all
// arrives, in order and once, and no operation sees an error.
func TestAnEndpointOutlivesANIC(t *testing.T) {
	eachHarm(t, func(t *testing.T, cfg transport.Config, h harm, nic int) {
		w := newWorld(t, soft.Config{Devices: 4})
		var ends [2]*failoverEnd
		for i := range ends {
			ends[i] = newFailoverEnd(w, cfg, w.fabric.Device(2*i), w.fabric.Device(2*i+1))
		}
		if err := transport.Connect(ends[0].ep, ends[1].ep); err != nil {
			t.Fatal(err)
		}
		ends[0].peer, ends[1].peer = ends[1], ends[0]
		whole := func() bool {
			return h.undo == nil || ends[0].w.Stats().RailsBack != 0 && ends[1].w.Stats().RailsBack != 0
		}
		const rounds = 24
		for ends[0].rounds < rounds || !whole() {
			ends[0].step()
			switch n := ends[0].rounds; {
			case n == rounds/2:
				h.do(w.fabric, w.fabric.Device(nic))
			case n == rounds*3/4 && h.undo != nil:
				h.undo(w.fabric.Device(nic))
			case n > 100*rounds:
				t.Fatal("no rail comes back")
			}
			ends[1].step()
			w.until("a round", func() bool { return ends[0].idle() && ends[1].idle() })
		}
		w.until("all messages", func() bool {
			return ends[0].received == ends[1].sent && ends[1].received == ends[0].sent
		})
		lost := uint64(0)
		for _, e := range ends {
			lost += e.w.Stats().RailsLost
			if e.w.Stats().RailsLost != e.ep.QPStats().RailsLost {
				t.Errorf("%d rails lost, the endpoint's %d", e.w.Stats().RailsLost,
					e.ep.QPStats().RailsLost)
			}
			if s := e.w.Stats(); s.Failures != 0 || e.ep.Err() != nil {
				t.Errorf("%d failures, %v", s.Failures, e.ep.Err())
			}
		}
		if lost == 0 {
			t.Error("no rail was lost")
		}
	})
}

// failoverEnd is an end that does some of each operation in a round.
type failoverEnd struct {
	t              testing.TB
	w              *transport.Worker
	ep             *transport.Endpoint
	peer           *failoverEnd
	own, src, dst  []byte // own is what the peer puts to and gets from
	ownMR          *ibverbx.MR
	srcMR, dstMR   *ibverbx.MR
	rounds         int
	sent, received uint64
	atomics        uint64 // that have succeeded; those that were lost are in lostAtomics
	lostAtomics    uint64
	old            uint64
	busy           []*transport.Completion
	atomic         *transport.Completion
}

const failoverSize = 20_000 // bytes of a put: some fragments on each rail

func newFailoverEnd(w *world, cfg transport.Config, nics ...*soft.Device) *failoverEnd {
	e := &failoverEnd{t: w.tb}
	e.w = w.worker(cfg, map[transport.AMID]transport.Handler{1: e.handle}, nics...)
	e.own, e.ownMR = w.register(e.w, 2*failoverSize+8, 1)
	e.src, e.srcMR = w.register(e.w, failoverSize, 2)
	e.dst, e.dstMR = w.register(e.w, failoverSize, 3)
	clear(e.own[2*failoverSize:])
	var err error
	if e.ep, err = e.w.NewEndpoint(transport.EndpointConfig{}); err != nil {
		w.tb.Fatal(err)
	}
	return e
}

// handle checks that messages come in order, and once.
func (e *failoverEnd) handle(m *transport.Message) {
	if n := binary.LittleEndian.Uint64(m.Data()); n != e.received {
		e.t.Errorf("message %d, want %d", n, e.received)
	}
	e.received++
}

// step begins a round: a put, which is compared at its end, a get, an atomic and messages.
func (e *failoverEnd) step() {
	e.rounds++
	for i := range e.src {
		e.src[i] = byte(i*7 + e.rounds*13 + i>>8)
	}
	remote := e.peer.ownMR.Remote()
	put, get := transport.NewCompletion(1, nil), transport.NewCompletion(1, nil)
	e.start(func() error {
		_, err := e.ep.PutZcopy(put, remote.Slice(0, failoverSize), e.srcMR.All())
		return err
	})
	e.start(func() error {
		_, err := e.ep.GetZcopy(get, remote.Slice(failoverSize, failoverSize), e.dstMR.All())
		return err
	})
	e.atomic = transport.NewCompletion(1, nil)
	e.start(func() error { return e.ep.FetchAdd(e.atomic, &e.old, remote.Slice(2*failoverSize, 8), 1) })
	for range 4 {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], e.sent)
		e.start(func() error { return e.ep.AMShort(1, nil, b[:]) })
		e.sent++
	}
	flush := transport.NewCompletion(1, nil)
	e.start(func() error {
		_, err := e.ep.StartFlush(transport.FlushRemote, flush)
		return err
	})
	e.busy = []*transport.Completion{put, get, flush}
}

// start calls until there are resources.
func (e *failoverEnd) start(call func() error) {
	e.t.Helper()
	for {
		err := call()
		if err == nil {
			return
		}
		if !errors.Is(err, transport.ErrNoResource) {
			e.t.Fatal(err)
		}
		e.w.Progress()
		e.peer.w.Progress()
	}
}

// idle reports whether the round is over, and then checks what it has done.
func (e *failoverEnd) idle() bool {
	if e.busy == nil {
		return true
	}
	for _, c := range append(e.busy, e.atomic) {
		if !c.Fired() {
			return false
		}
	}
	for _, c := range e.busy {
		if err := c.Err(); err != nil {
			e.t.Fatal(err)
		}
	}
	e.busy = nil
	e.checkAtomic()
	if !bytes.Equal(e.peer.own[:failoverSize], e.src) {
		e.t.Errorf("round %d: the put is not what was put", e.rounds)
	}
	for i, b := range e.dst {
		if want := byte(1) + byte(failoverSize+i) + byte((failoverSize+i)>>8); b != want {
			e.t.Fatalf("round %d: byte %d of the get is %#x, want %#x", e.rounds, i, b, want)
		}
	}
	clear(e.dst)
	return true
}

// checkAtomic checks the atomic of a round: it may have failed by itself.
func (e *failoverEnd) checkAtomic() {
	err := e.atomic.Err()
	switch {
	case err == nil:
		if e.old < e.atomics || e.old > e.atomics+e.lostAtomics {
			e.t.Errorf("%d before the atomic, want %d to %d", e.old, e.atomics, e.atomics+e.lostAtomics)
		}
		e.atomics++
	case errors.Is(err, transport.ErrAtomicLost):
		e.lostAtomics++
	default:
		e.t.Error(err)
	}
}

// An atomic whose answer is lost with its queue pair fails by itself: its completion says so, or,
// where it has none, the next flush, or Close. Nothing else fails.
func TestAnAtomicWithoutAnAnswer(t *testing.T) {
	w := newWorld(t, soft.Config{Devices: 4})
	cfg := failoverConfig(ibverbx.DQPLB)
	cfg.QP.QPsPerDevice = 4 // 8 rails: each loss takes one
	a := w.worker(cfg, nil, w.fabric.Device(0), w.fabric.Device(1))
	b := w.worker(cfg, nil, w.fabric.Device(2), w.fabric.Device(3))
	_, mr := w.register(b, 8, 0)
	number := mr.Bytes()
	clear(number)
	ep, err := a.NewEndpoint(transport.EndpointConfig{})
	if err != nil {
		t.Fatal(err)
	}
	peer, err := b.NewEndpoint(transport.EndpointConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := transport.Connect(ep, peer); err != nil {
		t.Fatal(err)
	}
	add := func(comp *transport.Completion) {
		t.Helper()
		w.fabric.Inject(soft.Fault{Kind: soft.FailAfterData,
			Match: func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpAtomicFetchAdd }})
		if err := ep.FetchAdd(comp, nil, mr.Remote().Slice(0, 8), 1); err != nil {
			t.Fatal(err)
		}
	}
	flush := func() error {
		comp := transport.NewCompletion(1, nil)
		if done, err := ep.StartFlush(transport.FlushLocal, comp); done || err != nil {
			return err
		}
		w.until("a flush", comp.Fired)
		return comp.Err()
	}

	comp := transport.NewCompletion(1, nil)
	add(comp)
	w.until("the atomic", comp.Fired)
	err = comp.Err()
	if !errors.Is(err, transport.ErrAtomicLost) || !strings.Contains(err.Error(), "fetch add") {
		t.Errorf("the atomic: %v", err)
	}
	if err := flush(); err != nil {
		t.Errorf("flush, of what its own completion has said: %v", err)
	}

	add(nil)
	if err := flush(); !errors.Is(err, transport.ErrAtomicLost) {
		t.Errorf("flush of an atomic without a completion: %v", err)
	}
	if err := flush(); err != nil {
		t.Errorf("a second flush: %v", err)
	}

	add(nil)
	w.until("the atomic", func() bool { return ep.Stats().Outstanding == 0 })
	if err := flush(); !errors.Is(err, transport.ErrAtomicLost) {
		t.Errorf("flush once the atomic has ended: %v", err)
	}

	if s := a.Stats(); s.AtomicsLost != 3 || s.RailsLost != 3 || s.Failures != 0 || s.Atomics != 3 {
		t.Errorf("%+v", s)
	}
	if n := binary.NativeEndian.Uint64(number); n != 3 {
		t.Errorf("the number is %d, want 3", n)
	}

	add(nil)
	w.until("the atomic", func() bool { return ep.Stats().Outstanding == 0 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Start(); err != nil {
		t.Fatal(err)
	}
	if err := ep.Close(ctx); !errors.Is(err, transport.ErrAtomicLost) {
		t.Errorf("close: %v", err)
	}
	if s := a.Stats(); s.RailsLost != 4 {
		t.Errorf("%d rails lost, now that the endpoint is closed", s.RailsLost)
	}
}

// An end that offers failover and one that does not are connected without; in spray, where receives
// would be on the wrong queue pair, the end that offers it refuses and says what to do.
func TestOneEndOffersFailover(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			w := newWorld(t, soft.Config{Devices: 4})
			cfg := failoverConfig(scheme)
			var eps [2]*transport.Endpoint
			got := 0
			for i := range eps {
				cfg.QP.Failover = i == 0
				worker := w.worker(cfg, map[transport.AMID]transport.Handler{
					1: func(*transport.Message) { got++ },
				}, w.fabric.Device(2*i), w.fabric.Device(2*i+1))
				var err error
				if eps[i], err = worker.NewEndpoint(transport.EndpointConfig{}); err != nil {
					t.Fatal(err)
				}
			}
			err := transport.Connect(eps[0], eps[1])
			if scheme == ibverbx.Spray {
				if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "QP.Failover") {
					t.Errorf("connect: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, ep := range eps {
				if err := ep.AMShort(1, nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			w.until("both messages", func() bool { return got == 2 })
		})
	}
}

// The events of endpoints come in order, and outside of the worker's locks: their functions may
// call it.
func TestEventsMayCallTheWorker(t *testing.T) {
	w := newWorld(t, soft.Config{Devices: 4})
	cfg := transport.Config{QP: ibverbx.Config{QPsPerDevice: 2, Failover: true, Failback: -1}}
	peer := cfg
	type event struct {
		what      string
		endpoints [2]int
	}
	said := make(chan event, 16)
	var worker *transport.Worker
	// The last events come while the test ends, so a function asks, and the test compares.
	say := func(what string) {
		said <- event{what, [2]int{worker.Stats().Endpoints, len(worker.Endpoints())}}
	}
	cfg.QP.Events = ibverbx.Events{
		Connected: func(ibverbx.ConnectedEvent) { say("connected") },
		Rail:      func(ibverbx.RailEvent) { say("lost") },
		Settled:   func(ibverbx.SettledEvent) { say("settled") },
	}
	a := newFailoverEnd(w, cfg, w.fabric.Device(0), w.fabric.Device(1))
	b := newFailoverEnd(w, peer, w.fabric.Device(2), w.fabric.Device(3))
	worker = a.w
	must(t, transport.Connect(a.ep, b.ep))
	must(t, errors.Join(a.w.Start(), b.w.Start()))
	w.fabric.Device(0).SetLink(false)
	count := map[string]int{}
	for i := 0; count["settled"] == 0; i++ {
		select {
		case e := <-said:
			count[e.what]++
			if (e.what == "connected") != (i == 0) || e.what == "settled" && count["lost"] == 0 {
				t.Errorf("event %d: %s after %v", i, e.what, count)
			}
			if e.endpoints != [2]int{1, 1} {
				t.Errorf("%s: the worker counts and lists %v endpoints, want one", e.what, e.endpoints)
			}
		case <-time.After(patience):
			t.Fatalf("only %v was said", count)
		}
	}
}

// A worker that sleeps hears of a port that goes down, however long the retries take.
func TestASleepingWorkerHearsOfPorts(t *testing.T) {
	w := newWorld(t, soft.Config{Devices: 4})
	cfg := transport.Config{KeepAlive: -1, QP: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 4096,
		Failover: true, Failback: -1, Conn: ibverbx.ConnConfig{Timeout: 21, RetryCount: 7}}}
	peer := cfg
	told := make(chan ibverbx.RailEvent, 8)
	cfg.QP.Events.Rail = func(e ibverbx.RailEvent) { told <- e }
	ends := [2]*failoverEnd{
		newFailoverEnd(w, cfg, w.fabric.Device(0), w.fabric.Device(1)),
		newFailoverEnd(w, peer, w.fabric.Device(2), w.fabric.Device(3)),
	}
	must(t, transport.Connect(ends[0].ep, ends[1].ep))
	for _, e := range ends {
		must(t, e.w.Start())
		sleeping(t, e.w, 1)
	}
	w.fabric.Device(0).SetLink(false)
	select {
	case e := <-told:
		if !e.Down || e.Device != w.fabric.Device(0).Name() {
			t.Errorf("says %v", e)
		}
	case <-time.After(patience):
		t.Error("nobody was told")
	}
}
