package tagged_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"ibverbx/tagged"
	"ibverbx/verbs"
)

const (
	toRead  = verbs.AccessRemoteRead
	toWrite = verbs.AccessLocalWrite
)

// TestRegisteredAccess: memory to send from is registered only for peers to read, so that it may be
// memory that cannot be written to; memory to receive into only for this end's NICs to write. That
// holds for the memory of one message, in a few pieces or in many. With RelaxedOrdering all of it,
// and regions, are registered so.
func TestRegisteredAccess(t *testing.T) {
	for _, relaxed := range []verbs.AccessFlags{0, verbs.AccessRelaxedOrdering} {
		r, taps := tappedRig(t, 2, tagged.Config{RelaxedOrdering: relaxed != 0})
		a, b := r.connect(0, 1)
		expect := func(what string, d *tap, want verbs.AccessFlags) {
			t.Helper()
			if got := d.take(); !slices.Equal(got, []verbs.AccessFlags{want | relaxed}) {
				t.Errorf("%s: memory was registered for %v: want %v once", what, got, want|relaxed)
			}
		}
		taps[0].take()
		taps[1].take()
		for _, pieces := range []int{1, 9} {
			src, dst := pattern(100000, 1), make([]byte, 100000)
			s := r.send(a, 1, cut(src, pieces)...)
			d := r.recv(b.Worker(), 1, tagged.Exact, cut(dst, pieces)...)
			r.done(s, d)
			if d.Err() != nil || !bytes.Equal(src, dst) {
				t.Fatal(d.Err())
			}
			expect("to send", taps[0], toRead)
			expect("to receive", taps[1], toWrite)
		}
		if _, err := b.Worker().Register(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		expect("a region", taps[1], toRead|toWrite)
	}
}

// TestRegionUse: a region serves its own use; the other one takes a registration for the message.
func TestRegionUse(t *testing.T) {
	for _, c := range []struct {
		use           tagged.Use
		access        verbs.AccessFlags
		sends, recvs  int // registrations for one message of each kind
		withoutChoice bool
	}{
		{use: tagged.ForSends, access: toRead, recvs: 1},
		{use: tagged.ForReceives, access: toWrite, sends: 1},
		{use: tagged.ForSends | tagged.ForReceives, access: toRead | toWrite},
		{access: toRead | toWrite, withoutChoice: true},
	} {
		r, taps := tappedRig(t, 2, tagged.Config{})
		a, b := r.connect(0, 1)
		mem, other := pattern(100000, 1), make([]byte, 100000)
		taps[0].take()
		var err error
		if c.withoutChoice {
			_, err = a.Worker().Register(mem)
		} else {
			_, err = a.Worker().RegisterFor(c.use, mem)
		}
		if got := taps[0].take(); err != nil || !slices.Equal(got, []verbs.AccessFlags{c.access}) {
			t.Errorf("use %d: %v, registered for %v: want %v", c.use, err, got, c.access)
		}
		d := r.recv(b.Worker(), 1, tagged.Exact, other)
		r.done(r.send(a, 1, mem), d)
		if got := len(taps[0].take()); d.Err() != nil || got != c.sends {
			t.Errorf("use %d: a send: %v, %d registrations: want %d", c.use, d.Err(), got, c.sends)
		}
		d = r.recv(a.Worker(), 1, tagged.Exact, mem)
		r.done(r.send(b, 1, other), d)
		if got := len(taps[0].take()); d.Err() != nil || got != c.recvs {
			t.Errorf("use %d: a receive: %v, %d registrations: want %d", c.use, d.Err(), got, c.recvs)
		}
	}
	r := newRig(t, 1, 1, tagged.Config{})
	for _, use := range []tagged.Use{0, 4, 255} {
		if _, err := r.workers[0].RegisterFor(use, make([]byte, 8)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("use %d: %v", use, err)
		}
	}
}

// TestRegistrationReleasesTheLock: while the memory of a receive is being registered, which may
// take long, other calls on the worker return; an endpoint that is aborted then ends the receive.
func TestRegistrationReleasesTheLock(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		for _, posted := range []bool{true, false} {
			r, taps := tappedRig(t, 2, tagged.Config{})
			a, b := r.connect(0, 1)
			w := b.Worker()
			src, dst := pattern(100000, 1), make([]byte, 100000)
			begun, goOn := make(chan struct{}), make(chan struct{})
			taps[1].before = func(verbs.AccessFlags, int) {
				close(begun)
				<-goOn
			}
			registered := make(chan *tagged.Request)
			s := r.send(a, 1, src)
			if posted {
				d := r.recv(w, 1, tagged.Exact, dst)
				go func() {
					for !d.Done() && w.Stats().Registered == 0 {
						w.Progress()
					}
					registered <- d
				}()
			} else {
				r.until(func() bool { return w.Stats().Unexpected == 1 })
				go func() {
					d, err := w.Recv(1, tagged.Exact, dst)
					if err != nil {
						t.Error(err)
					}
					registered <- d
				}()
			}
			<-begun
			free := make(chan struct{})
			go func() {
				defer close(free)
				_, _ = w.Probe(1, tagged.Exact)
				if aborted {
					_ = b.Abort()
				}
			}()
			select {
			case <-free:
			case <-timeout(t, 5e9).Done():
				t.Error("the worker is locked while memory is registered")
			}
			close(goOn)
			<-free
			d := <-registered
			if aborted {
				r.until(d.Done)
				if !errors.Is(d.Err(), tagged.ErrCanceled) {
					t.Errorf("posted %t, aborted meanwhile: %v", posted, d.Err())
				}
				continue
			}
			r.done(s, d)
			if d.Err() != nil || !bytes.Equal(src, dst) {
				t.Errorf("posted %t: %v", posted, d.Err())
			}
		}
	}
}
