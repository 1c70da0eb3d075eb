package tagged_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/errwrap/errwraptest"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// impatient fails in milliseconds when a peer does not answer.
func impatient() tagged.Config {
	qp := ibverbx.Config{QPsPerDevice: 2, Linger: -1, Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: 1}}
	return tagged.Config{MaxUnexpected: 8, Transport: transport.Config{QP: qp}}
}

// deaths are the ways in which the middle one of three workers can fail.
var deaths = map[string]struct {
	strike func(r *rig, e *tagged.Endpoint)
	want   error // what the others see
}{
	"NIC killed": {func(r *rig, e *tagged.Endpoint) { r.fabric.Device(1).Kill() },
		tagged.ErrPeerFailed},
	"endpoint aborted": {func(r *rig, e *tagged.Endpoint) { _ = e.Abort() }, tagged.ErrPeerFailed},
}

// TestPeerDeath: a peer fails while requests of all kinds are under way. Each request that concerns
// it completes with an error, on both ends, posted receives stay, OnError is called once, and
// another peer goes on.
func TestPeerDeath(t *testing.T) {
	for name, death := range deaths {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 3, 1, impatient())
			var reported []error
			a := r.endpoint(0, tagged.EndpointConfig{Name: "victim",
				OnError: func(_ *tagged.Endpoint, err error) { reported = append(reported, err) }})
			b := r.endpoint(1, tagged.EndpointConfig{})
			if err := tagged.Connect(a, b); err != nil {
				t.Fatal(err)
			}
			c, d := r.connect(0, 2)
			w := r.workers[0]

			// Reads stop on both ends: long messages stay half way.
			reads := func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpRDMARead }
			hold := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1, Match: reads})
			defer hold.Remove()
			reqs := map[string]*tagged.Request{}
			reqs["receive of a long message that is being read"] = r.recv(w, 1, tagged.Exact,
				make([]byte, 300000))
			theirs := []*tagged.Request{r.send(b, 1, pattern(300000, 1)),
				r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 300000))}
			reqs["send of a long message that is being read"] = r.send(a, 1, pattern(300000, 1))
			reqs["send of a long message that is announced"] = r.send(a, 2, pattern(300000, 1))
			theirs = append(theirs, r.send(b, 3, pattern(300000, 1)))
			if req := r.send(b, 4, []byte("whole")); req != nil {
				t.Fatal("not eager")
			}
			var err error
			if reqs["synchronous send"], err = a.SendSync(5, []byte("sync")); err != nil {
				t.Fatal(err)
			}
			for i := 0; a.Stats().Queued == 0; i++ {
				reqs[fmt.Sprintf("short send %d", i)] = r.send(a, 6, []byte("beyond the window"))
			}
			reqs["long send behind it"] = r.send(a, 6, pattern(300000, 1))
			free := r.recv(w, 77, tagged.Exact, make([]byte, 8))
			r.until(func() bool { return w.Stats().Unexpected == 2 })
			r.settle()

			death.strike(r, b)
			hold.Remove() // a NIC notices that its peer has failed by what it has under way
			for what, req := range reqs {
				if req == nil {
					continue
				}
				r.done(req)
				if !errors.Is(req.Err(), death.want) {
					t.Errorf("%s: %v", what, req.Err())
				}
			}
			r.done(theirs...)
			for i, req := range theirs {
				if req.Err() == nil {
					t.Errorf("request %d of the end that dies: no error", i)
				}
			}
			r.until(func() bool { return len(reported) != 0 })
			if n := strings.Count(fmt.Sprint(a.Err()), "victim"); n != 1 {
				t.Errorf("the peer's name stands %d times: %v", n, a.Err())
			}
			if len(reported) != 1 || !errors.Is(reported[0], death.want) || !errors.Is(a.Err(), death.want) {
				t.Errorf("reported %v; %v", reported, a.Err())
			}
			if _, err := a.Send(1, nil); !errors.Is(err, death.want) {
				t.Errorf("a send afterwards: %v", err)
			}
			announced := r.recv(w, 3, tagged.Exact, make([]byte, 300000))
			if !announced.Done() || !errors.Is(announced.Err(), death.want) {
				t.Errorf("receive of what was only announced: done %t, %v", announced.Done(), announced.Err())
			}
			whole := make([]byte, 5)
			if req := r.recv(w, 4, tagged.Exact, whole); !req.Done() || req.Err() != nil ||
				string(whole) != "whole" {
				t.Errorf("receive of what had arrived: done %t, %v, %q", req.Done(), req.Err(), whole)
			}

			// The other peer, and the receive that nothing had matched.
			if free.Done() {
				t.Error("a receive that nothing had matched is done")
			}
			r.done(r.send(d, 77, []byte("other")), free)
			long := make([]byte, 300000)
			got := r.recv(r.workers[2], 8, tagged.Exact, long)
			r.done(r.send(c, 8, pattern(300000, 4)), got)
			if free.Err() != nil || got.Err() != nil || !bytes.Equal(long, pattern(300000, 4)) {
				t.Error(free.Err(), got.Err())
			}
			if err := a.Close(background(r)); err != nil {
				t.Errorf("close of an endpoint that has failed: %v", err)
			}
		})
	}
}

