package transport_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// domainOf is a domain over one software NIC with limits.
func domainOf(t *testing.T, limits soft.DeviceConfig) *ibverbx.Domain {
	t.Helper()
	w := newWorld(t, soft.Config{Device: limits})
	dom, err := ibverbx.NewDomain(w.fabric.Device(0))
	must(t, err)
	w.domains = append(w.domains, dom)
	return dom
}

// newWorkerRefused demands that a configuration is refused with an error that says all of these
// words.
func newWorkerRefused(t *testing.T, dom *ibverbx.Domain, cfg transport.Config, words ...string) {
	t.Helper()
	w, err := transport.NewWorker(dom, cfg)
	if err == nil {
		must(t, w.Close())
	}
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("%v: %v", words, err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v: %v", words, err)
		}
	}
}

// With the defaults a worker has endpoints on NICs of few scatter-gather elements, down to 2.
func TestMaxSGEFitsTheNIC(t *testing.T) {
	for most := 2; most <= 5; most++ {
		eachShape(t, func(t *testing.T, s setup) {
			s.fabric.MaxSGE = most
			l := newLink(t, s)
			if n := l.a.Limits().Pieces; n != most-1 {
				t.Fatalf("%d pieces on a NIC of %d", n, most)
			}
			pieces := make([]ibverbx.Segment, most-1)
			for i := range pieces {
				pieces[i] = l.a.mr.Slice(uint64(100*i), 10)
			}
			must(t, l.a.AMZcopy(nil, 1, []byte("h"), pieces...))
			l.until("the message", func() bool { return l.got == 1 })
		})
	}
	newWorkerRefused(t, domainOf(t, soft.DeviceConfig{MaxSGE: 1}), transport.Config{}, "soft0", "2")
	rights := ibverbx.ConnConfig{Access: verbs.AccessLocalWrite | verbs.AccessRemoteWrite}
	newWorkerRefused(t, domainOf(t, soft.DeviceConfig{}), transport.Config{QP: ibverbx.Config{Conn: rights}},
		"QP.Conn.Access LOCAL_WRITE|REMOTE_WRITE: must have", "REMOTE_READ")
}

// What is asked for and no NIC can do is refused by NewWorker, and names field and NIC.
func TestConfigurationsBeyondTheNIC(t *testing.T) {
	dom := domainOf(t, soft.DeviceConfig{MaxSGE: 3, MaxInline: 64, MaxQPWR: 64, MaxMsgSize: 4096})
	for field, cfg := range map[string]transport.Config{
		"QP.MaxSGE 4":     {QP: ibverbx.Config{MaxSGE: 4}},
		"QP.MaxRecvSGE 4": {QP: ibverbx.Config{MaxRecvSGE: 4}},
		"QP.MaxInline 65": {QP: ibverbx.Config{MaxInline: 65}},
		"AMBuffers 62":    {AMBuffers: 62},
		"BufferSize 4097": {BufferSize: 4097},
	} {
		newWorkerRefused(t, dom, cfg, field, "soft0")
	}
	w, err := transport.NewWorker(dom, transport.Config{QP: ibverbx.Config{MaxSGE: 3, MaxRecvSGE: 3,
		MaxInline: 64}, AMBuffers: 61, BufferSize: 4096})
	must(t, err)
	_, err = w.NewEndpoint(transport.EndpointConfig{})
	must(t, err)
	must(t, w.Close())
}

