package tagged_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// TestLatePeersAreNamed: a wait that its context ends says which peer has not done its part.
func TestLatePeersAreNamed(t *testing.T) {
	_, a, _ := pair(t, 1, tagged.Config{})
	send, err := a.Send(1, make([]byte, 100000))
	if err != nil {
		t.Fatal(err)
	}
	sync, err := a.SendSync(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	recv, err := a.Recv(1, tagged.Exact, make([]byte, 1))
	if err != nil {
		t.Fatal(err)
	}
	ctx := timeout(t, 1)
	_, received := a.RecvWait(ctx, 2, tagged.Exact, nil)
	for err, does := range map[error]string{
		send.Wait(ctx): "has not taken the message",
		sync.Wait(ctx): "has not taken the message",
		recv.Wait(ctx): "has sent no such message",
		received:       "has sent no such message",
	} {
		want := "context deadline exceeded: " + a.Name() + " " + does
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
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

// TestEndpointsBeyondTheWorker: a worker has as many endpoints as its transport.
func TestEndpointsBeyondTheWorker(t *testing.T) {
	cfg := impatient()
	cfg.Transport.MaxEndpoints = 1
	r := newRig(t, 1, 1, cfg)
	w := r.workers[0]
	first := r.endpoint(0, tagged.EndpointConfig{})
	if _, err := w.NewEndpoint(tagged.EndpointConfig{}); !errors.Is(err, transport.ErrNoRoom) {
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

// TestRefusedSend: what a NIC refuses permanently ends the endpoint and its sends. Over a single
// queue pair the call itself returns the error, and there is no request.
func TestRefusedSend(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, qps := range []int{1, 2} {
		cfg := impatient()
		cfg.Transport.QP.QPsPerDevice, cfg.Transport.KeepAlive = qps, 50*time.Millisecond
		r, a, b := pair(t, 1, cfg)
		r.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: r.fabric.Device(0), Count: -1,
			Err: verbs.ErrNotSupported})
		d := r.recv(b.Worker(), 1, tagged.Exact, make([]byte, 8))
		req, err := a.Send(1, make([]byte, 8))
		if qps == 1 && (req != nil || !errors.Is(err, verbs.ErrNotSupported)) {
			t.Errorf("over a single queue pair: %v, %v", req, err)
		}
		r.until(func() bool { return a.Err() != nil })
		r.done(req)
		if !errors.Is(a.Err(), verbs.ErrNotSupported) ||
			qps != 1 && !errors.Is(a.Err(), tagged.ErrPeerFailed) {
			t.Errorf("%d queue pairs: %v", qps, a.Err())
		}
		if s := a.Stats(); d.Done() || s.Queued != 0 {
			t.Errorf("a refused message has arrived, or %d are queued", s.Queued)
		}
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

// TestWorkerClosesOnce: closing a worker ends all requests, on both ends; a worker that is closed
// refuses everything, Close among it, in one line.
func TestWorkerClosesOnce(t *testing.T) {
	r, a, b := pair(t, 1, impatient())
	w := a.Worker()
	reqs := []*tagged.Request{r.send(a, 1, make([]byte, 100000)), r.recv(w, 1, tagged.Exact, make([]byte, 1))}
	theirs := r.send(b, 2, make([]byte, 100000))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for i, req := range reqs {
		if !req.Done() || !errors.Is(req.Err(), tagged.ErrClosed) {
			t.Errorf("request %d: %v, %v", i, req.Done(), req.Err())
		}
	}
	_, send := a.Send(1)
	_, recv := w.Recv(1, tagged.Exact)
	_, endpoint := w.NewEndpoint(tagged.EndpointConfig{})
	_, region := w.Register(make([]byte, 8))
	for what, err := range map[string]error{"close": w.Close(), "send": send, "receive": recv,
		"endpoint": endpoint, "region": region} {
		if !errors.Is(err, tagged.ErrClosed) || !strings.HasPrefix(err.Error(), "tagged: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := r.domains[0].Close(); err != nil {
		t.Error(err)
	}
	r.workers, r.domains = r.workers[1:], r.domains[1:]
	_, _ = b.Send(3, nil) // by this its NIC notices
	r.done(theirs)
	if !errors.Is(theirs.Err(), tagged.ErrPeerFailed) {
		t.Errorf("a send of the peer: %v", theirs.Err())
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

// TestCancelRace: a receive that is cancelled while its message arrives ends in exactly
// one way, and so does the message.
func TestCancelRace(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	for _, w := range r.workers {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
	}
	ctx := background(r)
	canceled := 0
	for i := range 300 {
		buf := []byte{0}
		d := r.recv(b.Worker(), 1, tagged.Exact, buf)
		result := make(chan bool)
		go func() { result <- d.Cancel() }()
		if err := a.SendWait(ctx, 1, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if <-result {
			canceled++
			if !errors.Is(d.Err(), tagged.ErrCanceled) || buf[0] != 0 {
				t.Fatal(d.Err(), buf)
			}
			if _, err := b.Worker().RecvWait(ctx, 1, tagged.Exact, buf); err != nil {
				t.Fatal(err)
			}
		} else if err := d.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if buf[0] != byte(i) {
			t.Fatalf("round %d: % x", i, buf)
		}
	}
	t.Logf("%d of 300 were cancelled", canceled)
}

// TestContexts: with a context that has ended nothing is sent, and what is there is received; a
// send that can no more be cancelled goes on.
func TestContexts(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var interrupted *tagged.InterruptedError
	for _, n := range []int{1, 50000} {
		if err := a.SendWait(over, 1, make([]byte, n)); !errors.Is(err, context.Canceled) ||
			errors.As(err, &interrupted) {
			t.Error(err)
		}
	}
	r.settle()
	if info, found := b.Worker().Probe(0, tagged.Any); found {
		t.Errorf("it was sent: %+v", info)
	}
	err := context.DeadlineExceeded
	for wait := time.Millisecond; errors.Is(err, context.DeadlineExceeded) && wait < time.Minute; wait *= 2 {
		// Not announced if a busy machine has let the time pass before.
		if err = a.SendWait(timeout(t, wait), 2, make([]byte, 50000)); errors.As(err, &interrupted) {
			break
		}
	}
	if interrupted == nil || interrupted.Req.Done() {
		t.Fatal(err)
	}
	d := r.recv(b.Worker(), 2, tagged.Exact, make([]byte, 50000))
	r.done(d, interrupted.Req)
	r.send(a, 3, []byte("x"))
	r.settle()
	_, err = b.Worker().RecvWait(over, 3, tagged.Exact, make([]byte, 8))
	if err := errors.Join(err, d.Wait(over)); err != nil {
		t.Error(err)
	}
}

// TestFree: a request that is freed before it is done goes on, and is given back when it is;
// freeing one twice panics.
func TestFree(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	buf := make([]byte, 8)
	r.recv(b.Worker(), 1, tagged.Exact, buf).Free()
	r.send(a, 1, []byte("freed"))
	r.until(func() bool { return b.Worker().Stats().SpareRequests == 1 })
	if string(buf[:5]) != "freed" {
		t.Errorf("%q", buf)
	}
	d := r.recv(b.Worker(), 1, tagged.Exact, buf)
	d.Cancel()
	d.Free()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	d.Free()
}

// TestWaits: WaitAny, WaitSome and WaitAll return what is done, skip what is nil, and leave what
// goes on as it is when their context ends.
func TestWaits(t *testing.T) {
	r, a, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	over, cancel := context.WithCancel(ctx)
	cancel()
	w := b.Worker()
	var reqs []*tagged.Request
	for tag := range uint64(5) {
		reqs = append(reqs, r.recv(w, tag, tagged.Exact, make([]byte, 1)))
	}
	if i, err := tagged.WaitAny(ctx, nil, nil); i != -1 || err != nil {
		t.Error(i, err)
	}
	if i, err := tagged.WaitAny(over, reqs...); i != -1 || !errors.Is(err, context.Canceled) {
		t.Error(i, err)
	}
	if done, err := tagged.WaitSome(over, nil, reqs...); len(done) != 0 || !errors.Is(err, context.Canceled) {
		t.Error(done, err)
	}
	var interrupted *tagged.InterruptedError
	if err := tagged.WaitAll(over, reqs...); !errors.As(err, &interrupted) || interrupted.Req != reqs[0] {
		t.Error(err)
	}
	r.send(a, 3, []byte("3"))
	i, err := tagged.WaitAny(ctx, reqs...)
	if i != 3 || err != nil || reqs[3].Info().Tag != 3 {
		t.Error(i, err)
	}
	reqs[3] = nil
	for _, tag := range []uint64{4, 1} {
		r.send(a, tag, []byte("too long"))
	}
	done := []int{-7}
	for len(done) < 3 {
		if done, err = tagged.WaitSome(ctx, done[:1], reqs...); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(done) != "[-7 1 4]" {
		t.Error(done)
	}
	reqs[2].Cancel()
	r.send(a, 0, []byte("0"))
	if err := tagged.WaitAll(ctx, reqs...); !errors.Is(err, tagged.ErrTruncated) ||
		!errors.Is(err, tagged.ErrCanceled) {
		t.Error(err)
	}
	other := r.recv(a.Worker(), 1, tagged.Exact)
	again := r.recv(w, 1, tagged.Exact)
	if _, err := tagged.WaitAny(ctx, other, again); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
}

// TestWaitAnyEndsWithACancel: a wait that sleeps notices a request that the program cancels.
func TestWaitAnyEndsWithACancel(t *testing.T) {
	r, _, b := pair(t, 1, tagged.Config{})
	ctx := background(r)
	d := r.recv(b.Worker(), 1, tagged.Exact)
	result := make(chan int)
	go func() {
		i, _ := tagged.WaitAny(ctx, nil, d)
		result <- i
	}()
	d.Cancel()
	if i := <-result; i != 1 {
		t.Error(i)
	}
}
