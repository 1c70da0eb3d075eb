package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/nicoffer"
	"ibverbx/internal/tcptest"
	"ibverbx/internal/units"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// fabric is software NICs that two ends share as two processes share a network.
func fabric(t *testing.T, nics int) (*soft.Fabric, []verbs.Device) {
	t.Helper()
	return fabricOf(t, soft.Config{Devices: nics})
}

// fabricOf is fabric with NICs of another kind.
func fabricOf(t *testing.T, cfg soft.Config) (*soft.Fabric, []verbs.Device) {
	t.Helper()
	f, err := soft.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := f.Devices()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("something was left open: %v", err)
		}
	})
	return f, devices
}

// start begins a conversation in the version of this package.
func start(t *testing.T, nc net.Conn, timeout time.Duration) *rendezvous.Conn {
	t.Helper()
	conn, err := rendezvous.Start(t.Context(), nc, rendezvous.Config{Protocol: Protocol,
		Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// outcome is how a run ended at one end.
type outcome struct {
	report *Report
	err    error
}

const apartTimeout = 10 * time.Second

// follow runs the following end over nc until it is over.
func follow(ctx context.Context, nc net.Conn, timeout time.Duration, devices []verbs.Device) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		conn, err := rendezvous.Start(ctx, nc, rendezvous.Config{Protocol: Protocol, Timeout: timeout})
		if err != nil {
			done <- outcome{nil, err}
			return
		}
		report, err := Follow(ctx, &Half{Conn: conn, Provider: "there", Devices: devices, Version: "v"},
			observer{})
		done <- outcome{report, err}
	}()
	return done
}

// apart measures between two ends that have nothing in common but a fabric and a TCP connection.
func apart(t *testing.T, p *Params, here, there []verbs.Device) (a, b outcome) {
	t.Helper()
	ncA, ncB := tcptest.Pair(t)
	following := follow(t.Context(), ncB, apartTimeout, there)
	a.report, a.err = Lead(t.Context(), p, &Half{Conn: start(t, ncA, apartTimeout), Provider: "here",
		Devices: here, Version: "v"}, observer{})
	return a, <-following
}

// TestApart measures every operation of every layer that can be between two ends, each of which
// knows only its own, in every way.
func TestApart(t *testing.T) {
	_, nics := fabric(t, 4)
	for _, s := range layers.Shapes() {
		waits := []Wait{Adaptive, Events}
		switch {
		case s.Layer == layers.SHMEM:
			continue
		case s.Layer != QP:
			waits = []Wait{Adaptive}
		case s.Op == Send: // two ends of one process that never pause share its cores badly
			waits = append(waits, Poll)
		}
		for _, wait := range waits {
			for _, word := range modes(s) {
				if wait == Poll && word != "bw" {
					continue // it polls alike, and takes long
				}
				t.Run(fmt.Sprintf("%s/%s/%s/%s", s.Layer, s.Op, wait, word), func(t *testing.T) {
					p := layerParams(s.Layer, s.Op, Bandwidth, func(p *Params) {
						p.Wait, p.NICs = wait, 0
						how(p, word)
					})
					a, b := apart(t, p, nics[:2], nics[2:])
					if a.err != nil || b.err != nil {
						t.Fatalf("end a: %v; end b: %v", a.err, b.err)
					}
					for end, o := range map[string]*outcome{"a": &a, "b": &b} {
						checkApart(t, end, a.report.Params, o.report)
					}
				})
			}
		}
	}
}

// checkApart looks whether the report of an end is what was asked for.
func checkApart(t *testing.T, end string, p *Params, r *Report) {
	t.Helper()
	if !r.OK || len(r.Results) != 3*len(p.Sizes) || r.Params.NICs != 2 || r.Params.Op != p.Op ||
		r.Peer == nil || len(r.Peer.NICs) != 2 {
		t.Fatalf("end %s: report %+v", end, r)
	}
	for i := range r.Results {
		checkResult(t, p, &r.Results[i])
		if rails := r.Results[i].Stats.B.Rails; len(rails) == 0 && !p.Layered() {
			t.Errorf("end %s: nothing is known of end b", end)
		}
	}
}

// TestApartNICs shows how many NICs are used when the ends have different numbers of them.
func TestApartNICs(t *testing.T) {
	_, nics := fabric(t, 4)
	for _, tt := range []struct {
		asked, here, there int
		want               int
		err                string
	}{
		{0, 1, 3, 1, ""},
		{0, 3, 1, 1, ""},
		{1, 2, 2, 1, ""},
		{2, 3, 1, 0, "--nics 2: the listening end has 1"},
		{2, 1, 3, 0, "--nics 2: this end has 1"},
	} {
		p := params(func(p *Params) {
			p.NICs, p.Sizes, p.Schemes = tt.asked, []units.Size{64},
				[]Scheme{DQPLB}
		})
		a, b := apart(t, p, nics[:tt.here], nics[4-tt.there:])
		if tt.err != "" {
			var usage *UsageError
			var said *rendezvous.PeerError
			if !errors.As(a.err, &usage) || !strings.Contains(a.err.Error(), tt.err) || a.report != nil ||
				!errors.As(b.err, &said) {
				t.Errorf("%+v: end a: %v; end b: %v", tt, a.err, b.err)
			}
			continue
		}
		if a.err != nil || b.err != nil || a.report.Params.NICs != tt.want ||
			b.report.Params.NICs != tt.want {
			t.Errorf("%+v: end a: %v; end b: %v", tt, a.err, b.err)
		}
	}
}

// TestApartFault strikes a NIC in the middle: both ends must say what happened.
func TestApartFault(t *testing.T) {
	for _, tt := range []struct {
		op   Op
		kind soft.FaultKind
		nic  int
		a, b string
	}{
		{Write, soft.FailSend, 0, "RETRY_EXC_ERR", "peer: end a: virtual qp"},
		{Send, soft.FailRecv, 2, "", "end b: virtual qp"},
	} {
		f, nics := fabric(t, 4)
		p := params(func(p *Params) { p.Op, p.NICs, p.Schemes = tt.op, 2, []Scheme{DQPLB} })
		f.Inject(soft.Fault{Kind: tt.kind, Device: f.Device(tt.nic), Count: 1, Skip: 20})
		a, b := apart(t, p, nics[:2], nics[2:])
		if a.err == nil || b.err == nil || !strings.Contains(a.err.Error(), tt.a) ||
			!strings.Contains(b.err.Error(), tt.b) {
			t.Errorf("%s: end a: %v\nend b: %v", tt.op, a.err, b.err)
		}
	}
}

// offer is one of NICs of which only the names are known.
func offer(names ...string) nicoffer.Offer { return nicoffer.Offer{NICs: names} }

// TestReaches refuses two ends whose NICs cannot reach each other, in words for the command line.
func TestReaches(t *testing.T) {
	_, devices := fabric(t, 1)
	h := &Half{Provider: "soft", Devices: devices}
	err := h.reaches(&selfBody{Offer: nicoffer.Offer{Provider: "rdmacore", Packets: "InfiniBand"}})
	var unusable *UsageError
	if !errors.As(err, &unusable) || !strings.Contains(err.Error(), "give both ends the same --provider") ||
		!strings.Contains(err.Error(), "rdmacore (InfiniBand)") {
		t.Errorf("error %v", err)
	}
}

// TestBrokeOff says which ends of a run are the client's, after which the next one is served.
func TestBrokeOff(t *testing.T) {
	said := &rendezvous.PeerError{Text: "enough"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{fmt.Errorf("dqplb, 64 B: %w", rendezvous.ErrGone), true},
		{errors.Join(ibverbx.ErrFailed, rendezvous.ErrGone), true}, // requests failed since it went
		{rendezvous.ErrTimeout, true},
		{rendezvous.ErrProtocol, true},
		{said, true},
		{fmt.Errorf("%w asks for too much", errTask), true},
		{errPeerInterrupted, true},
		{fmt.Errorf("%w within 1s", ErrStalled), true},
		{ibverbx.ErrFailed, false},
		{errors.New("mlx5_0: no memory"), false},
		{fmt.Errorf("message 5: %w", ErrVerify), false},
		{errors.Join(ErrVerify, said), false}, // wrong data is no matter of who says so first
	} {
		if got := BrokeOff(tt.err); got != tt.want {
			t.Errorf("BrokeOff(%v) = %v", tt.err, got)
		}
	}
}

// TestFollowSilentClient greets and then says nothing: what is to be measured has to come as soon
// as the greeting, and the goodbye does not wait for long.
func TestFollowSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() {
			if _, err := io.WriteString(there, hello); err != nil {
				t.Error(err)
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		conn, err := rendezvous.Start(t.Context(), here, rendezvous.Config{Protocol: Protocol,
			Timeout: 30 * time.Second, Greeting: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = Follow(context.Background(), &Half{Conn: conn}, observer{})
		if took := time.Since(start); took != 7*time.Second || !errors.Is(err, rendezvous.ErrTimeout) ||
			conn.Err() == nil {
			t.Errorf("after %v: %v; the conversation: %v", took, err, conn.Err())
		}
		there.Close()
	})
}

// TestSHMEMApart shows that what is not measured between two processes is refused before they
// connect, and by the listening end.
func TestSHMEMApart(t *testing.T) {
	p := layerParams(layers.SHMEM, layers.Put, Bandwidth)
	err := p.ValidateApart()
	var unusable *UsageError
	if !errors.As(err, &unusable) ||
		!strings.Contains(err.Error(), "use --layer transport or --layer tagged") {
		t.Errorf("got %v", err)
	}
	p.Wait = Adaptive
	task := taskBody{Self: selfBody{Offer: offer("x")}, Params: p}
	if err := task.check(); !errors.As(err, &unusable) {
		t.Errorf("a listening end says %v", err)
	}
}