// The default of BufferSize is a message of the port at most, and no message is longer than one of
// this end's port, whatever the peer has room for.
func TestBufferSizeFitsThePort(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.fabric.MaxMsgSize = 1000
		l := newLink(t, s)
		if n := l.a.w.Config().BufferSize; n != 1000 {
			t.Errorf("buffers of %d bytes for messages of 1000", n)
		}
		lim := l.a.Limits()
		if lim.AMBcopy != 1000-8 || lim.AMZcopy != 1000-8 {
			t.Errorf("%+v", lim)
		}
		_, err := l.a.AMBcopy(1, nil, func(dst []byte) int { return len(dst) })
		must(t, err)
		must(t, l.a.AMZcopy(nil, 1, nil, l.a.mr.Slice(0, uint64(lim.AMZcopy))))
		l.until("both", func() bool { return l.got == 2 })
		x, y := newEndpoint(t, l.a.w, transport.EndpointConfig{}), newEndpoint(t, l.b.w,
			transport.EndpointConfig{})
		roomy := card(t, y)
		roomy.BufferSize = 1 << 20
		must(t, x.Connect(roomy))
		if n := x.Limits().AMZcopy; n != 1000-8 {
			t.Errorf("messages of %d bytes over a port of 1000", n)
		}
		err = x.AMZcopy(nil, 1, nil, l.a.mr.Slice(0, 1000))
		if !errors.Is(err, transport.ErrTooLong) {
			t.Errorf("%v", err)
		}
	})
	newWorkerRefused(t, domainOf(t, soft.DeviceConfig{MaxMsgSize: 255}), transport.Config{}, "soft0", "256")
}

