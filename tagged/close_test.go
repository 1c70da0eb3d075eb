package tagged_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// TestClose: Close lets sends complete, and the peer gets ErrPeerClosed.
func TestClose(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	var reported []error
	var calls atomic.Int32
	a := r.endpoint(0, tagged.EndpointConfig{})
	onError := func(_ *tagged.Endpoint, err error) {
		reported = append(reported, err)
		calls.Add(1)
	}
	b := r.endpoint(1, tagged.EndpointConfig{OnError: onError})
	if err := tagged.Connect(a, b); err != nil {
		t.Fatal(err)
	}
	ctx := background(r)
	long, short := make([]byte, 1<<20), make([]byte, 8)
	d := r.recv(b.Worker(), 1, tagged.Exact, long)
	r.send(a, 1, pattern(1<<20, 1))
	r.send(a, 2, []byte("short"))
	if err := a.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.Wait(ctx); err != nil || !bytes.Equal(long, pattern(1<<20, 1)) {
		t.Fatal(err)
	}
	r.until(func() bool { return calls.Load() != 0 })
	if info, err := b.Worker().RecvWait(ctx, 2, tagged.Exact, short); err != nil || info.Length != 5 {
		t.Fatal(info, err)
	}
	if !errors.Is(b.Err(), tagged.ErrPeerClosed) || len(reported) != 1 ||
		!errors.Is(reported[0], tagged.ErrPeerClosed) {
		t.Error(b.Err(), reported)
	}
	for _, err := range []error{a.Close(ctx), a.Abort()} {
		if !errors.Is(err, tagged.ErrClosed) {
			t.Error(err)
		}
	}
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestAbortDuringClose: an abort ends a close that says goodbye to a peer which does not answer,
// before the context of the close ends.
func TestAbortDuringClose(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	hold := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: r.fabric.Device(0), Count: -1})
	defer hold.Remove()
	closed := make(chan error, 1)
	go func() { closed <- a.Close(background(r)) }()
	r.until(func() bool { return a.Worker().Transport().Stats().Control != 0 }) // the goodbye
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := a.Transport().Err(); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("the endpoint beneath: %v: it was not aborted", err)
	}
	select {
	case err := <-closed:
		if !errors.Is(err, tagged.ErrCanceled) {
			t.Errorf("close: %v", err)
		}
	case <-timeout(t, 10*time.Second).Done():
		t.Error("close goes on after the abort")
		hold.Remove()
		<-closed
	}
	if err := a.Close(background(r)); !errors.Is(err, tagged.ErrClosed) {
		t.Error(err)
	}
	_ = b.Abort()
}

