package tagged_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/verbs"
)

const (
	toRead  = verbs.AccessRemoteRead
	toWrite = verbs.AccessLocalWrite
)

// TestRegisteredMemory: memory inside a region needs no registration, other memory is registered
// for the one message.
func TestRegisteredMemory(t *testing.T) {
	r, a, b := pair(t, 2, tagged.Config{})
	const n = 100 << 10
	src, dst := pattern(3*n, 1), make([]byte, 3*n)
	var regions []*tagged.Region
	for w, mem := range map[*tagged.Worker][]byte{a.Worker(): src, b.Worker(): dst} {
		reg, err := w.Register(mem)
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, reg)
		if _, err := w.Register(mem[n : n+1]); err == nil {
			t.Error("a region that overlaps another was registered")
		}
	}
	exchange := func(src, dst []byte) {
		d := r.recv(b.Worker(), 1, tagged.Exact, dst)
		r.done(r.send(a, 1, src), d)
		if d.Err() != nil || !bytes.Equal(src, dst) {
			t.Fatal(d.Err())
		}
	}
	exchange(src[n+1:2*n], dst[n+1:2*n])
	if x, y := a.Worker().Stats().Registered, b.Worker().Stats().Registered; x != 0 || y != 0 {
		t.Errorf("%d and %d registrations for memory inside a region", x, y)
	}
	exchange(pattern(n, 9), make([]byte, n))
	if x, y := a.Worker().Stats().Registered, b.Worker().Stats().Registered; x != 1 || y != 1 {
		t.Errorf("%d and %d registrations for one message: want one on each side", x, y)
	}
	for _, reg := range regions {
		if err := reg.Close(); err != nil {
			t.Error(err)
		}
		if err := reg.Close(); !errors.Is(err, tagged.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestRegisteredAccess: memory to send from is registered only for peers to read, so that it may be
// memory that cannot be written to; memory to receive into only for this end's NICs to write. That
// holds for the memory of one message, in a few pieces or in many.
func TestRegisteredAccess(t *testing.T) {
	r, taps := tappedRig(t, 2, tagged.Config{})
	a, b := r.connect(0, 1)
	for _, pieces := range []int{1, 9} {
		src, dst := pattern(100000, 1), make([]byte, 100000)
		taps[0].take()
		taps[1].take()
		s := r.send(a, 1, cut(src, pieces)...)
		d := r.recv(b.Worker(), 1, tagged.Exact, cut(dst, pieces)...)
		r.done(s, d)
		if d.Err() != nil || !bytes.Equal(src, dst) {
			t.Fatal(d.Err())
		}
		if got := taps[0].take(); !slices.Equal(got, []verbs.AccessFlags{toRead}) {
			t.Errorf("%d pieces: to send, memory was registered for %v: want %v once", pieces, got, toRead)
		}
		if got := taps[1].take(); !slices.Equal(got, []verbs.AccessFlags{toWrite}) {
			t.Errorf("%d pieces: to receive, memory was registered for %v: want %v once", pieces, got,
				toWrite)
		}
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

// TestRegionInUse: a region cannot be closed while a message may be read from it.
func TestRegionInUse(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	mem := pattern(100000, 1)
	region, err := a.Worker().Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	s := r.send(a, 1, mem)
	if err := region.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatal(err)
	}
	r.done(r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 100000)), s)
	if err := region.Close(); err != nil {
		t.Fatal(err)
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

// TestNoRegistration: where memory cannot be registered, a send is refused; a receive fails, and
// its sender succeeds.
func TestNoRegistration(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	mem := pattern(100000, 1)
	region, err := a.Worker().Register(mem)
	if err != nil {
		t.Fatal(err)
	}
	if &region.Bytes()[0] != &mem[0] || region.MR().Len() != 100000 {
		t.Error("the region is of other memory")
	}
	for i := range r.domains { // registers nothing more; it ends when its users have ended
		if err := r.domains[i].Close(); err != nil {
			t.Fatal(err)
		}
		if r.domains[i], err = ibverbx.NewDomain(r.fabric.Device(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Send(1, make([]byte, 100000)); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("send: %v", err)
	}
	for _, pieces := range []int{1, 9} {
		s, d := r.send(a, 1, mem), r.recv(b.Worker(), 1, tagged.Exact, cut(make([]byte, 100000), pieces)...)
		r.done(s, d)
		if s.Err() != nil || !errors.Is(d.Err(), ibverbx.ErrClosed) {
			t.Errorf("receive into %d pieces: %v; the sender: %v", pieces, d.Err(), s.Err())
		}
	}
	if _, err := a.Worker().Register(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if a.Err() != nil || b.Err() != nil {
		t.Error(a.Err(), b.Err())
	}
}
