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
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// TestPeerFailsDuringClose: the close of an endpoint whose peer fails meanwhile returns why, and
// what had to wait ends with it.
func TestPeerFailsDuringClose(t *testing.T) {
	cfg := impatient()
	cfg.Transport.KeepAlive = 5 * time.Millisecond
	r := newRig(t, 2, 1, cfg)
	a, _ := r.connect(0, 1)
	req := r.send(a, 1, make([]byte, 100000)) // nobody receives it
	closed := make(chan error, 1)
	go func() { closed <- a.Close(background(r)) }()
	r.until(func() bool { _, err := a.Send(2, nil); return errors.Is(err, tagged.ErrClosed) })
	r.fabric.Device(1).Kill()
	err := <-closed
	if !errors.Is(err, tagged.ErrPeerFailed) {
		t.Errorf("close: %v", err)
	}
	if !req.Done() || !errors.Is(req.Err(), tagged.ErrPeerFailed) {
		t.Errorf("the send: %v, %v", req.Done(), req.Err())
	}
}

// TestNoRequest: a send that has nothing to wait for has no request, and all methods of a nil
// request are those of one which has succeeded.
func TestNoRequest(t *testing.T) {
	var r *tagged.Request
	if !r.Done() || r.Err() != nil || r.Info() != (tagged.Info{}) || r.Wait(context.Background()) != nil ||
		r.Cancel() {
		t.Error("a request that is none goes on")
	}
	r.Free()
	// A request that goes on has neither error nor message yet.
	g := newRig(t, 1, 1, tagged.Config{})
	d := g.recv(g.workers[0], 1, tagged.Exact, make([]byte, 1))
	if d.Done() || d.Err() != nil || d.Info() != (tagged.Info{}) {
		t.Errorf("%v, %v, %+v", d.Done(), d.Err(), d.Info())
	}
	err := d.Wait(timeout(t, 1))
	var interrupted *tagged.InterruptedError
	if !errors.As(err, &interrupted) || interrupted.Req != d || !errors.Is(err, context.DeadlineExceeded) ||
		!strings.HasPrefix(err.Error(), "tagged: context deadline exceeded: the request goes on") {
		t.Errorf("an interrupted wait: %v", err)
	}
	if !d.Cancel() || d.Cancel() || !errors.Is(d.Err(), tagged.ErrCanceled) {
		t.Errorf("cancelled: %v", d.Err())
	}
	d.Free()
}

// TestConnectRefusals: an endpoint connects once, and not any more once it is closed; a Connect
// that was refused can be tried again.
func TestConnectRefusals(t *testing.T) {
	r := newRig(t, 2, 1, impatient())
	a, b := r.endpoint(0, tagged.EndpointConfig{}), r.endpoint(1, tagged.EndpointConfig{})
	card, err := b.Card()
	if err != nil {
		t.Fatal(err)
	}
	bad := card
	bad.MaxUnexpected = 0
	if err := a.Connect(bad); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a card without a window: %v", err)
	}
	bad = card
	bad.Transport.QP.QPNums = bad.Transport.QP.QPNums[:1]
	if err := a.Connect(bad); !errors.Is(err, verbs.ErrInvalid) || a.Err() != nil {
		t.Errorf("a card of another shape: %v, then %v", err, a.Err())
	}
	if err := tagged.Connect(a, b); err != nil {
		t.Fatal(err)
	}
	if err := a.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "is connected") {
		t.Errorf("connected twice: %v", err)
	}
	c, d := r.endpoint(0, tagged.EndpointConfig{}), r.endpoint(1, tagged.EndpointConfig{})
	if err := c.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := tagged.Connect(c, d); err == nil {
		t.Error("an aborted endpoint was connected")
	}
	if err := tagged.Connect(d, c); err == nil {
		t.Error("an endpoint was connected to an aborted one")
	}
}

// TestSendsThatAreRefused: a send whose context has ended, or on an endpoint that has, has no
// effect.
func TestSendsThatAreRefused(t *testing.T) {
	r, a, b := pair(t, 1, impatient())
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.SendWait(ended, 1, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	r.settle()
	if info, found := b.Worker().Probe(0, tagged.Any); found {
		t.Errorf("it was sent: %+v", info)
	}
	if err := a.SendWait(background(r), 2, []byte("y")); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 1)
	if info, err := b.Worker().RecvWait(background(r), 2, tagged.Exact, buf); err != nil ||
		info.Length != 1 ||
		buf[0] != 'y' {
		t.Errorf("%+v, %v", info, err)
	}
	if err := a.Abort(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Send(1, nil); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("after Abort: %v", err)
	}
	if err := a.SendWait(background(r), 1, nil); !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("after Abort, waiting: %v", err)
	}
}

// TestEndpointsBeyondTheWorker: a worker has as many endpoints as its transport.
func TestEndpointsBeyondTheWorker(t *testing.T) {
	cfg := impatient()
	cfg.Transport.MaxEndpoints = 1
	r := newRig(t, 1, 1, cfg)
	w := r.workers[0]
	first := r.endpoint(0, tagged.EndpointConfig{})
	if _, err := w.NewEndpoint(tagged.EndpointConfig{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a second: %v", err)
	}
	if err := first.Abort(); err != nil {
		t.Fatal(err)
	}
	r.settle()
	if _, err := w.NewEndpoint(tagged.EndpointConfig{}); err != nil {
		t.Errorf("after the first was aborted: %v", err)
	}
}

// TestRefusedSendFailsTheEndpoint: what a NIC refuses permanently ends the endpoint and its sends.
func TestRefusedSendFailsTheEndpoint(t *testing.T) {
	r, a, b := pair(t, 1, impatient())
	r.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: r.fabric.Device(0), Count: -1,
		Err: verbs.ErrNotSupported})
	d := r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 8))
	req, err := a.Send(1, make([]byte, 8))
	r.until(func() bool { return a.Err() != nil })
	if err == nil {
		r.done(req)
	}
	if !errors.Is(a.Err(), verbs.ErrNotSupported) || !errors.Is(a.Err(), tagged.ErrPeerFailed) {
		t.Errorf("%v", a.Err())
	}
	if d.Done() {
		t.Error("a refused message has arrived")
	}
}

