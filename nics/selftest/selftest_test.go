package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/soft"
)

// brief is a self-test of a moment.
func brief(cfg nics.Config) Config { return Config{NICs: cfg, Probe: 2 * time.Millisecond} }

func fourSoft() nics.Config {
	return nics.Config{Provider: nics.Soft, Soft: soft.Config{Devices: 4}}
}

// TestMain runs the conformance suite where a test has asked for it.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		_, err := Run(context.Background(), "", brief(fourSoft()))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// want says of each check of a report which result it must have: all others pass.
func want(t *testing.T, r *Report, least int, unknown ...string) {
	t.Helper()
	var page, doc bytes.Buffer
	if err := errors.Join(r.WriteText(&page), r.WriteJSON(&doc)); err != nil {
		t.Fatal(err)
	}
	if len(r.Checks) < least {
		t.Errorf("%d checks", len(r.Checks))
	}
	for _, c := range r.Checks {
		isUnknown := slices.ContainsFunc(unknown,
			func(name string) bool { return strings.HasPrefix(c.Name, name) })
		if c.Result != Pass && (!isUnknown || c.Result != Unknown) || c.Seen == "" {
			t.Errorf("%+v", c)
		}
	}
	var read Report
	if err := json.Unmarshal(doc.Bytes(), &read); err != nil || len(read.Checks) != len(r.Checks) {
		t.Errorf("%v: %s", err, &doc)
	}
	if lines := strings.Count(page.String(), "\n"); lines > 60 ||
		!strings.Contains(page.String(), "firmware") {
		t.Errorf("%d lines are no page:\n%s", lines, &page)
	}
}

// chance are checks that see nothing if no moment in the middle of traffic was hit.
var chance = []string{"A3", "A7", "A8"}

// Software NICs pass, those of this process and those of UDP sockets, and the suite runs in a
// process of its own.
func TestOneHost(t *testing.T) {
	cfg := brief(fourSoft())
	cfg.Conformance = !testing.Short()
	r, err := Run(t.Context(), "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	want(t, r, 20, append(chance, "conformance")...)
	suite := r.Checks[len(r.Checks)-1]
	if !testing.Short() && (suite.Result != Pass || !strings.Contains(suite.Seen, "subtests passed")) {
		t.Errorf("%+v", suite)
	}
	if len(r.Here) != 2 || len(r.There) != 2 || r.Here[0].Name == r.There[0].Name {
		t.Errorf("here %+v, there %+v", r.Here, r.There)
	}
}

// A test that is interrupted says nothing bad of the NICs.
func TestInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	cfg := brief(fourSoft())
	cfg.pause = func(time.Duration) { interrupt() } // in the middle of a probe
	r, err := Run(ctx, "", cfg)
	if err == nil || r == nil || r.Failed() {
		t.Fatalf("%v; %+v", err, r)
	}
	if last := r.Checks[len(r.Checks)-2]; last.Result != Unknown || r.Checks[0].Result != Pass {
		t.Errorf("%+v", r.Checks)
	}
}

// Two ends that meet over a network take the same steps.
func TestTwoEnds(t *testing.T) {
	cfg := brief(nics.Config{Provider: nics.RoCE, RoCE: roce.Config{}})
	cfg.NICs.Devices = "127.0.0.1"
	ctx, stop := context.WithCancel(t.Context())
	at, over := make(chan string, 1), make(chan error, 1)
	var once sync.Once
	go func() {
		over <- Serve(ctx, "127.0.0.1:0", cfg, func(_ string, args ...any) {
			once.Do(func() { at <- fmt.Sprint(args[0]) })
		})
	}()
	select {
	case addr := <-at:
		r, err := Run(t.Context(), addr, cfg)
		if err != nil {
			t.Fatal(err)
		}
		want(t, r, 15, append(chance, "conformance")...)
	case err := <-over:
		t.Fatal(err)
	}
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// forger is NICs that write into all memory that was registered, when they are told to.
type forger struct {
	mu   sync.Mutex
	bufs [][]byte
}

func (f *forger) strike(time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.bufs {
		b[len(b)-1]++
	}
}

type forgedProvider struct {
	*soft.Fabric
	f *forger
}

type forgedDevice struct {
	verbs.Device
	f *forger
}

type forgedPD struct {
	verbs.PD
	f *forger
}

func (p forgedProvider) Devices() (list []verbs.Device, err error) {
	return []verbs.Device{forgedDevice{p.Device(0), p.f}, forgedDevice{p.Device(1), p.f}}, nil
}

func (d forgedDevice) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return forgedPD{pd, d.f}, err
}

func (p forgedPD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	p.f.bufs = append(p.f.bufs, buf)
	return p.PD.RegisterMR(buf, access)
}

