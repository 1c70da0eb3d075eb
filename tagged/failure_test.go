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

// TestPeerDeath: a peer fails while requests of all kinds are under way. Each request that concerns
// it completes with an error, on both ends, posted receives stay, OnError is called once, and
// another peer goes on.
func TestPeerDeath(t *testing.T) {
	deaths := map[string]func(r *rig, e *tagged.Endpoint){
		"NIC killed":       func(r *rig, _ *tagged.Endpoint) { r.fabric.Device(1).Kill() },
		"endpoint aborted": func(_ *rig, e *tagged.Endpoint) { _ = e.Abort() },
	}
	for name, die := range deaths {
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

			die(r, b)
			hold.Remove() // a NIC notices that its peer has failed by what it has under way
			for what, req := range reqs {
				r.done(req)
				if req != nil && !errors.Is(req.Err(), tagged.ErrPeerFailed) {
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
			if len(reported) != 1 || !errors.Is(reported[0], tagged.ErrPeerFailed) ||
				!errors.Is(a.Err(), tagged.ErrPeerFailed) {
				t.Errorf("reported %v; %v", reported, a.Err())
			}
			if _, err := a.Send(1, nil); !errors.Is(err, tagged.ErrPeerFailed) {
				t.Errorf("a send afterwards: %v", err)
			}
			announced := r.recv(w, 3, tagged.Exact, make([]byte, 300000))
			if !announced.Done() || !errors.Is(announced.Err(), tagged.ErrPeerFailed) {
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

// Two ends of two NICs send each other messages, copied ones and long ones. The NICs of either end
// fail one after the other, ten times in turn, while messages are on their way, and come back: no
// request fails, and every byte arrives. Package transport loses each NIC in every way.
func TestMessagesOutliveNICs(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			cfg := tagged.Config{EagerLimit: 4096, Chunk: 32 << 10}
			cfg.Transport.QP = ibverbx.Config{Scheme: scheme, QPsPerDevice: 1, FragmentSize: 4096,
				Failover: true, Failback: time.Millisecond,
				Conn: ibverbx.ConnConfig{Timeout: 8, RetryCount: 2}}
			r, a, b := pair(t, 2, cfg)
			sizes := []int{0, 100, 4096, 4097, 60_000, 200_000}
			lost := uint64(0)
			whole := func() bool { // both ends have noticed, and all is back
				x, y := r.workers[0].Stats().Transport, r.workers[1].Stats().Transport
				return min(x.RailsLost, y.RailsLost) > lost && x.RailsBack == x.RailsLost &&
					y.RailsBack == y.RailsLost
			}
			for turn := range 10 {
				nic := r.fabric.Device([]int{0, 1, 3, 2}[turn%4])
				var reqs []*tagged.Request
				var got, want [][]byte
				for i, size := range append(sizes, sizes...) {
					if i == len(sizes) {
						nic.Kill()
					}
					for _, e := range []*tagged.Endpoint{a, b} {
						tag, buf := uint64(turn*100+i), make([]byte, size)
						want = append(want, pattern(size, int(tag)))
						got = append(got, buf)
						reqs = append(reqs, r.recv(e.Worker(), tag, tagged.Exact, buf))
					}
					for k, e := range []*tagged.Endpoint{b, a} {
						reqs = append(reqs, r.send(e, uint64(turn*100+i), want[len(want)-2+k]))
					}
				}
				r.done(reqs...)
				for _, req := range reqs {
					if req != nil && req.Err() != nil {
						t.Fatalf("turn %d: %v", turn, req.Err())
					}
				}
				for i := range got {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("turn %d: message %d of %d bytes has other ones", turn, i, len(want[i]))
					}
				}
				nic.Restore()
				r.until(whole)
				lost = min(r.workers[0].Stats().Transport.RailsLost, r.workers[1].Stats().Transport.RailsLost)
			}
			for i, w := range r.workers {
				if s := w.Stats(); s.Failures != 0 {
					t.Errorf("worker %d: %d endpoints have failed", i, s.Failures)
				}
			}
		})
	}
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

// star is a worker 0 with an endpoint to each of the workers 1 and 2, and their endpoints to it.
func star(t *testing.T) (r *rig, here, there [2]*tagged.Endpoint) {
	t.Helper()
	r = newRig(t, 3, 1, impatient())
	for i := range here {
		here[i], there[i] = r.connect(0, i+1)
	}
	return r, here, there
}

// endings are the ways in which the connection to the first peer of a star ends, and the error that
// its receives get.
var endings = map[string]struct {
	end   func(r *rig, here, there *tagged.Endpoint)
	want  error
	drops bool // what had arrived is dropped
}{
	"NIC killed": {func(r *rig, here, _ *tagged.Endpoint) {
		r.fabric.Device(1).Kill()
		r.send(here, 9, []byte("by this it is noticed"))
	}, tagged.ErrPeerFailed, false},
	"peer closes": {func(r *rig, _, there *tagged.Endpoint) {
		ctx, cancel := context.WithCancel(r.t.Context())
		defer cancel()
		go func() {
			for ctx.Err() == nil {
				r.workers[0].Progress()
			}
		}()
		if err := there.Close(ctx); err != nil {
			r.t.Error(err)
		}
	}, tagged.ErrPeerClosed, false},
	"aborted": {func(_ *rig, here, _ *tagged.Endpoint) { _ = here.Abort() }, tagged.ErrCanceled, true},
	"closed": {func(r *rig, here, _ *tagged.Endpoint) {
		if err := here.Close(timeout(r.t, 20e9)); err != nil {
			r.t.Error(err)
		}
	}, tagged.ErrClosed, false},
}

// TestRecvFromPeerEnds: receives for one peer end with it, before its OnError; others stay. What
// had arrived whole can still be received, unless the endpoint was aborted.
func TestRecvFromPeerEnds(t *testing.T) {
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			r, here, there := star(t)
			w := r.workers[0]
			exact, err1 := here[0].Recv(1, tagged.Exact, make([]byte, 8))
			wild, err2 := here[0].Recv(1, tagged.Exact&^1, make([]byte, 8))
			other, err3 := here[1].Recv(1, tagged.Any, make([]byte, 8))
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Fatal(err)
			}
			anyone := r.recv(w, 1, tagged.Exact, make([]byte, 8))
			r.send(there[0], 4, []byte("whole"))
			r.until(func() bool { return w.Stats().Unexpected == 1 })
			ending.end(r, here[0], there[0])
			r.done(exact, wild)
			if !errors.Is(exact.Err(), ending.want) || !errors.Is(wild.Err(), ending.want) {
				t.Errorf("receives of the peer: %v; %v", exact.Err(), wild.Err())
			}
			if other.Done() || anyone.Done() {
				t.Error("a receive of another peer, or of any, has ended")
			}
			if _, err := here[0].Recv(1, tagged.Exact); !errors.Is(err, ending.want) {
				t.Errorf("a receive afterwards: %v", err)
			}
			info, err := here[0].RecvWait(t.Context(), 0, tagged.Any, make([]byte, 8))
			if ending.drops {
				if !errors.Is(err, ending.want) {
					t.Errorf("receive of what an aborted endpoint had: %+v, %v", info, err)
				}
			} else if err != nil || info.Tag != 4 || info.Length != 5 {
				t.Errorf("receive of what had arrived whole: %+v, %v", info, err)
			}
			r.done(r.send(there[1], 1, nil), other) // the first that was posted of those left
			r.done(r.send(there[1], 1, nil), anyone)
			if err := errors.Join(anyone.Err(), other.Err()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRecvWaitBeforeTheFirstPeer: a worker that has had no endpoint yet waits for one.
func TestRecvWaitBeforeTheFirstPeer(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	ended := make(chan error)
	go func() {
		_, err := r.workers[0].RecvWait(t.Context(), 5, tagged.Exact, make([]byte, 8))
		ended <- err
	}()
	r.until(func() bool { return r.workers[0].Stats().Posted == 1 })
	_, b := r.connect(0, 1)
	r.send(b, 5, []byte("first"))
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
