package tagged_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"ibverbx/internal/guard"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var errMemory = errors.New("no page can be pinned")

// Short messages go inline and take no buffer that other messages may need; what is longer takes
// one.
func TestShortMessagesTakeNoBuffer(t *testing.T) {
	r, a, _ := pair(t, 1, tagged.Config{})
	stall := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	free := func() int { return r.workers[0].Stats().Transport.BounceFree }
	for _, c := range []struct {
		bytes, buffers int
	}{{0, 0}, {16, 0}, {64, 0}, {256, 1}, {3000, 1}} {
		before := free()
		if _, err := a.SendSync(1, pattern(c.bytes, 1)); err != nil {
			t.Fatal(err)
		}
		if got := before - free(); got != c.buffers {
			t.Errorf("a message of %d bytes takes %d buffers, want %d", c.bytes, got, c.buffers)
		}
		before = free()
		if req := r.send(a, 2, pattern(c.bytes, 1)); req != nil {
			t.Errorf("a message of %d bytes waits", c.bytes)
		}
		if got := before - free(); got != c.buffers {
			t.Errorf("a message of %d bytes, not matched, takes %d buffers, want %d", c.bytes, got, c.buffers)
		}
	}
	stall.Remove()
}

// Memory that cannot be registered refuses the message, whose endpoint goes on; nothing is left of
// what had been registered.
func TestMemoryThatCannotBeRegistered(t *testing.T) {
	for _, pieces := range []int{1, 3, 9} {
		r, taps := tappedRig(t, 2, tagged.Config{})
		a, b := r.connect(0, 1)
		taps[0].refuse, taps[1].refuse = errMemory, errMemory
		for _, good := range []int{0, 1, 2} { // so many registrations succeed
			if good >= pieces || good != 0 && pieces == 9 { // nine pieces are one in a buffer
				continue
			}
			taps[0].good, taps[1].good = good, good
			req, err := a.Send(1, cut(pattern(100000, 1), pieces)...)
			if req != nil || !errors.Is(err, errMemory) {
				t.Errorf("send: %v, %v", req, err)
			}
			req, err = b.Worker().Recv(1, tagged.Exact, cut(make([]byte, 100000), pieces)...)
			if err == nil { // it is registered when its message is announced
				taps[0].refuse = nil
				s := r.send(a, 1, pattern(100000, 1))
				r.done(req)
				r.done(s)
				if err = req.Err(); s.Err() != nil {
					t.Errorf("the sender: %v", s.Err())
				}
				taps[0].refuse = errMemory
			}
			if !errors.Is(err, errMemory) {
				t.Errorf("receive: %v", err)
			}
		}
		taps[0].refuse, taps[1].refuse = nil, nil
		src, dst := pattern(100000, 5), make([]byte, 100000)
		d := r.recv(b.Worker(), 2, tagged.Exact, dst)
		r.done(r.send(a, 2, src), d)
		if d.Err() != nil || !bytes.Equal(src, dst) {
			t.Errorf("afterwards: %v", d.Err())
		}
	}
}

// A region whose memory cannot be registered is not made.
func TestRegionsThatCannotBeRegistered(t *testing.T) {
	r, taps := tappedRig(t, 1, tagged.Config{})
	mem := make([]byte, 1000)
	taps[0].refuse = errMemory
	if reg, err := r.workers[0].Register(mem); reg != nil || !errors.Is(err, errMemory) {
		t.Errorf("%v, %v", reg, err)
	}
	taps[0].refuse = nil
	reg, err := r.workers[0].Register(mem) // nothing of the first is there
	if err != nil {
		t.Fatal(err)
	}
	used := reg.MR()
	// A put of the transport beneath uses the region: it stays.
	a, b := r.connect(0, 0)
	stall := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	other, err := b.Worker().Transport().Domain().Register(make([]byte, 8), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	comp := transport.NewCompletion(1, nil)
	if _, err := a.Transport().PutZcopy(comp, other.Remote().At(0), used.Slice(0, 8)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := reg.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("closed while a put uses it: %v", err)
		}
	}
	stall.Remove()
	r.until(comp.Fired)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	// The NIC's refusal is reported, once, and the region is closed.
	taps[0].deregister = errMemory
	if err := reg.Close(); !errors.Is(err, errMemory) {
		t.Errorf("a region that is still registered is closed: %v", err)
	}
	if err := reg.Close(); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("a second time: %v", err)
	}
	taps[0].deregister = nil
	if err := taps[0].leaked(); err != nil {
		t.Error(err)
	}
	if _, err := r.workers[0].Register(mem); err != nil {
		t.Errorf("anew: %v", err)
	}
}