// Memory that changes behind the flush, or behind the destruction of a queue pair, is noticed by
// each of the probes.
func TestLatePlacement(t *testing.T) {
	f := &forger{}
	cfg := brief(nics.Config{Provider: "forged", Sources: []nics.Source{{Name: "forged",
		Open: func(nics.Config) (verbs.Provider, error) {
			fabric, err := soft.New(soft.Config{Devices: 2})
			return forgedProvider{fabric, f}, err
		}}}})
	cfg.pause = f.strike
	r, err := Run(t.Context(), "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, c := range r.Checks {
		late := slices.ContainsFunc(chance,
			func(name string) bool { return strings.HasPrefix(c.Name, name) })
		if late && (c.Result != Fail || !strings.Contains(c.Seen, "memory has changed afterwards")) ||
			!late && c.Result == Fail {
			t.Errorf("%+v", c)
		}
		if c.Result == Fail {
			failed++
		}
	}
	if failed != 6 || !r.Failed() {
		t.Errorf("%d have failed", failed)
	}
}

// pipe runs a function at both ends of a conversation.
func pipe(t *testing.T, run func(e *end) error) {
	t.Helper()
	near, far := net.Pipe()
	over := make(chan error, 2)
	for i, nc := range []net.Conn{near, far} {
		go func() {
			c, err := rendezvous.Start(t.Context(), nc, rendezvous.Config{Protocol: protocol})
			if err == nil {
				err = run(&end{c: c, first: i == 0, report: newReport(), pause: time.Sleep})
			}
			over <- err
		}()
	}
	if err := errors.Join(<-over, <-over); err != nil {
		t.Error(err)
	}
	_, _ = near.Close(), far.Close()
}

// A message that was acknowledged and never received is a broken promise; that of the other end,
// and an error that only one end sees, are in both reports.
func TestVerdicts(t *testing.T) {
	pipe(t, func(e *end) error {
		lost := func(_ context.Context, acts bool) (tally, error) {
			if acts {
				return tally{Hit: 1, Received: 4}, nil
			}
			return tally{Hit: 1, Acked: 5}, nil
		}
		e.step(t.Context(), "lost", func(ctx context.Context) (seen, error) {
			return e.rounds(ctx, lost, e.first)
		})
		e.step(t.Context(), "broken", func(ctx context.Context) (seen, error) {
			if e.first {
				return seen{}, e.sync(ctx, errors.New("no\x1b memory"))
			}
			return seen{Pass, "all is well"}, e.sync(ctx, nil)
		})
		e.step(t.Context(), "idle", func(ctx context.Context) (seen, error) {
			return e.rounds(ctx, func(context.Context, bool) (tally, error) { return tally{}, nil }, e.first)
		})
		for i, text := range []string{"5 messages were acknowledged, 4 have been received", "no  memory",
			"in none of"} {
			c := e.report.Checks[i]
			if c.Result != [...]Result{Fail, Fail, Unknown}[i] || !strings.Contains(c.Seen, text) {
				return fmt.Errorf("first %v: %+v", e.first, c)
			}
		}
		return nil
	})
	if late, err := check(make([]byte, 16), 1); !late || err == nil {
		t.Error(late, err)
	}
	for text, want := range map[string]Result{
		"    --- PASS: conformance/ops (0.00s)\n":                                              Pass,
		"    --- PASS: conformance/ops (0.00s)\n        --- FAIL: conformance/ops/x (0.00s)\n": Fail,
		"panic: no\n": Unknown,
	} {
		if got, said := verdict(strings.NewReader(text)); got != want {
			t.Errorf("%q: %v, %s", text, got, said)
		}
	}
}

// FuzzPeer meets an end that sends lines of any text. The self-test ends, and its report can be
// shown.
func FuzzPeer(f *testing.F) {
	f.Add(
		`{"nics":[{"name":"\u001b[2J","ports":[{"state":"\n"}]}],"probe":-1}`+"\n"+
			`{"result":"odd","text":"\n"}`+
			"\n\"no\"\n",
		true,
	)
	f.Add(`{"probe":9223372036854775807}`+"\n{}\n\"\"\n{}", false)
	f.Fuzz(func(t *testing.T, text string, first bool) {
		fabric, err := soft.New(soft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		over := make(chan struct{})
		go func() {
			defer close(over)
			c, err := rendezvous.Start(t.Context(), far, rendezvous.Config{Protocol: protocol})
			for _, l := range strings.Split(text, "\n") {
				if err == nil && json.Valid([]byte(l)) {
					_, err = rendezvous.Exchange(t.Context(), c, json.RawMessage(l))
				}
			}
			_ = far.Close()
		}()
		c, err := rendezvous.Start(t.Context(), near, rendezvous.Config{Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		r, err := examine(t.Context(), c, []verbs.Device{fabric.Device(0)}, brief(nics.Config{}), first)
		_ = near.Close()
		<-over
		var page bytes.Buffer
		if err := errors.Join(r.WriteText(&page), fabric.Close()); err != nil ||
			strings.ContainsAny(page.String(), "\x1b\x00\r") {
			t.Errorf("%v: %q", err, &page)
		}
		if err == nil {
			t.Error("the stranger has passed")
		}
	})
}