// TestAlloc: messages from and into memory of Alloc need no registration of their own, and the
// memory stays readable when the worker is closed.
func TestAlloc(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	const n = 1 << 20
	from, errFrom := a.Worker().Alloc(n)
	to, errTo := b.Worker().Alloc(n)
	if err := errors.Join(errFrom, errTo); err != nil {
		t.Fatal(err)
	}
	copy(from.Bytes(), pattern(n, 3))
	sent := r.send(a, 1, from.Bytes())
	if _, err := b.RecvWait(ctx, 1, tagged.Exact, to.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := sent.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for _, e := range []*tagged.Endpoint{a, b} {
		if s := e.Worker().Stats(); s.Registered != 0 {
			t.Errorf("%d registrations", s.Registered)
		}
	}
	if _, err := a.Worker().Alloc(0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no bytes: %v", err)
	}
	got := to.Bytes()
	if err := to.Close(); err != nil || !bytes.Equal(got, pattern(n, 3)) {
		t.Errorf("after the close: %v", err)
	}
	if err := to.Close(); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// TestACallbackThatLeavesClose: a callback of the transport below may leave Close by a panic. A
// second Close gives everything back, and a third finds the worker closed.
func TestACallbackThatLeavesClose(t *testing.T) {
	r, a, _ := pair(t, 1, tagged.Config{})
	w := a.Worker()
	_ = r.send(a, 1, make([]byte, 100000)) // nobody receives it
	if _, err := w.Register(make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	below := a.Transport()
	comp := transport.NewCompletion(1, func(*transport.Completion) { panic("on purpose") })
	if done, err := below.StartFlush(transport.FlushRemote, comp); done || err != nil {
		t.Fatal(done, err)
	}
	why := func() (why any) {
		defer func() { why = recover() }()
		return w.Close()
	}()
	if why != "on purpose" {
		t.Fatalf("close: %v", why)
	}
	if err := w.Close(); !errors.Is(err, transport.ErrWorkerDead) {
		t.Errorf("a second close: %v", err)
	}
	if err := w.Close(); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("a third close: %v", err)
	}
	if err := r.domains[0].Close(); err != nil { // nothing of the worker is left in it
		t.Error(err)
	}
	r.workers, r.domains = r.workers[1:], r.domains[1:]
}

// TestBothEndsClose: both ends may close at the same time, and neither calls that a failure.
func TestBothEndsClose(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	ctx := background(r)
	for i := range 20 {
		a, b := r.connect(0, 1)
		if i%2 == 0 {
			if err := a.SendWait(ctx, 1, pattern(64, i)); err != nil {
				t.Fatal(err)
			}
			if _, err := b.RecvWait(ctx, 1, tagged.Exact, make([]byte, 64)); err != nil {
				t.Fatal(err)
			}
		}
		closed := make(chan error, 1)
		go func() { closed <- a.Close(ctx) }()
		if err := errors.Join(b.Close(ctx), <-closed); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	for i, w := range r.workers {
		if s := w.Stats(); s.Endpoints != 0 || s.Violations != 0 {
			t.Errorf("worker %d: %+v", i, s)
		}
	}
}

// TestCloseMeetsGoodbye: the peer's goodbye may arrive while Close waits, together with what it
// waits for. Nothing is lost then, so Close does not fail and OnError is not called.
func TestCloseMeetsGoodbye(t *testing.T) {
	r := newRig(t, 2, 1, tagged.Config{})
	failed := func(_ *tagged.Endpoint, err error) { t.Errorf("OnError: %v", err) }
	a, b := r.endpoint(0, tagged.EndpointConfig{OnError: failed}), r.endpoint(1, tagged.EndpointConfig{})
	if err := tagged.Connect(a, b); err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, 20*time.Second)
	sent := r.send(a, 1, pattern(1<<20, 1)) // b reads it from a's memory
	if _, err := b.RecvWait(ctx, 1, tagged.Exact, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Close(ctx), sent.Err()); err != nil {
		t.Error(err)
	}
}

// TestAbortEndsAClose: an Abort ends a Close that waits, which says that it was canceled, and so
// do the sends that it waited for.
func TestAbortEndsAClose(t *testing.T) {
	r, a, _ := pair(t, 1, tagged.Config{})
	ctx := background(r)
	req := r.send(a, 1, make([]byte, 100000)) // nobody receives it
	closed := make(chan error, 1)
	go func() { closed <- a.Close(ctx) }()
	r.until(func() bool { _, err := a.Send(2, nil); return errors.Is(err, tagged.ErrClosed) })
	if err := a.Close(ctx); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("a second Close: %v", err)
	}
	if err := a.Abort(); err != nil {
		t.Error(err)
	}
	if err := <-closed; !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("close: %v", err)
	}
	_, late := a.Send(3, nil)
	for what, err := range map[string]error{"the send": req.Wait(ctx), "a later one": late,
		"one that waits": a.SendWait(ctx, 3, nil), "one for the match": a.SendSyncWait(ctx, 3, nil)} {
		if !errors.Is(err, tagged.ErrCanceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := a.Abort(); !errors.Is(err, tagged.ErrClosed) {
		t.Errorf("a second Abort: %v", err)
	}
}

// TestCloseThatIsCutShort: a Close whose context ends returns its error, and ends what it waited
// for.
func TestCloseThatIsCutShort(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	req := r.send(a, 1, make([]byte, 100000))
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := a.Close(ctx); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), a.Name()+": context deadline exceeded: messages to it") {
		t.Errorf("close: %v", err)
	}
	r.done(req)
	if err := req.Err(); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("the send: %v", err)
	}
	r.until(func() bool { return b.Err() != nil }) // the peer is told
	if err := b.Err(); !errors.Is(err, tagged.ErrPeerFailed) {
		t.Errorf("the peer: %v", err)
	}
}

// visit has worker 1 send n messages of so many bytes to worker 0, over endpoints of their own, and
// returns both ends when all messages have arrived.
func (r *rig) visit(n, length int, tag uint64) (a, b *tagged.Endpoint) {
	r.t.Helper()
	before := r.workers[0].Stats().CameUnexpected
	a, b = r.connect(0, 1)
	for range n {
		r.send(b, tag, pattern(length, 1))
	}
	r.until(func() bool { return r.workers[0].Stats().CameUnexpected == before+uint64(n) })
	return a, b
}

