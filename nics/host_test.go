package nics_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ibverbx"
	"ibverbx/internal/nicoffer"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/soft"
)

// real are the real NICs that a host has: software ones under their name.
type real struct {
	*soft.Fabric
	devices  []verbs.Device
	unopened error
	open     *atomic.Int64 // how many there are
}

func (r real) Close() error {
	err := r.Fabric.Close()
	if err == nil {
		r.open.Add(-1)
	}
	return err
}

func (real) Name() string                       { return nics.Real }
func (r real) Devices() ([]verbs.Device, error) { return r.devices, nil }
func (r real) Unopened() error                  { return r.unopened }

// down is a NIC without a link.
type down struct{ verbs.Device }

func (d down) QueryPort(n int) (verbs.PortAttr, error) {
	attr, err := d.Device.QueryPort(n)
	attr.State = verbs.PortDown
	return attr, err
}

// mute is a NIC that does not say what it is.
type mute struct{ verbs.Device }

func (mute) Query() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{}, errors.New("firmware error")
}

// hostWith is the configuration of a host with some real NICs, or with none for a reason. What it
// logs goes to a buffer.
func hostWith(t *testing.T, why error, devices func(all []verbs.Device) []verbs.Device) (nics.Config,
	*bytes.Buffer) {
	t.Helper()
	var said bytes.Buffer
	var open atomic.Int64
	t.Cleanup(func() {
		if n := open.Load(); n != 0 {
			t.Errorf("%d providers are left open", n)
		}
	})
	return nics.Config{Logger: slog.New(slog.NewTextHandler(&said,
		&slog.HandlerOptions{Level: slog.LevelDebug})), Sources: []nics.Source{{
		Name: nics.Real,
		Open: func(nics.Config) (verbs.Provider, error) {
			if devices == nil {
				return nil, why
			}
			f, err := soft.New(soft.Config{Devices: 2})
			if err != nil {
				return nil, err
			}
			open.Add(1)
			all, err := f.Devices()
			return real{f, devices(all), why, &open}, err
		}}}}, &said
}