// Every configuration gives a worker or an error, never a panic, and products that no memory holds
// are refused by name.
func TestImpossibleConfigurations(t *testing.T) {
	dom := domainOf(t, soft.DeviceConfig{})
	for word, cfg := range map[string]transport.Config{
		"BounceBuffers":  {BufferSize: 1 << 30, AMBuffers: 1, BounceBuffers: 1 << 20},
		"AMBuffers":      {BufferSize: 1 << 24, AMBuffers: 4096, BounceBuffers: 1},
		"MaxOutstanding": {MaxOutstanding: math.MaxInt},
		"MaxEndpoints":   {MaxEndpoints: math.MaxInt},
		"MaxMsgCntPerQP": {QP: ibverbx.Config{MaxMsgCntPerQP: math.MaxInt}},
		"Credits":        {QP: ibverbx.Config{Credits: math.MaxInt}},
	} {
		newWorkerRefused(t, dom, cfg, word)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	any := func() int { return pick(0, 0, 1, 2, -1, 100, 1<<14, 1<<20, 1<<31, math.MaxInt, math.MinInt) }
	for range 2000 {
		cfg := transport.Config{MaxEndpoints: any(), BufferSize: pick(0, any(), 256, 1<<30),
			BounceBuffers: pick(0, 0, 1, 1<<8, -1, math.MaxInt), AMBuffers: any(), MaxOutstanding: any()}
		cfg.QP.MaxMsgCntPerQP, cfg.QP.Credits, cfg.QP.MaxSGE = any(), any(), any()
		cfg.QP.MaxInline, cfg.QP.MaxRecvSGE, cfg.QP.QPsPerDevice = any(), any(), any()
		if w, err := transport.NewWorker(dom, cfg); err == nil {
			if c := w.Config(); c.BufferSize*c.AMBuffers <= 1<<24 {
				if err := newEndpointError(w); errors.Is(err, verbs.ErrInvalid) {
					t.Fatalf("%+v: %v", cfg, err)
				}
			}
			must(t, w.Close())
		}
	}
}

// What no endpoint can have is refused by NewWorker already, by name.
func TestConfigurationsThatNoEndpointCanHave(t *testing.T) {
	w := newWorld(t, setupFabric(2))
	dom, err := ibverbx.NewDomain(w.fabric.Device(0), w.fabric.Device(1))
	must(t, err)
	w.domains = append(w.domains, dom)
	for word, cfg := range map[string]ibverbx.Config{
		"Scheme":               {Scheme: ibverbx.Spray + 1},
		"FragmentSize":         {FragmentSize: 1<<31 + 1},
		"MaxMsgCntPerQP":       {MaxMsgCntPerQP: 1<<20 + 1},
		"Credits":              {Credits: 1<<20 + 1},
		"MaxBanked":            {MaxBanked: -1},
		"Testing.FirstNumber":  {Testing: ibverbx.Testing{FirstNumber: 1 << 24}},
		"MaxSGE":               {MaxSGE: 1<<12 + 1},
		"MaxRecvSGE":           {MaxRecvSGE: 1<<12 + 1},
		"MaxInline":            {MaxInline: 1<<20 + 1},
		"QPsPerDevice 65 on":   {QPsPerDevice: 65, MaxMsgCntPerQP: 35},
		"QPsPerDevice minus 1": {QPsPerDevice: -1},
		"NoNotifyQP":           {QPsPerDevice: 1, NoNotifyQP: true},
		"Conn.GIDIndex":        {Conn: ibverbx.ConnConfig{GIDIndex: 256}},
		"Conn.MTU":             {Conn: ibverbx.ConnConfig{MTU: 77}},
		"Conn.Timeout":         {Conn: ibverbx.ConnConfig{Timeout: 32}},
		"Conn.SL":              {Conn: ibverbx.ConnConfig{SL: 16}},
	} {
		word, _, _ = strings.Cut(word, " minus")
		newWorkerRefused(t, dom, transport.Config{QP: cfg}, "transport: config: ", word)
	}
	for word, cfg := range map[string]transport.Config{
		"QP.MaxMsgCntPerQP 12": {AMBuffers: 10, QP: ibverbx.Config{MaxMsgCntPerQP: 12}},
		"completions":          {MaxOutstanding: 1 << 16, MaxEndpoints: 1000},
	} {
		newWorkerRefused(t, dom, cfg, word)
	}
	w.worker(transport.Config{AMBuffers: 10, QP: ibverbx.Config{MaxMsgCntPerQP: 13}}, nil, w.fabric.Device(0))
	for _, cfg := range []ibverbx.Config{{QPsPerDevice: 1}, {Scheme: ibverbx.Spray}} {
		cfg.NoNotifyQP = true
		w.worker(transport.Config{QP: cfg}, nil, w.fabric.Device(0))
	}
	worker := w.worker(transport.Config{QP: ibverbx.Config{QPsPerDevice: ibverbx.MaxRails},
		MaxEndpoints: 1}, nil, w.fabric.Device(0))
	newEndpoint(t, worker, transport.EndpointConfig{})
}

// As many endpoints as Config.MaxEndpoints says can be made, and no more: their completions have
// room, whatever the NICs' limits are, also with the queue pairs that stand in for others.
func TestAllEndpointsHaveRoom(t *testing.T) {
	room := func(cfg transport.Config, nics, cqe int) {
		t.Helper()
		w := newWorld(t, soft.Config{Devices: nics, Device: soft.DeviceConfig{MaxCQE: cqe}})
		defer w.close()
		var devices []*soft.Device
		for i := range nics {
			devices = append(devices, w.fabric.Device(i))
		}
		worker := w.worker(cfg, nil, devices...)
		most := worker.Config().MaxEndpoints
		if most < 2 {
			t.Errorf("room for %d endpoints in %d completions", most, cqe)
		}
		for i := range most {
			if err := newEndpointError(worker); err != nil {
				t.Errorf("%+v, %d NICs: endpoint %d of %d: %v", cfg.QP, nics, i, most, err)
			}
		}
		if newEndpointError(worker) == nil {
			t.Error("one more endpoint")
		}
	}
	for _, qp := range []ibverbx.Config{
		{QPsPerDevice: 1}, {QPsPerDevice: 3}, {QPsPerDevice: 2, Scheme: ibverbx.Spray},
	} {
		for _, cqe := range []int{400, 1000, 1024} {
			room(transport.Config{QP: qp, AMBuffers: 2, MaxOutstanding: 4}, 1, cqe)
		}
	}
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for nics := 1; nics <= 3; nics++ {
			for qps := 1; qps <= 3; qps++ {
				cfg := failoverConfig(scheme)
				cfg.QP.QPsPerDevice, cfg.MaxEndpoints = qps, 3
				room(cfg, nics, 0)
			}
		}
	}
}