// TestLeftoversAreBounded: messages can be received after their endpoint was closed; all closed
// endpoints together leave MaxLeftover fragments at most, and the oldest ones go first.
func TestLeftoversAreBounded(t *testing.T) {
	for _, c := range []struct{ most, visits, want int }{{0, 1, 4}, {0, 5, 4}, {10, 5, 10}, {-1, 3, 0}} {
		r := newRig(t, 2, 1, tagged.Config{MaxUnexpected: 4, MaxLeftover: c.most})
		w := r.workers[0]
		var last *tagged.Endpoint
		for i := range c.visits {
			a, b := r.visit(4, 5000, uint64(i))
			go func() { _ = b.Close(timeout(t, 0)) }()
			if err := a.Close(timeout(t, 20e9)); err != nil && !errors.Is(err, tagged.ErrPeerFailed) {
				t.Fatal(err)
			}
			last = a
		}
		s := w.Stats()
		if s.Unexpected != c.want || s.Leftover != c.want || int(s.Dropped) != 4*c.visits-c.want {
			t.Fatalf("%+v: %d messages are kept, %d of closed endpoints, %d dropped", c, s.Unexpected,
				s.Leftover, s.Dropped)
		}
		if c.want == 0 {
			continue
		}
		if info, found := w.Probe(0, tagged.Any); !found || info.Tag != uint64(c.visits-(c.want+3)/4) {
			t.Errorf("%+v: the oldest message that is left is of visit %d", c, info.Tag)
		}
		for range c.want {
			req := r.recv(w, 0, tagged.Any, make([]byte, 5000))
			if !req.Done() || req.Err() != nil {
				t.Fatalf("%+v: receive of what is left: done %v, %v", c, req.Done(), req.Err())
			}
			if info := req.Info(); info.Tag == uint64(c.visits-1) && info.Source != last {
				t.Errorf("%+v: the source of a message of the last visit is %v", c, info.Source)
			}
		}
		if s := w.Stats(); s.Unexpected != 0 || s.Leftover != 0 || s.UnexpectedBytes != 0 {
			t.Errorf("%+v: all is received, and is left: %+v", c, s)
		}
	}
}

// TestLeftoverKeepsNoBuffers: a message that an endpoint has left takes what the package's
// documentation says, and so none of the buffers of the endpoint that it came by.
func TestLeftoverKeepsNoBuffers(t *testing.T) {
	const (
		bufferSize = 8 << 10
		ofMessage  = 350     // bytes beside its block
		ofEndpoint = 4 << 10 // of one that was closed; among them some 0.8 KiB are the test's own
	)
	for _, c := range []struct{ length, block, buffers int }{
		{1, 64, 0}, {bufferSize - 100, bufferSize, 0}, {1, 64, 500},
	} {
		each := leftBehind(t, transport.Config{BufferSize: bufferSize, AMBuffers: c.buffers}, c.length)
		t.Logf("%+v: %d bytes for each message", c, each)
		if most := c.block + ofMessage + ofEndpoint; each > most {
			t.Errorf("%+v: a message keeps %d bytes of memory, at most %d are promised", c, each, most)
		}
	}
}

// leftBehind is how many bytes of memory a message of that length takes, in one fragment, whose
// endpoint was closed.
func leftBehind(t *testing.T, buffers transport.Config, length int) int {
	heap := func() int {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	cfg := impatient()
	cfg.MaxUnexpected = 200
	cfg.Transport.BufferSize, cfg.Transport.AMBuffers = buffers.BufferSize, buffers.AMBuffers
	r := newRig(t, 2, 1, cfg)
	visit := func() {
		a, b := r.visit(1, length, 1)
		_ = b.Abort()
		r.settle()
		_ = a.Close(timeout(t, 20e9)) // the peer is gone
		r.settle()
	}
	const visits = 60 // the NIC's own rings hold on to the last few queue pairs: go round them first
	for range visits {
		visit()
	}
	before := heap()
	for range visits {
		visit()
	}
	each := (heap() - before) / visits
	if r.workers[0].Stats().Unexpected != 2*visits {
		t.Fatal("messages are missing")
	}
	return each
}