// TestPeerDeathInFragments: the peer fails between two fragments of an eager message.
func TestPeerDeathInFragments(t *testing.T) {
	for _, posted := range []bool{true, false} {
		cfg := impatient()
		cfg.EagerLimit, cfg.MaxUnexpected = 1<<20, 4
		cfg.Transport.QP.QPsPerDevice = 1
		r, a, b := pair(t, 1, cfg)
		var d *tagged.Request
		buf := make([]byte, 200000)
		// The first four fragments go; the NIC holds what comes behind them.
		hold := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: r.fabric.Device(0), Skip: 3,
			Count: -1})
		if posted {
			d = r.recv(b.Worker(), 1, tagged.Exact, buf)
		}
		s := r.send(a, 1, pattern(200000, 1))
		if s == nil {
			t.Fatal("the send is done")
		}
		r.settle()
		if !posted {
			d = r.recv(b.Worker(), 1, tagged.Exact, buf)
		}
		r.settle()
		if d.Done() || s.Done() || buf[0] != pattern(1, 1)[0] {
			t.Fatal(d.Done(), s.Done(), buf[0])
		}
		r.fabric.Device(0).Kill()
		if err := a.Abort(); err != nil {
			t.Log(err)
		}
		b.Send(9, nil) // a queue pair notices that its peer has failed by what it sends
		r.done(s, d)
		if !errors.Is(s.Err(), tagged.ErrCanceled) && !errors.Is(s.Err(), tagged.ErrPeerFailed) ||
			!errors.Is(d.Err(), tagged.ErrPeerFailed) {
			t.Errorf("posted %t: %v; %v", posted, s.Err(), d.Err())
		}
		hold.Remove()
	}
}

// TestWorkerClosed: closing a worker completes everything on both ends.
func TestWorkerClosed(t *testing.T) {
	r := newRig(t, 1, 1, impatient())
	other := newSingle(r)
	a, b := r.endpoint(0, tagged.EndpointConfig{}), other.endpoint(tagged.EndpointConfig{})
	if err := tagged.Connect(a, b); err != nil {
		t.Fatal(err)
	}
	long, posted := r.send(a, 1, make([]byte, 100000)), r.recv(r.workers[0], 2, tagged.Any, make([]byte, 8))
	theirs, err := b.Send(1, make([]byte, 100000))
	if err != nil {
		t.Fatal(err)
	}
	w := r.workers[0]
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, req := range []*tagged.Request{long, posted} {
		if !req.Done() || !errors.Is(req.Err(), tagged.ErrClosed) {
			t.Errorf("done %t, %v", req.Done(), req.Err())
		}
	}
	for deadline := time.Now().Add(10 * time.Second); !theirs.Done() && time.Now().Before(deadline); {
		other.w.Progress()
		_, _ = b.Send(3, nil)
	}
	if !errors.Is(theirs.Err(), tagged.ErrPeerFailed) {
		t.Error(theirs.Err())
	}
	if _, err := w.Recv(1, tagged.Any); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	if _, err := w.NewEndpoint(tagged.EndpointConfig{}); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	if err := w.Close(); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	r.workers = nil
	if err := r.domains[0].Close(); err != nil {
		t.Error(err)
	}
}

// single is a worker on a NIC that it shares with a rig.
type single struct {
	t testing.TB
	w *tagged.Worker
}