// TestAReadingEndsWithItsEndpoint: a receive of a message that is being read ends with the error of
// its endpoint, whichever read ends first and how; chunks that have come before do not count.
func TestAReadingEndsWithItsEndpoint(t *testing.T) {
	for _, c := range []struct {
		name string
		skip int // reads that succeed before
		fail func(r *rig, b *tagged.Endpoint)
		want error
	}{
		{"read refused", 2, func(r *rig, _ *tagged.Endpoint) {
			r.fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: r.fabric.Device(1), Count: 1,
				Match: isRead, Status: verbs.StatusRemAccessErr})
		}, verbs.StatusRemAccessErr.Err()},
		{"abort", 2, func(_ *rig, b *tagged.Endpoint) { _ = b.Abort() }, tagged.ErrCanceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := impatient()
			cfg.Chunk, cfg.Window = 1<<16, 4
			cfg.Transport.QP.QPsPerDevice = 1
			r, a, b := pair(t, 1, cfg)
			stall := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: r.fabric.Device(1), Skip: c.skip,
				Count: -1, Match: isRead})
			got := r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 1<<20))
			r.send(a, 1, make([]byte, 1<<20))
			r.until(func() bool { return stall.Hits() != 0 })
			c.fail(r, b)
			stall.Remove()
			r.done(got)
			if err := got.Err(); !errors.Is(err, c.want) || !errors.Is(err, b.Err()) {
				t.Errorf("the receive: %v; the endpoint: %v", err, b.Err())
			}
			if n := b.Stats().Reading; n != 0 {
				t.Errorf("%d messages are still being read", n)
			}
		})
	}
}

// TestAMessageThatWasReadIsReceived: a message all of which has come is received, though its
// endpoint ends before progress looks.
func TestAMessageThatWasReadIsReceived(t *testing.T) {
	cfg := impatient()
	cfg.EagerLimit, cfg.Chunk = 512, 1024
	cfg.Transport.QP.QPsPerDevice, cfg.Transport.KeepAlive = 1, -1
	r, a, b := pair(t, 1, cfg)
	stall := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: r.fabric.Device(1), Count: -1,
		Match: isRead})
	buf := make([]byte, 4096)
	got := r.recv(b.Worker(), 1, tagged.Exact, buf)
	r.send(a, 1, pattern(len(buf), 1))
	r.until(func() bool { return stall.Hits() != 0 })
	r.settle()
	var reads atomic.Int32
	r.fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: r.fabric.Device(1), Count: -1,
		Match: func(wr *verbs.SendWR) bool {
			if isRead(wr) {
				reads.Add(1) // runs as one with the read
			}
			return false
		}})
	stall.Remove()
	for reads.Load() != 3 { // and the one that was stalled
		runtime.Gosched()
	}
	if err := b.Abort(); err != nil {
		t.Fatal(err)
	}
	r.done(got)
	if err := got.Err(); err != nil || !bytes.Equal(buf, pattern(len(buf), 1)) {
		t.Errorf("the receive: %v", err)
	}
}

// isRead reports whether a request is a read.
func isRead(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpRDMARead }

// TestWorkerClosesOnce: a worker that is closed refuses everything, Close among it, in one line.
func TestWorkerClosesOnce(t *testing.T) {
	r := newRig(t, 1, 1, tagged.Config{})
	w := r.workers[0]
	d := r.recv(w, 1, tagged.Exact, make([]byte, 1))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if !d.Done() || !errors.Is(d.Err(), tagged.ErrClosed) {
		t.Errorf("a receive: %v, %v", d.Done(), d.Err())
	}
	_, recv := w.Recv(1, tagged.Exact)
	_, endpoint := w.NewEndpoint(tagged.EndpointConfig{})
	_, region := w.Register(make([]byte, 8))
	for what, err := range map[string]error{"close": w.Close(), "receive": recv, "endpoint": endpoint,
		"region": region} {
		if !errors.Is(err, tagged.ErrClosed) || !strings.HasPrefix(err.Error(), "tagged: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := r.domains[0].Close(); err != nil {
		t.Error(err)
	}
	r.workers = nil
}

// TestRefusedSendReturnsItsError: over a single queue pair the call itself returns what the NIC
// refuses permanently, and there is no request then.
func TestRefusedSendReturnsItsError(t *testing.T) {
	cfg := impatient()
	cfg.Transport.QP.QPsPerDevice = 1
	r, a, _ := pair(t, 1, cfg)
	r.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: r.fabric.Device(0), Count: -1,
		Err: verbs.ErrDeviceGone})
	if req, err := a.Send(1, []byte("x")); req != nil || !errors.Is(err, verbs.ErrDeviceGone) {
		t.Errorf("%v, %v", req, err)
	}
	if s := a.Stats(); s.Queued != 0 {
		t.Errorf("%d sends are queued", s.Queued)
	}
}