// Memory of one message that cannot be deregistered is counted, and the message arrives.
func TestMemoryThatCannotBeDeregistered(t *testing.T) {
	r, taps := tappedRig(t, 2, tagged.Config{})
	a, b := r.connect(0, 1)
	taps[0].deregister = errMemory
	src, dst := pattern(100000, 1), make([]byte, 100000)
	d := r.recv(b.Worker(), 1, tagged.Exact, dst)
	s := r.send(a, 1, src)
	r.done(s, d)
	if s.Err() != nil || d.Err() != nil || !bytes.Equal(src, dst) {
		t.Errorf("%v, %v", s.Err(), d.Err())
	}
	if x, y := a.Worker().Stats().Leaked, b.Worker().Stats().Leaked; x != 1 || y != 0 {
		t.Errorf("%d and %d leaked, want 1 and 0", x, y)
	}
	taps[0].deregister = nil
	if err := taps[0].leaked(); err != nil {
		t.Error(err)
	}
	r.leaks = 1
}

// An endpoint that is aborted while the memory of a send is registered takes the send no more, and
// keeps nothing of it.
func TestAbortWhileMemoryIsRegistered(t *testing.T) {
	for _, pieces := range []int{1, 9} {
		r, taps := tappedRig(t, 2, tagged.Config{})
		a, _ := r.connect(0, 1)
		taps[0].before = func(verbs.AccessFlags, int) {
			if err := a.Abort(); err != nil {
				t.Error(err)
			}
		}
		req, err := a.Send(1, cut(pattern(100000, 1), pieces)...)
		if req != nil || !errors.Is(err, tagged.ErrCanceled) {
			t.Errorf("%d pieces: %v, %v", pieces, req, err)
		}
		if s := r.workers[0].Stats(); s.Requests != 0 {
			t.Errorf("%d requests are left", s.Requests)
		}
		taps[0].before = nil
	}
}

// The memory of unexpected messages is kept for the next ones, and counted wherever it is.
func TestSpareMemoryIsCounted(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	w := b.Worker()
	const n = 10
	all := 0
	for round := range 3 {
		for i := range n {
			r.send(a, uint64(i), pattern(100*i, i))
		}
		r.settle()
		s := w.Stats()
		if s.Unexpected != n || s.UnexpectedBytes == 0 {
			t.Fatalf("round %d: %+v", round, s)
		}
		if got := s.UnexpectedBytes + s.SpareBytes; round != 0 && got != all {
			t.Errorf("round %d: %d bytes in use and to spare, want %d", round, got, all)
		}
		all = s.UnexpectedBytes + s.SpareBytes
		for i := range n {
			r.done(r.recv(w, uint64(i), tagged.Exact, make([]byte, 1000)))
		}
		if s := w.Stats(); s.UnexpectedBytes != 0 || s.SpareBytes != all {
			t.Errorf("round %d: %d bytes in use and %d to spare, want 0 and %d", round, s.UnexpectedBytes,
				s.SpareBytes, all)
		}
	}
}

// TestAllocations: once warm no path allocates, nor do calls that wait.
func TestAllocations(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector allocates")
	}
	r, a, b := pair(t, 1, tagged.Config{})
	w := b.Worker()
	src, dst := pattern(1<<20, 1), make([]byte, 1<<20)
	for w, mem := range map[*tagged.Worker][]byte{a.Worker(): src, w: dst} {
		if _, err := w.Register(mem); err != nil {
			t.Fatal(err)
		}
	}
	ctx := timeout(t, 50e9)
	finish := func(s, d *tagged.Request) {
		for s != nil && !s.Done() || !d.Done() {
			a.Worker().Progress()
			w.Progress()
		}
		if s != nil {
			s.Free()
		}
		d.Free()
	}
	for _, n := range []int{0, 8, 4096, 16000, 1 << 20} {
		paths := map[string]func(){
			"expected": func() {
				d, _ := w.Recv(1, tagged.Exact, dst[:n/2], dst[n/2:n])
				s, _ := a.Send(1, src[:n/3], src[n/3:n])
				finish(s, d)
			},
			"unexpected": func() {
				s, _ := a.SendSync(1, src[:n])
				for _, ok := w.Probe(1, tagged.Exact); !ok; _, ok = w.Probe(1, tagged.Exact) {
					w.Progress()
					a.Worker().Progress()
				}
				d, _ := w.Recv(0, tagged.Any, dst[:n])
				finish(s, d)
			},
		}
		if n <= tagged.DefaultEagerLimit {
			paths["waiting"] = func() {
				if err := a.SendWait(ctx, 1, src[:n]); err != nil {
					t.Error(err)
				}
				if _, err := w.RecvWait(ctx, 1, tagged.Exact, dst[:n]); err != nil {
					t.Error(err)
				}
				a.Worker().Progress()
			}
			paths["queued"] = func() {
				var recvs, sends [100]*tagged.Request
				for i := range recvs {
					recvs[i], _ = w.Recv(1, tagged.Exact, dst[:n])
					sends[i], _ = a.Send(1, src[:n])
				}
				for i := range recvs {
					finish(sends[i], recvs[i])
				}
			}
		}
		for name, f := range paths {
			for range 300 { // every slot of the rings beneath allocates once
				f()
			}
			if got := testing.AllocsPerRun(50, f); got != 0 {
				t.Errorf("%d bytes, %s: %g allocations", n, name, got)
			}
		}
	}
	r.settle()
}

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
