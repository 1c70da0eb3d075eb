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

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
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

// TestHalfAMessageOfAFailedPeer: a message that has begun to arrive ends with its peer. The receive
// that had matched it has the peer's error, one that comes later, too, and a message that had
// arrived whole can still be received.
func TestHalfAMessageOfAFailedPeer(t *testing.T) {
	begin := message{first, head(24, 0, 0, 0, 1, 10), []byte("half")}
	for _, c := range []struct {
		what   string
		before []byte // the buffer of a receive that is posted before; nil: none
	}{{"matched", make([]byte, 10)}, {"unexpected", nil}, {"truncated", make([]byte, 9)}} {
		t.Run(c.what, func(t *testing.T) {
			h := newHostile(t)
			w := h.workers[0]
			h.post(eager, head(16, 0, 0, 0, 2), []byte("whole"))
			var r *tagged.Request
			if c.before != nil {
				r = h.recv(w, 1, tagged.Exact, c.before)
			}
			h.post(begin.kind, begin.header, begin.payload)
			h.until(func() bool {
				return w.Stats().CameUnexpected == 2 || r != nil &&
					string(c.before[:4]) == "half" || r != nil && r.Done()
			})
			switch c.what {
			case "unexpected":
				if info, found := w.Probe(1, tagged.Exact); !found || info.Length != 10 {
					t.Errorf("the beginning: %v, %+v", found, info)
				}
			case "truncated":
				if !r.Done() || !errors.Is(r.Err(), tagged.ErrTruncated) {
					t.Errorf("a receive that is too short: %v, %v", r.Done(), r.Err())
				}
			case "matched":
				if r.Done() {
					t.Error("done with half a message")
				}
			}
			h.post(more, head(16, 0, 0, 0, 3), []byte("x")) // at another place: the peer fails
			h.until(func() bool { return h.errors == 1 })
			if c.what == "matched" && (!r.Done() || !errors.Is(r.Err(), tagged.ErrProtocol)) {
				t.Errorf("the receive that had matched: %v, %v", r.Done(), r.Err())
			}
			if c.what == "unexpected" {
				late := h.recv(w, 1, tagged.Exact, make([]byte, 10))
				if !late.Done() || !errors.Is(late.Err(), tagged.ErrProtocol) {
					t.Errorf("a receive that matches it now: %v, %v", late.Done(), late.Err())
				}
			}
			if _, found := w.Probe(1, tagged.Exact); found {
				t.Error("the beginning is still there")
			}
			whole := make([]byte, 5)
			if r := h.recv(w, 2, tagged.Exact, whole); !r.Done() || r.Err() != nil ||
				string(whole) != "whole" {
				t.Errorf("the message that had arrived: %v, %v, %q", r.Done(), r.Err(), whole)
			}
			h.checkGood()
		})
	}
}

// TestFragmentsOfADroppedMessage: what follows a message that its receive was too short for is
// dropped, and the places of all fragments go back.
func TestFragmentsOfADroppedMessage(t *testing.T) {
	h := newHostile(t)
	w := h.workers[0]
	for range 5 { // more places than the window has
		r := h.recv(w, 1, tagged.Exact, make([]byte, 2))
		h.post(first, head(24, 0, 0, 0, 1, 3), []byte("a"))
		h.post(more, head(16, 0, 0, 0, 1), []byte("b"))
		h.post(more, head(16, 0, 0, 0, 2), []byte("c"))
		h.done(r)
		if !errors.Is(r.Err(), tagged.ErrTruncated) {
			t.Fatal(r.Err())
		}
		h.settle()
		buf := make([]byte, 1)
		r = h.recv(w, 2, tagged.Exact, buf)
		h.post(eager, head(16, 0, 0, 0, 2), []byte("d"))
		h.done(r)
		if r.Err() != nil || buf[0] != 'd' {
			t.Fatalf("%v, %q", r.Err(), buf)
		}
	}
	if err := h.victim.Err(); err != nil || h.errors != 0 {
		t.Errorf("%v", err)
	}
	h.checkGood()
}

// TestBadAnnouncementWhileSendsWait: memory that the peer cannot have ends the endpoint at once,
// while its sends wait for credits of the transport.
func TestBadAnnouncementWhileSendsWait(t *testing.T) {
	h := newHostile(t)
	w := h.workers[0]
	var kept []*transport.Message
	h.receive = func(m *transport.Message) { m.Keep(); kept = append(kept, m) }
	// A notice and seven sends take the eight credits; the eighth send has a place and no credit.
	d := h.recv(w, 9, tagged.Exact, make([]byte, 1))
	h.post(eager, head(16, 0, 1, 3, 9), []byte("x"))
	h.done(d)
	h.until(func() bool { h.raw.Worker().Progress(); return len(kept) == 1 })
	var sends []*tagged.Request
	for i := range 8 {
		if r := h.send(h.victim, 5, []byte("y")); i == 7 {
			sends = append(sends, r)
		}
	}
	h.until(func() bool { h.raw.Worker().Progress(); return len(kept) == 8 })
	if sends[0] == nil || sends[0].Done() {
		t.Fatal("a send went out without a credit")
	}
	r := h.recv(w, 1, tagged.Exact, make([]byte, 100))
	nowhere := ibverbx.RemoteSegment{Addr: 64, Length: 100,
		Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{40: 1})}.AppendBinary(nil)
	h.post(announce, head(24, 0, 1, 7, 1, 100), nowhere)
	h.until(func() bool { return h.errors == 1 })
	for _, req := range append(sends, r) {
		h.done(req)
		if !errors.Is(req.Err(), tagged.ErrProtocol) {
			t.Errorf("a request of the endpoint: %v", req.Err())
		}
	}
	if err := h.victim.Err(); !errors.Is(err, tagged.ErrProtocol) || !errors.Is(err, ibverbx.ErrNoKey) {
		t.Errorf("%v", err)
	}
	for _, m := range kept {
		m.Release()
	}
	h.checkGood()
}
