package tagged_test

import (
	"context"
	"errors"
	"testing"

	"ibverbx/tagged"
)

// star is a worker 0 with an endpoint to each of the workers 1 and 2, and their endpoints to it.
func star(t *testing.T) (r *rig, here, there [2]*tagged.Endpoint) {
	t.Helper()
	r = newRig(t, 3, 1, impatient())
	for i := range here {
		here[i], there[i] = r.connect(0, i+1)
	}
	return r, here, there
}

// TestRecvFromPeer: a receive for one peer takes no message of another one, and is matched in turn
// with the worker's receives, in the order in which they were posted.
func TestRecvFromPeer(t *testing.T) {
	for _, unexpected := range []bool{false, true} {
		r, here, there := star(t)
		w := r.workers[0]
		message := func(i int, s string) {
			r.done(r.send(there[i], 7, []byte(s)))
			r.settle()
		}
		receive := func(e *tagged.Endpoint, mask uint64) (*tagged.Request, []byte) {
			buf := make([]byte, 8)
			if e == nil {
				return r.recv(w, 7, mask, buf), buf
			}
			req, err := e.Recv(7, mask, buf)
			if err != nil {
				t.Fatal(err)
			}
			return req, buf
		}
		if unexpected {
			message(0, "a")
			message(1, "b")
			message(0, "c")
			message(1, "d")
			message(1, "e")
			if info, found := here[1].Probe(7, tagged.Exact); !found || info.Source != here[1] {
				t.Errorf("the second peer's first message: %v, %+v", found, info)
			}
			if _, found := here[0].Probe(6, tagged.Exact); found {
				t.Error("a message of another tag")
			}
		}
		// The third receive is for any peer: the first message that nothing has taken.
		of := []*tagged.Endpoint{here[1], here[0], nil, here[1], nil}
		masks := []uint64{tagged.Exact, tagged.Any, tagged.Exact, tagged.Any, tagged.Any}
		want := []string{"b", "a", "c", "d", "e"}
		var reqs []*tagged.Request
		var bufs [][]byte
		for i := range of {
			req, buf := receive(of[i], masks[i])
			reqs, bufs = append(reqs, req), append(bufs, buf)
		}
		if !unexpected {
			message(0, "a")
			message(1, "b")
			message(0, "c")
			message(1, "d")
			message(1, "e")
		}
		for i, req := range reqs {
			r.done(req)
			info := req.Info()
			if got := string(bufs[i][:info.Length]); req.Err() != nil || got != want[i] ||
				of[i] != nil && info.Source != of[i] {
				t.Errorf("unexpected %t: receive %d takes %q of %s: want %q", unexpected, i, got,
					info.Source.Name(), want[i])
			}
		}
	}
}

// TestRecvFromPeerIsCancelled: a cancelled receive takes no message.
func TestRecvFromPeerIsCancelled(t *testing.T) {
	r, here, there := star(t)
	req, err := here[0].Recv(1, tagged.Exact, make([]byte, 8))
	if err != nil || !req.Cancel() || !errors.Is(req.Err(), tagged.ErrCanceled) {
		t.Fatal(err, req.Err())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := here[0].RecvWait(ctx, 1, tagged.Exact, make([]byte, 8)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	r.send(there[0], 1, []byte("x"))
	r.until(func() bool { return r.workers[0].Stats().Unexpected == 1 })
	if info, err := here[0].RecvWait(ctx, 1, tagged.Exact, make([]byte, 8)); err != nil || info.Length != 1 {
		t.Error(info, err)
	}
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

// TestRecvWaitWithoutPeers: RecvWait of a worker ends when the last endpoint does, and not before;
// Recv does not.
func TestRecvWaitWithoutPeers(t *testing.T) {
	for name, ending := range endings {
		t.Run(name, func(t *testing.T) {
			r, here, there := star(t)
			w := r.workers[0]
			r.send(there[0], 4, []byte("whole"))
			r.until(func() bool { return w.Stats().Unexpected == 1 })
			posted := r.recv(w, 1, tagged.Exact, make([]byte, 8))
			ended := make(chan error)
			for _, mask := range []uint64{tagged.Exact, tagged.Exact &^ 1} {
				go func() {
					_, err := w.RecvWait(t.Context(), 2, mask, make([]byte, 8))
					ended <- err
				}()
			}
			r.until(func() bool { return w.Stats().Posted == 3 })
			_ = here[1].Abort()
			r.settle()
			if w.Stats().Posted != 3 {
				t.Error("RecvWait has ended, and an endpoint is left")
			}
			ending.end(r, here[0], there[0])
			for range 2 {
				if err := <-ended; !errors.Is(err, tagged.ErrNoPeer) || !errors.Is(err, ending.want) {
					t.Errorf("RecvWait: %v", err)
				}
			}
			if posted.Done() {
				t.Error("Recv has ended with the last endpoint")
			}
			if _, err := w.RecvWait(t.Context(), 1, tagged.Exact); !errors.Is(err, tagged.ErrNoPeer) ||
				!errors.Is(err, ending.want) {
				t.Errorf("RecvWait afterwards: %v", err)
			}
			if !ending.drops {
				info, err := w.RecvWait(t.Context(), 4, tagged.Exact, make([]byte, 8))
				if err != nil || info.Length != 5 {
					t.Errorf("RecvWait of what had arrived: %+v, %v", info, err)
				}
			}
			// A new endpoint brings new messages.
			_, b := r.connect(0, 2)
			go func() {
				_, err := w.RecvWait(t.Context(), 5, tagged.Exact, make([]byte, 8))
				ended <- err
			}()
			r.send(b, 5, []byte("new"))
			if err := <-ended; err != nil {
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