// Real NICs are taken where there is a usable one, and those of roce where there is none: no
// device, no libibverbs, no link. What is there and cannot be opened is an error. The choice is
// logged, and can be asked for.
func TestWhichProvider(t *testing.T) {
	denied := errors.New("open device: mlx5_0: permission denied")
	both := func(all []verbs.Device) []verbs.Device { return all }
	oneDown := func(all []verbs.Device) []verbs.Device { return []verbs.Device{down{all[0]}, all[1]} }
	allDown := func(all []verbs.Device) []verbs.Device { return []verbs.Device{down{all[0]}, down{all[1]}} }
	for name, tt := range map[string]struct {
		why      error
		devices  func([]verbs.Device) []verbs.Device
		change   func(*nics.Config)
		provider string
		log      string
		err      error
		text     string // of the error, of Instead, or of LeftOut
	}{
		"real NICs": {nil, both, nil, nics.Real, `level=DEBUG msg="ibverbx: NICs opened" provider=rdmacore ` +
			`nics="soft0, soft1"`, nil, ""},
		"one without a link": {nil, oneDown, nil, nics.Real, "nics=soft1", nil,
			"soft0: no port is up: the last one is DOWN"},
		"one without a link, but both are named": {nil, oneDown,
			func(c *nics.Config) { c.Devices = "soft0,soft1" }, nics.Real, `nics="soft0, soft1"`, nil, ""},
		"one that does not say": {nil, func(all []verbs.Device) []verbs.Device {
			return []verbs.Device{mute{all[0]}, down{all[1]}}
		}, nil, nics.Real, "nics=soft0", nil, "soft1: no port is up"},
		"one that cannot be opened": {denied, both, nil, nics.Real, "level=WARN", nil, denied.Error()},
		"no link": {nil, allDown, nil, nics.RoCE, "provider=roce", nil,
			"soft1: no port is up: the last one is DOWN"},
		"no link, but named": {nil, allDown, func(c *nics.Config) { c.Provider = nics.Real }, nics.Real, "",
			nil, ""},
		"no link, but chosen": {nil, allDown, func(c *nics.Config) { c.Devices = "soft0" }, nics.Real,
			"provider=rdmacore", nil, ""},
		"no device": {rdmacore.ErrNoDevice, nil, nil, nics.RoCE, "because=", nil,
			rdmacore.ErrNoDevice.Error()},
		"no device, and advice": {fmt.Errorf("%w: the kernel has no RDMA: %s", rdmacore.ErrNoDevice,
			strings.Repeat("load a driver; ", 20)), nil, nil, nics.RoCE,
			rdmacore.ErrNoDevice.Error() + `: the kernel has no RDMA: load a driver; load`, nil,
			"driver; load"},
		"no library": {rdmacore.ErrNoLibrary, nil, nil, nics.RoCE, "because=", nil,
			rdmacore.ErrNoLibrary.Error()},
		"no device, but an address": {rdmacore.ErrNoDevice, nil,
			func(c *nics.Config) { c.Devices = "127.0.0.21" }, nics.RoCE, "roce0 at 127.0.0.21:", nil, ""},
		"an address, beside real NICs": {nil, both, func(c *nics.Config) { c.Devices = "127.0.0.30" },
			nics.RoCE, `provider=roce nics="roce0 at 127.0.0.30:`, nil, ""},
		"IPv6 and IPv4": {denied, nil, func(c *nics.Config) {
			c.Devices, c.RoCE.Port = "::1,127.0.0.31", 47913
		}, nics.RoCE, `nics="roce0 at [::1]:47913, roce1 at 127.0.0.31:47913"`, nil, ""},
		"an address twice": {nil, both, func(c *nics.Config) { c.Devices = "127.0.0.1,::1,127.0.0.1" }, "",
			"", verbs.ErrInvalid, "names 127.0.0.1 twice"},
		"an address and a real NIC": {nil, both, func(c *nics.Config) { c.Devices = "127.0.0.1,mlx5_0" }, "",
			"", verbs.ErrInvalid, `"mlx5_0" is neither an address nor an interface of this host`},
		"an address and a library": {nil, both, func(c *nics.Config) {
			c.Devices, c.Library = "127.0.0.1", "/opt/libibverbs.so"
		}, "", "", verbs.ErrInvalid, "Devices: 127.0.0.1: Library is of real NICs, and addresses are not"},
		"no device, and a name of one": {rdmacore.ErrNoDevice, nil,
			func(c *nics.Config) { c.Devices = "mlx5_0" }, "", "", rdmacore.ErrNoDevice,
			"nics: mlx5_0: " + rdmacore.ErrNoDevice.Error() +
				"; to make NICs of interfaces or addresses take provider roce"},
		"no device, but a library": {rdmacore.ErrNoLibrary, nil,
			func(c *nics.Config) { c.Library = "/opt/libibverbs.so" }, "", "", rdmacore.ErrNoLibrary,
			"nics: "},
		"permission denied": {denied, nil, nil, "", "", denied,
			"nics: open device: mlx5_0: permission denied"},
		"another name": {nil, both, func(c *nics.Config) { c.Provider = "efa" }, "", "", verbs.ErrInvalid,
			`nics: config: invalid argument: Provider: "efa": have soft, rdmacore, roce, shm`},
		"no such address": {nil, both, func(c *nics.Config) { c.Provider, c.Devices = nics.RoCE, "nic7" }, "",
			"",
			verbs.ErrInvalid, `"nic7" is neither an address nor an interface of this host (have `},
		"addresses in two places": {nil, both, func(c *nics.Config) {
			c.Provider, c.Devices = nics.RoCE, "127.0.0.1"
			c.RoCE.Addresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
		}, "", "", verbs.ErrInvalid, "RoCE.Addresses names the NICs as well"},
		"software NICs": {nil, both, func(c *nics.Config) { c.Provider = nics.Soft }, nics.Soft, "", nil, ""},
		"none at all": {nil, func([]verbs.Device) []verbs.Device { return nil }, nil, "", "", nil,
			"no devices"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, said := hostWith(t, tt.why, tt.devices)
			if tt.change != nil {
				tt.change(&cfg)
			}
			h, err := nics.Open(cfg)
			if tt.provider == "" {
				if err == nil || tt.err != nil && !errors.Is(err, tt.err) ||
					!strings.Contains(err.Error(), tt.text) {
					t.Errorf("error %v, want %v with %q", err, tt.err, tt.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			why := errors.Join(h.Instead(), h.LeftOut())
			if h.Name() != tt.provider || !strings.Contains(said.String(), tt.log) ||
				tt.text != "" && (why == nil || !strings.Contains(why.Error(), tt.text)) ||
				tt.text == "" && h.LeftOut() != nil ||
				strings.Contains(said.String(), "because=") != (why != nil) &&
					tt.log != "" {
				t.Errorf("%s, because %v, logged %s", h.Name(), why, said)
			}
		})
	}
}

// ranked is the route to a job, at one of its ranks.
type ranked struct {
	nics.Route
	rank int
}

func (r ranked) Rank() int { return r.rank }

// At INFO a single line says that sockets are used, when they are; in a job rank 0 alone says it.
func TestLineAboutSockets(t *testing.T) {
	allDown := func(all []verbs.Device) []verbs.Device { return []verbs.Device{down{all[0]}} }
	a, b := met(t)
	const noNIC = "ibverbx: no RDMA NIC here: using UDP sockets (provider roce)"
	for name, c := range map[string]struct {
		why     error
		devices func([]verbs.Device) []verbs.Device
		route   nics.Route
		want    string
	}{
		"two processes": {fmt.Errorf("%w: errno 2", rdmacore.ErrNoDevice), nil, a, noNIC},
		"no library":    {rdmacore.ErrNoLibrary, nil, b, noNIC},
		"no link": {nil, allDown, a,
			"ibverbx: no RDMA NIC here has a port that is up: using UDP sockets (provider roce)"},
		"rank 0":    {rdmacore.ErrNoDevice, nil, ranked{a, 0}, noNIC},
		"rank 1":    {rdmacore.ErrNoDevice, nil, ranked{b, 1}, ""},
		"no route":  {rdmacore.ErrNoDevice, nil, nil, noNIC},
		"real NICs": {nil, func(all []verbs.Device) []verbs.Device { return all }, a, ""},
	} {
		cfg, _ := hostWith(t, c.why, c.devices)
		var said bytes.Buffer
		cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
		var events []nics.FallbackEvent
		cfg.Events.Fallback = func(e nics.FallbackEvent) { events = append(events, e) }
		h, err := nics.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if said.Len() != 0 {
			t.Errorf("%s: logged before a NIC is used: %s", name, &said)
		}
		for range 2 {
			if c.route != nil {
				_, err = h.Reaching(c.route)
			} else {
				_, err = h.Devices()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_, got, _ := strings.Cut(said.String(), "level=INFO ")
		if c.want != "" {
			c.want = fmt.Sprintf("msg=%q\n", c.want)
		}
		if got != c.want {
			t.Errorf("%s: logged %q, want %q", name, got, c.want)
		}
		var want []nics.FallbackEvent
		if h.Instead() != nil {
			want = []nics.FallbackEvent{{Provider: nics.RoCE, Note: h.Note(), Instead: h.Instead()}}
		}
		if !slices.Equal(events, want) {
			t.Errorf("%s: events %+v", name, events)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// met are two ends of a conversation over the loopback interface.
func met(t *testing.T) (a, b *rendezvous.Conn) {
	t.Helper()
	l, err := rendezvous.Listen(t.Context(), "127.0.0.1:0", rendezvous.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = rendezvous.Dial(t.Context(), l.Addr().String(), rendezvous.Config{}); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(a.Close(), b.Close()) })
	return a, b
}

// connect connects two hosts.
func connect(t *testing.T, a, b *nics.Host) (qpA, qpB *ibverbx.VirtualQP, errA, errB error) {
	t.Helper()
	left, right := met(t)
	var both sync.WaitGroup
	both.Go(func() { qpA, errA = a.Connect(t.Context(), left, ibverbx.Config{}) })
	qpB, errB = b.Connect(t.Context(), right, ibverbx.Config{})
	both.Wait()
	return qpA, qpB, errA, errB
}

// open opens NICs without a word.
func open(t *testing.T, cfg nics.Config) *nics.Host {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	h, err := nics.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("something is left open: %v", err)
		}
	})
	return h
}

// Two ends of hosts without an RDMA NIC connect over UDP sockets at the addresses over which they
// meet, and move bytes. A listening end serves all who meet it there with one NIC.
func TestConnectOverSockets(t *testing.T) {
	cfg, _ := hostWith(t, rdmacore.ErrNoDevice, nil)
	a, b := open(t, cfg), open(t, nics.Config{Provider: nics.RoCE})
	for range 2 {
		qpA, qpB, errA, errB := connect(t, a, b)
		if err := errors.Join(errA, errB); err != nil {
			t.Fatal(err)
		}
		move(t, qpA, qpB)
		if err := errors.Join(qpA.Close(), qpB.Close()); err != nil {
			t.Error(err)
		}
	}
}

// move sends a message from a to b.
func move(t *testing.T, a, b *ibverbx.VirtualQP) {
	t.Helper()
	mr, err := b.Domain().Register(make([]byte, 16), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	defer mr.Close()
	if _, err := b.PostRecv(ibverbx.RecvWR{Local: mr.All()}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline,
		Inline: []byte("hello")}); err != nil {
		t.Fatal(err)
	}
	for _, qp := range []*ibverbx.VirtualQP{b, a} {
		if err := qp.CQ().Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if wc, ok, err := qp.CQ().PollOne(); err != nil || !ok || wc.Err() != nil {
			t.Fatal(wc, ok, err)
		}
	}
	if got := string(mr.Bytes()[:5]); got != "hello" {
		t.Errorf("got %q", got)
	}
}

// An end with more NICs than its peer takes as many as that has.
func TestAgreeOnTheNumber(t *testing.T) {
	wide := open(t, nics.Config{Provider: nics.RoCE, Devices: "127.0.0.22,127.0.0.23,127.0.0.24"})
	narrow := open(t, nics.Config{Provider: nics.RoCE, Devices: "127.0.0.25,127.0.0.26"})
	qpA, qpB, errA, errB := connect(t, wide, narrow)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if got := len(qpA.Domain().Devices()); got != 2 {
		t.Errorf("%d NICs, want 2", got)
	}
	move(t, qpA, qpB)
	if err := errors.Join(qpA.Close(), qpB.Close()); err != nil {
		t.Error(err)
	}
}

// Ends whose NICs do not reach each other are told at both ends, before a queue pair is made.
func TestConnectRefusesOtherNICs(t *testing.T) {
	a, b := open(t, nics.Config{Provider: nics.RoCE, Devices: "127.0.0.27"}),
		open(t, nics.Config{Provider: nics.Soft})
	_, _, errA, errB := connect(t, a, b)
	for _, err := range []error{errA, errB} {
		if err == nil || !strings.Contains(err.Error(),
			"the NICs of the two ends do not reach each other: ") ||
			!strings.Contains(err.Error(), "soft (inside one process)") ||
			!strings.Contains(err.Error(), "roce (RoCEv2") ||
			!strings.HasPrefix(err.Error(), "nics: agree with 127.0.0.1:") {
			t.Errorf("error %v", err)
		}
	}
	if !errors.Is(errA, verbs.ErrUnreachable) && !errors.Is(errB, verbs.ErrUnreachable) {
		t.Errorf("errors %v, %v", errA, errB)
	}
	// Software NICs of two fabrics: what only connecting can tell.
	_, _, errA, errB = connect(t, b, open(t, nics.Config{Provider: nics.Soft}))
	if !errors.Is(errors.Join(errA, errB), verbs.ErrUnreachable) {
		t.Errorf("errors %v, %v", errA, errB)
	}
	qpA, qpB, errA, errB := connect(t, b, b) // one fabric
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(qpA.Close(), qpB.Close()); err != nil {
		t.Error(err)
	}
}

// A peer that sends anything in place of its offer is refused.
func TestAgreeWithStrangers(t *testing.T) {
	h := open(t, nics.Config{Provider: nics.Soft})
	for _, body := range []any{nil, 7, nicoffer.Offer{}, map[string]any{"nics": []int{1}},
		nicoffer.Offer{NICs: make([]string, 1000)}} {
		a, b := met(t)
		var other sync.WaitGroup
		other.Go(func() {
			_, _ = b.AllGather(t.Context(), []byte("{}"))
			_ = b.Send(t.Context(), "nics", body)
			<-b.Done()
			var said *rendezvous.PeerError
			if !errors.As(b.Err(), &said) {
				t.Errorf("%v: the peer is told %v", body, b.Err())
			}
			_ = b.Close()
		})
		if _, err := h.Agree(t.Context(), a); !errors.Is(err, rendezvous.ErrProtocol) {
			t.Errorf("%v: error %v", body, err)
		}
		other.Wait()
	}
	a, b := met(t)
	_ = b.Close()
	if _, err := h.Agree(t.Context(), a); !errors.Is(err, rendezvous.ErrGone) {
		t.Errorf("error %v", err)
	}
	if err := a.Send(t.Context(), "more", nil); !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("the conversation goes on: %v", err)
	}
	a, b = met(t)
	go func() { _ = b.Barrier(t.Context()); _ = b.Close() }()
	if _, err := h.Connect(t.Context(), nil, ibverbx.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("nobody: error %v", err)
	}
	if _, err := h.Agree(t.Context(), a); !errors.Is(err, rendezvous.ErrProtocol) ||
		!strings.Contains(err.Error(), `"barrier" came in place of "value"`) {
		t.Errorf("error %v", err)
	}
}

// NICs without named addresses are those that the host can have; those of a connection are at its
// address. Over what is no TCP connection nothing can be made.
func TestDevices(t *testing.T) {
	t.Parallel() // most of the time it waits
	h := open(t, nics.Config{Provider: nics.RoCE})
	if h.String() != "a roce NIC at the address over which a peer is met" {
		t.Error(h)
	}
	all, err := h.Devices()
	if err != nil || len(all) == 0 {
		t.Errorf("%d NICs, %v", len(all), err)
	}
	a, b := met(t)
	at, err := h.Reaching(a)
	if err != nil || len(at) != 1 || at[0].(*roce.Device).Addr().Addr().String() != "127.0.0.1" {
		t.Errorf("NICs %v, %v", at, err)
	}
	left, right := net.Pipe()
	defer left.Close()
	defer right.Close()
	if _, err := h.Reaching(left); err == nil ||
		!strings.Contains(err.Error(), "is none of TCP: name the NICs") {
		t.Errorf("error %v", err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Reaching(a); !errors.Is(err, verbs.ErrClosed) || err.Error() != "nics: closed" {
		t.Errorf("error %v", err)
	}
	if err := b.Close(); err != nil { // or the failed agreement waits for it
		t.Fatal(err)
	}
	if _, err := h.Agree(t.Context(), a); !errors.Is(err, verbs.ErrClosed) ||
		strings.Count(err.Error(), "nics: ") != 1 {
		t.Errorf("error %v", err)
	}
}

// Those of a provider that was named are the same for everybody who asks. Without a Logger the
// program's own is used.
func TestDevicesOfANamedProvider(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var said bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})))
	h, err := nics.Open(nics.Config{Provider: nics.Soft, Soft: soft.Config{Devices: 3}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	a, _ := met(t)
	all, err := h.Devices()
	reaching, failed := h.Reaching(a)
	if err != nil || failed != nil || len(all) != 3 || !slices.Equal(all, reaching) ||
		!slices.Equal(all, must(h.Provider().Devices())) {
		t.Errorf("%v, %v, %v, %v", all, reaching, err, failed)
	}
	if !strings.Contains(said.String(), `provider=soft nics="soft0, soft1, soft2"`) {
		t.Errorf("logged %s", said.String())
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// A context that ends ends the waiting for a peer.
func TestAgreeEnds(t *testing.T) {
	t.Parallel() // most of the time it waits
	a, _ := met(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := open(t, nics.Config{Provider: nics.Soft}).Agree(ctx, a); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Software NICs are chosen as real ones are.
func TestSoftDevices(t *testing.T) {
	open := func(filter string) (*nics.Host, error) {
		return nics.Open(nics.Config{Provider: nics.Soft, Devices: filter, Soft: soft.Config{Devices: 3}})
	}
	h, err := open("^soft1")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	all, err := h.Devices()
	usable, err2 := h.Reaching(nil)
	if err != nil || err2 != nil || h.String() != "soft0, soft2" || len(all) != 2 || len(usable) != 2 {
		t.Errorf("%v: %v, %v, %v, %v", h, all, err, usable, err2)
	}
	if _, ok := h.Provider().(*soft.Fabric); !ok {
		t.Errorf("the provider is a %T", h.Provider())
	}
	for filter, want := range map[string]string{
		"soft9":   "nics: select devices: invalid argument: no device soft9 (have soft0, soft1, soft2)",
		"soft0:2": "nics: invalid argument: Devices: soft0:2: soft0 has port 1 only",
	} {
		if _, err := open(filter); !errors.Is(err, verbs.ErrInvalid) || err.Error() != want {
			t.Errorf("%s: %v", filter, err)
		}
	}
}

// FuzzChoose chooses among software NICs: what is chosen is there, each once, and nothing has a
// second port.
func FuzzChoose(f *testing.F) {
	for _, s := range []string{"", "soft0", "soft1:1,soft0", "soft0:2", "^soft1", "soft*", "mlx5_0", ",",
		"^"} {
		f.Add(s)
	}
	fabric, err := soft.New(soft.Config{Devices: 3})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { fabric.Close() })
	devices, err := fabric.Devices()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		chosen, err := nics.Choose(devices, text)
		if err != nil {
			if !errors.Is(err, verbs.ErrInvalid) || chosen != nil {
				t.Fatalf("%q: %v, %v", text, chosen, err)
			}
			return
		}
		for i, d := range chosen {
			if slices.Contains(chosen[:i], d) || !slices.Contains(devices, d) {
				t.Fatalf("%q chooses %v", text, chosen)
			}
		}
		if again, err := nics.Choose(devices, text); err != nil || !reflect.DeepEqual(again, chosen) {
			t.Fatalf("%q chooses %v, and then %v, %v", text, chosen, again, err)
		}
	})
}