// newSingle makes a worker on the first NIC of a rig.
func newSingle(r *rig) *single {
	r.t.Helper()
	dom, err := ibverbx.NewDomain(r.fabric.Device(0))
	if err != nil {
		r.t.Fatal(err)
	}
	w, err := tagged.NewWorker(dom, impatient())
	if err != nil {
		r.t.Fatal(err)
	}
	s := &single{t: r.t, w: w}
	r.before = append(r.before, func() {
		if err := errors.Join(w.Close(), dom.Close()); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

func (s *single) endpoint(cfg tagged.EndpointConfig) *tagged.Endpoint {
	s.t.Helper()
	e, err := s.w.NewEndpoint(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// TestOwnNICKilled: when this end's own NIC fails, every request that concerns a peer completes,
// and calls that wait return.
func TestOwnNICKilled(t *testing.T) {
	r, a, b := pair(t, 1, impatient())
	ctx := background(r)
	long := r.send(a, 1, pattern(300000, 1))
	sync, err := a.SendSync(2, []byte("sync"))
	if err != nil {
		t.Fatal(err)
	}
	posted := r.recv(a.Worker(), 9, tagged.Exact, make([]byte, 8))
	waited := make(chan error)
	go func() { waited <- a.SendSyncWait(ctx, 3, []byte("waits")) }()
	r.until(func() bool { return b.Worker().Stats().Unexpected == 3 })
	r.fabric.Device(0).Kill()
	for i, req := range []*tagged.Request{long, sync} {
		if err := req.Wait(ctx); !errors.Is(err, tagged.ErrPeerFailed) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := <-waited; !errors.Is(err, tagged.ErrPeerFailed) {
		t.Error(err)
	}
	if posted.Done() || !posted.Cancel() {
		t.Error("a receive that no message had matched ended with the NIC")
	}
}

// losses are the ways to lose a NIC, its link, or a queue pair of it.
var losses = []struct {
	name string
	lose func(f *soft.Fabric, nic *soft.Device)
}{
	{"kill", func(_ *soft.Fabric, nic *soft.Device) { nic.Kill() }},
	{"link", func(_ *soft.Fabric, nic *soft.Device) { nic.SetLink(false) }},
	{"queue pair", func(f *soft.Fabric, nic *soft.Device) {
		f.Inject(soft.Fault{Kind: soft.FailQP, Device: nic})
	}},
}

// Two ends of two NICs pass messages back and forth, copied ones and long ones, and one of the NICs
// is lost at one end while a message is on its way. Neither notices.
func TestAPingPongOutlivesANIC(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, l := range losses {
			for nic, where := range []string{"a's first", "a's second", "b's first", "b's second"} {
				if testing.Short() && (nic == 1 || nic == 2) {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%s", scheme, l.name, where), func(t *testing.T) {
					cfg := tagged.Config{EagerLimit: 4096, Chunk: 32 << 10}
					cfg.Transport.QP = ibverbx.Config{Scheme: scheme, QPsPerDevice: 2, FragmentSize: 4096,
						Failover: true, Conn: ibverbx.ConnConfig{Timeout: 8, RetryCount: 2}}
					r, a, b := pair(t, 2, cfg)
					pingPong(t, r, a, b, func() { l.lose(r.fabric, r.fabric.Device(nic)) })
				})
			}
		}
	}
}

func pingPong(t *testing.T, r *rig, a, b *tagged.Endpoint, lose func()) {
	t.Helper()
	ctx := background(r)
	const rounds = 30
	lengths := []int{0, 100, 4096, 4097, 60_000, 200_000}
	echoed := make(chan error, 1)
	go func() { echoed <- echo(ctx, b, rounds) }()
	for i := range rounds {
		sent := pattern(lengths[i%len(lengths)], i)
		req := r.send(a, uint64(i), sent)
		if i == 17 { // with a long one on its way
			lose()
		}
		got := make([]byte, len(sent))
		info, err := a.RecvWait(ctx, uint64(i), tagged.Exact, got)
		if err != nil || info.Length != len(sent) || !bytes.Equal(got, sent) {
			t.Fatalf("round %d: %d bytes of %d, %v", i, info.Length, len(sent), err)
		}
		if req != nil {
			if err := req.Wait(ctx); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
	}
	if err := <-echoed; err != nil {
		t.Fatal(err)
	}
	lost := uint64(0)
	for _, w := range r.workers {
		s := w.Stats()
		lost += s.Transport.RailsLost
		if s.Failures != 0 {
			t.Errorf("%d endpoints have failed", s.Failures)
		}
	}
	if lost == 0 {
		t.Error("no rail was lost")
	}
}

// echo returns what comes.
func echo(ctx context.Context, b *tagged.Endpoint, rounds int) error {
	buf := make([]byte, 1<<20)
	for i := range rounds {
		info, err := b.RecvWait(ctx, uint64(i), tagged.Exact, buf)
		if err != nil {
			return fmt.Errorf("echo, round %d: %w", i, err)
		}
		if err := b.SendWait(ctx, uint64(i), buf[:info.Length]); err != nil {
			return fmt.Errorf("echo, round %d: %w", i, err)
		}
	}
	return nil
}

// TestErrorsForMachines: what calls return after the peer has gone is written in fields, and names
// the package once.
func TestErrorsForMachines(t *testing.T) {
	r, a, b := pair(t, 1, impatient())
	if err := b.Abort(); err != nil {
		t.Fatal(err)
	}
	_, none := a.Worker().RecvWait(background(r), 1, tagged.Exact, make([]byte, 8))
	_, after := a.Worker().RecvWait(background(r), 1, tagged.Exact, make([]byte, 8))
	_, gone := a.RecvWait(background(r), 1, tagged.Exact, make([]byte, 8))
	_, refused := a.Send(1, nil)
	if !errors.Is(none, tagged.ErrNoPeer) {
		t.Error(none)
	}
	for name, err := range map[string]error{
		"receive": gone, "receive of any": none, "receive of any, afterwards": after, "send": refused,
	} {
		if err == nil || strings.Count(err.Error(), "tagged: ") != 1 {
			t.Errorf("%s: %v: want the package's name once", name, err)
		}
		errwraptest.Check(t, name, err, func(cause []byte) bool {
			var got struct{ Peer, Kind string }
			return json.Unmarshal(cause, &got) == nil && got.Peer == a.Name() && got.Kind != ""
		})
	}
	var nowhere context.Context
	text, err := json.Marshal(a.SendWait(nowhere, 1))
	if want := `"error":"tagged: send: `; err != nil || !bytes.Contains(text, []byte(want)) {
		t.Errorf("a refusal: %s, %v", text, err)
	}
}
