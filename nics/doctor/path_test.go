package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// quiet is NICs of a provider, without log lines.
func quiet(provider string, sources ...nics.Source) nics.Config {
	return nics.Config{Provider: provider, Sources: sources, Logger: slog.New(slog.DiscardHandler)}
}

// serve runs Serve over NICs until the test ends, and returns its address and what it has said.
func serve(t *testing.T, cfg nics.Config) (addr string, said func() string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	at, over := make(chan string, 1), make(chan error, 1)
	var mu sync.Mutex
	var lines strings.Builder
	go func() {
		over <- Serve(ctx, "127.0.0.1:0", cfg, func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			if lines.Len() == 0 {
				at <- fmt.Sprint(args[0])
			}
			fmt.Fprintf(&lines, format, args...)
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	select {
	case addr = <-at:
	case err := <-over:
		over <- nil
		t.Fatal(err)
	}
	return addr, func() string {
		mu.Lock()
		defer mu.Unlock()
		return lines.String()
	}
}

// Two hosts that reach each other learn how fast, one visit after the other.
func TestVisit(t *testing.T) {
	addr, said := serve(t, quiet(nics.RoCE))
	for range 2 {
		var r Report
		r.Visit(t.Context(), addr, quiet(nics.RoCE))
		if len(r.Findings) != 1 {
			t.Fatalf("%+v\n%s", r.Findings, said())
		}
		f := r.Findings[0]
		if f.Check != "path" || f.Status == Fail ||
			!strings.Contains(f.Seen, "written each way and verified, MTU 4096") {
			t.Errorf("%+v\n%s", f, said())
		}
	}
}

// Where nobody listens, or somebody else does, and where the ends have no NICs in common, the
// finding says so.
func TestVisitInVain(t *testing.T) {
	l, err := rendezvous.Listen(t.Context(), "127.0.0.1:0", rendezvous.Config{Protocol: "other/1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	addr, _ := serve(t, quiet(nics.RoCE))
	for name, c := range map[string]struct {
		addr, provider, seen string
	}{
		"nobody":             {"127.0.0.1:1", nics.RoCE, "refused"},
		"another program":    {l.Addr().String(), nics.RoCE, "other/1"},
		"no NICs in common":  {addr, nics.Soft, "soft"},
		"no such provider":   {addr, "none", "none"},
		"no address at all":  {"", nics.RoCE, "address"},
		"control characters": {"127.0.0.1:1\x1b[2J", nics.RoCE, "127.0.0.1"},
	} {
		var r Report
		r.Visit(t.Context(), c.addr, quiet(c.provider))
		if len(r.Findings) != 1 || r.Findings[0].Status != Fail ||
			!strings.Contains(r.Findings[0].Seen, c.seen) ||
			strings.ContainsAny(fmt.Sprint(r.Findings), "\x1b\n") {
			t.Errorf("%s: %+v", name, r.Findings)
		}
	}
}

// What to do fits what went wrong.
func TestExplain(t *testing.T) {
	for want, err := range map[string]error{
		"the same --provider": fmt.Errorf("agree: %w", verbs.ErrUnreachable),
		"the name":            fmt.Errorf("dial: %w", &net.DNSError{Err: "no such host", Name: "h"}),
		"there first":         fmt.Errorf("dial: %w: or set Config.Retry", syscall.ECONNREFUSED),
		"ibverbx devices":     &nics.ConfigError{},
		"firewalls":           rendezvous.ErrTimeout,
	} {
		f := Finding{Seen: err.Error()}
		if f.explain(err); !strings.Contains(f.Mend, want) || strings.Contains(f.Seen, "Config.") {
			t.Errorf("%T: %+v", err, f)
		}
	}
}

// fabric is NICs of one fabric, which two hosts in this process share: one each.
func fabric(t *testing.T, nic func(i int, d *soft.Device) verbs.Device) [2]nics.Config {
	t.Helper()
	f, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	var cfgs [2]nics.Config
	for i := range cfgs {
		open := func(nics.Config) (verbs.Provider, error) { return &one{f, nic(i, f.Device(i))}, nil }
		cfgs[i] = quiet("shared", nics.Source{Name: "shared", Open: open})
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return cfgs
}

// one is a provider with one NIC of a fabric.
type one struct {
	fabric *soft.Fabric
	nic    verbs.Device
}

func (*one) Name() string                       { return "shared" }
func (*one) Close() error                       { return nil }
func (p *one) Devices() ([]verbs.Device, error) { return []verbs.Device{p.nic}, nil }

// forgetful is a NIC that forgets the memory that is registered with it, the first so many times:
// whoever writes there gets an error.
type forgetful struct {
	verbs.Device
	times *int
}

type forgetfulPD struct {
	verbs.PD
	times *int
}

type forgottenMR struct {
	addr, length uint64
	lkey, rkey   uint32
}

func (d forgetful) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return forgetfulPD{pd, d.times}, err
}

func (p forgetfulPD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	mr, err := p.PD.RegisterMR(buf, access)
	if *p.times--; err != nil || *p.times < 0 {
		return mr, err
	}
	return forgottenMR{mr.Addr(), mr.Len(), mr.LKey(), mr.RKey()}, mr.Close()
}

func (m forgottenMR) Addr() uint64 { return m.addr }
func (m forgottenMR) Len() uint64  { return m.length }
func (m forgottenMR) LKey() uint32 { return m.lkey }
func (m forgottenMR) RKey() uint32 { return m.rkey }
func (forgottenMR) Close() error   { return nil }

// A path over which a write does not arrive is a finding, and the ends stay together. If one with
// short packets does, that is said.
func TestVisitOverABadPath(t *testing.T) {
	for times, seen := range map[int]string{1: "; packets of 1024 bytes pass", 2: "REM_ACCESS_ERR"} {
		cfgs := fabric(t, func(i int, d *soft.Device) verbs.Device {
			if i == 0 {
				return forgetful{d, &times}
			}
			return d
		})
		addr, said := serve(t, cfgs[0])
		var r Report
		r.Visit(t.Context(), addr, cfgs[1])
		if len(r.Findings) != 1 || r.Findings[0].Status != Fail ||
			!strings.Contains(r.Findings[0].Seen, "a write does not arrive: ") ||
			!strings.Contains(r.Findings[0].Seen, seen) {
			t.Errorf("%+v\n%s", r.Findings, said())
		}
	}
}

// What was found is put into words, and says what the counters mean.
func TestPathFinding(t *testing.T) {
	const gig = 125_000_000 // bytes a second of 1 Gbit/s
	repairs := func(name string) map[string]uint64 { return map[string]uint64{name: 4102} }
	for name, c := range map[string]struct {
		speed   uint64
		out     float64
		repairs map[string]uint64
		err     string
		status  Status
		seen    string
	}{
		"fast":      {speed: 25e9, out: 22 * gig, status: OK, seen: "2.8 GB/s out, 2.8 GB/s in, of 3.1"},
		"unknown":   {out: gig, status: OK, seen: "0.1 GB/s in"},
		"slow":      {speed: 25e9, out: 2 * gig, status: Warn, seen: "of 3.1"},
		"congested": {25e9, 2 * gig, repairs("np_cnp_sent"), "", Warn, "4102: congestion, not a fault"},
		"lossy":     {25e9, 2 * gig, repairs("out_of_sequence"), "", Warn, "4102: packets are lost"},
		"repaired":  {25e9, 20 * gig, repairs("out_of_sequence"), "", OK, "meanwhile: out_of_sequence 4102"},
		"dead":      {25e9, 0, repairs("timeouts"), "no answer", Fail, "no answer; counted meanwhile: time"},
	} {
		r := &pathResult{own: half{Device: "mlx5_0", Speed: c.speed},
			peer: half{Device: "mlx5_1", Speed: 2 * c.speed}, mtu: 4096, out: c.out, in: c.out, err: c.err,
			repairs: c.repairs}
		f := (&pathCheck{}).finding(r)
		if f.Status != c.status || !strings.Contains(f.Seen, c.seen) || f.On != "mlx5_0 to mlx5_1" ||
			(f.Mend == "") != (f.Status == OK) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// soft1 is a software NIC.
func soft1(t *testing.T) verbs.Device {
	t.Helper()
	f, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return f.Device(0)
}

// FuzzPeer is visited by a doctor, or visits one, and connects as it should; then it sends lines of
// any text. The doctor ends, and what it says is bounded and can be shown.
func FuzzPeer(f *testing.F) {
	memory := func(n int) string {
		return fmt.Sprintf(`{"device":"m","memory":{"addr":"4096","length":"%d","rkeys":{"0":7,"1":7}}}`, n)
	}
	f.Add(true, memory(pathMemory)+"\n{}\n"+`{"err":"no"}`+"\n{}\n{}\n"+`{"np_cnp_sent":4102}`)
	f.Add(false, memory(pathMemory)+"\n"+`{"sum":7,"bytes_per_second":-1e308}`+"\n{}\n{}\n{}\n"+
		`{"a\u001b[2J":1}`)
	f.Add(false, memory(1)+"\n[]\n")
	f.Add(true, `{"device":"`+strings.Repeat("\\u001b", 300)+`","memory":null}`+"\n{}\n7\n")
	f.Fuzz(func(t *testing.T, first bool, text string) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute) // the patience of the test
		defer stop()
		fabric, err := soft.New(soft.Config{Devices: 2})
		if err != nil {
			t.Fatal(err)
		}
		here, there := net.Pipe()
		over := make(chan error, 1)
		go func() { over <- stranger(ctx, there, fabric.Device(1), text) }()
		c, err := rendezvous.Start(ctx, here, rendezvous.Config{Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		p := &pathCheck{c: c, device: fabric.Device(0), first: first}
		result, err := p.run(ctx, 0)
		var r Report
		if err == nil {
			r.add(p.finding(result))
		} else {
			r.add(Finding{Seen: err.Error()})
		}
		if said := fmt.Sprint(r.Findings); len(said) > 4000 || strings.ContainsAny(said, "\x1b\n\x00") {
			t.Errorf("%q", said)
		}
		_ = c.Close() // the peer may have closed it
		if err := errors.Join(<-over, ctx.Err(), fabric.Close()); err != nil {
			t.Error(err)
		}
	})
}

// stranger connects and sends lines in place of what the protocol wants, as far as they are JSON.
func stranger(ctx context.Context, nc net.Conn, device verbs.Device, text string) error {
	c, err := rendezvous.Start(ctx, nc, rendezvous.Config{Protocol: protocol})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // the doctor may have closed it
	qp, err := ibverbx.Open([]verbs.Device{device}, ibverbx.Config{})
	if err != nil {
		return err
	}
	if err := rendezvous.Connect(ctx, c, qp); err != nil {
		return errors.Join(err, qp.Close())
	}
	for i, l := range strings.Split(text, "\n") {
		if !json.Valid([]byte(l)) || i > 20 {
			continue
		}
		if _, err := rendezvous.Exchange(ctx, c, json.RawMessage(l)); err != nil {
			break // the doctor has seen enough
		}
	}
	return qp.Close()
}

// A peer whose data is not what it says is found.
func TestWrongData(t *testing.T) {
	l, err := rendezvous.Listen(t.Context(), "127.0.0.1:0", rendezvous.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	there, err := rendezvous.Dial(t.Context(), l.Addr().String(), rendezvous.Config{})
	if err != nil {
		t.Fatal(err)
	}
	here, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	qp, err := ibverbx.Open([]verbs.Device{soft1(t)}, ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	mr, err := qp.Domain().Register(make([]byte, pathMemory), verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(qp.Close(), mr.Close()); err != nil {
			t.Error(err)
		}
	}()
	peer := make(chan error, 1)
	go func() {
		_, err := rendezvous.Exchange(t.Context(), there, turn{Sum: 1, Speed: 1e9})
		verdict, again := rendezvous.Exchange(t.Context(), there, turn{})
		if verdict.Err == "" {
			again = errors.New("the lie was believed")
		}
		peer <- errors.Join(err, again)
	}()
	r := &pathResult{}
	p := &pathCheck{c: here}
	err = p.turn(t.Context(), qp, mr, false, r)
	if err != nil || !strings.Contains(r.err, "not what was sent") {
		t.Errorf("%v, %q", err, r.err)
	}
	if err := errors.Join(<-peer, there.Close(), here.Close()); err != nil {
		t.Error(err)
	}
}