// What the configuration gives is kept, what it leaves out is lowered to the NICs.
func TestWorkerFitsItsNICs(t *testing.T) {
	for _, c := range []struct {
		dev    soft.DeviceConfig
		given  transport.Config
		inline int
		most   int // endpoints
	}{
		{soft.DeviceConfig{}, transport.Config{}, 128, 128},
		{soft.DeviceConfig{MaxInline: 20}, transport.Config{}, 20, 128},
		{soft.DeviceConfig{}, transport.Config{MaxEndpoints: 3, QP: ibverbx.Config{MaxInline: 40}}, 40, 3},
		// An endpoint of one queue pair needs (67+67) + 2*67 completions.
		{soft.DeviceConfig{MaxCQE: 268*5 + 1}, transport.Config{QP: ibverbx.Config{QPsPerDevice: 1}}, 128, 5},
		{soft.DeviceConfig{MaxCQE: 268 * 5}, transport.Config{MaxEndpoints: 5,
			QP: ibverbx.Config{QPsPerDevice: 1}}, 128, 5},
	} {
		w := newWorld(t, soft.Config{Device: c.dev})
		worker := w.worker(c.given, nil, w.fabric.Device(0))
		got := worker.Config()
		if got.QP.MaxInline != c.inline || got.MaxEndpoints != c.most {
			t.Errorf("%d bytes inline, %d endpoints; want %d and %d", got.QP.MaxInline, got.MaxEndpoints,
				c.inline,
				c.most)
		}
		w.close()
	}
	w := newWorld(t, soft.Config{Device: soft.DeviceConfig{MaxCQE: 268*5 - 1}})
	dom, err := ibverbx.NewDomain(w.fabric.Device(0))
	must(t, err)
	w.domains = append(w.domains, dom)
	for says, cfg := range map[string]transport.Config{
		"enough for 4": {MaxEndpoints: 5, QP: ibverbx.Config{QPsPerDevice: 1}},
		"lower":        {MaxOutstanding: 5000, QP: ibverbx.Config{QPsPerDevice: 1}},
	} {
		if _, err := transport.NewWorker(dom, cfg); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("error %v: want one that says %q", err, says)
		}
	}
}

// A worker has as many endpoints as its configuration says; a place that is given back is used
// again.
func TestAsManyEndpointsAsConfigured(t *testing.T) {
	w := newWorld(t, soft.Config{})
	worker := w.worker(transport.Config{MaxEndpoints: 2, KeepAlive: -1}, nil, w.fabric.Device(0))
	first := newEndpoint(t, worker, transport.EndpointConfig{Value: 7})
	second := newEndpoint(t, worker, transport.EndpointConfig{Name: "two"})
	if first.Name() != "endpoint 0" || second.Name() != "two" || first.Value() != 7 ||
		first.Worker() != worker {
		t.Errorf("%q and %q, value %v", first.Name(), second.Name(), first.Value())
	}
	if _, err := worker.NewEndpoint(transport.EndpointConfig{}); !errors.Is(err, transport.ErrNoRoom) ||
		errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "2 endpoints are open") {
		t.Errorf("a third: %v", err)
	}
	must(t, first.Abort(nil))
	for worker.Progress() != 0 {
	}
	again := newEndpoint(t, worker, transport.EndpointConfig{})
	if again.Name() != "endpoint 0" {
		t.Errorf("the free place has %q", again.Name())
	}
	must(t, worker.Close())
	if _, err := worker.NewEndpoint(transport.EndpointConfig{}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("of a closed worker: %v", err)
	}
	if err := worker.Handle(1, func(*transport.Message) {}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a handler of a closed worker: %v", err)
	}
	if err := worker.Close(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	w.workers = nil
}

func newEndpointError(w *transport.Worker) error {
	_, err := w.NewEndpoint(transport.EndpointConfig{})
	return err
}
