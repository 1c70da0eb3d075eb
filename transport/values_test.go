package transport_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// refusedCalls makes every call that returns a value beside its error, and demands the error and
// the zero value.
func refusedCalls(t *testing.T, when string, e *end, want error) {
	t.Helper()
	remote, local := e.peer.At(0), e.mr.Slice(0, 8)
	for call, f := range map[string]func() (any, error){
		"put bcopy": func() (any, error) { return zeroOr(e.PutBcopy(pack(make([]byte, 8)), remote)) },
		"am bcopy":  func() (any, error) { return zeroOr(e.AMBcopy(1, nil, pack(make([]byte, 8)))) },
		"put zcopy": func() (any, error) { return zeroOr(e.PutZcopy(nil, remote, local)) },
		"get zcopy": func() (any, error) { return zeroOr(e.GetZcopy(nil, remote, local)) },
		"get bcopy": func() (any, error) { return zeroOr(e.GetBcopy(nil, make([]byte, 8), remote)) },
	} {
		if v, err := f(); v != nil || !errors.Is(err, want) {
			t.Errorf("%s: %s: %v beside error %v, want nothing beside %v", when, call, v, err, want)
		}
	}
}

// zeroOr is nil for the zero value, and the value otherwise.
func zeroOr[T comparable](v T, err error) (any, error) {
	var zero T
	if v == zero {
		return nil, err
	}
	return v, err
}

// A call that is refused, for whatever reason, says that it has done nothing: no bytes, and not
// done.
func TestRefusedCallsReturnNoValue(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		fresh := *l.a
		fresh.Endpoint = newEndpoint(t, l.a.w, transport.EndpointConfig{})
		refusedCalls(t, "not connected", &fresh, transport.ErrNotConnected)
		if done, err := fresh.StartFlush(transport.FlushLocal, nil); done || err == nil {
			t.Errorf("flush: %v, %v", done, err)
		}
		if s.single() { // others keep what a NIC refuses, and try again
			refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.a.nics[0], Count: -1})
			refusedCalls(t, "the NIC refuses for now", l.a, transport.ErrNoResource)
			refusal.Remove()
			l.quiet()
		}
		full := *l.a
		full.fill(t)
		refusedCalls(t, "no room", &full, transport.ErrNoResource)
		if done, err := full.StartFlush(transport.FlushLocal, nil); done || err != transport.ErrNoResource {
			t.Errorf("flush: %v, %v", done, err)
		}
		l.flushed(l.a)
		if n, err := l.a.PutBcopy(nil, l.a.peer.At(0)); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("put bcopy without a function: %d, %v", n, err)
		}
		if n, err := l.a.AMBcopy(1, nil, nil); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("am bcopy without a function: %d, %v", n, err)
		}
		tooMany := func(dst []byte) int { return len(dst) + 1 }
		if n, err := l.a.PutBcopy(tooMany, l.a.peer.At(0)); n != 0 || !errors.Is(err, transport.ErrTooLong) {
			t.Errorf("put bcopy of more than there is room: %d, %v", n, err)
		}
		if done, err := l.a.StartFlush(transport.FlushRemote+1, nil); done || err == nil {
			t.Errorf("unknown flush: %v, %v", done, err)
		}
		var nowhere ibverbx.RemoteSegment // on a NIC that the peer has not registered it with
		if done, err := l.a.PutZcopy(nil, nowhere, l.a.mr.Slice(0, 8)); done || err == nil {
			t.Errorf("put to nowhere: %v, %v", done, err)
		}
		must(t, l.a.Abort(nil))
		refusedCalls(t, "aborted", l.a, transport.ErrCanceled)
		must(t, fresh.Abort(nil))
		l.until("the release", func() bool { return l.a.w.Stats().Endpoints == 0 })
		if l.a.Stage() != "released" || fresh.Stage() != "released" {
			t.Errorf("%s and %s: both are released", l.a.Stage(), fresh.Stage())
		}
		refusedCalls(t, "released", l.a, transport.ErrCanceled)
	})
}

// A goroutine that sleeps until the NICs have an event is woken by a send that a NIC refuses for
// now: no event says when it takes work again.
func TestARefusedSendWakesASleeper(t *testing.T) {
	s := shapes()[0]
	s.cfg.Spin, s.cfg.KeepAlive = -1, -1
	ready := false
	s.onReady = func(*transport.Endpoint) { ready = true }
	l := newLink(t, s)
	l.quiet()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- l.a.w.WaitFor(ctx, 0, func() bool { return ready }) }()
	sleeping(t, l.a.w, 1)
	time.Sleep(20 * time.Millisecond) // it polls once more before it sleeps
	refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.a.nics[0], Count: 1})
	if err := l.a.NotifyReady().AMShort(1, nil, nil); err != transport.ErrNoResource {
		t.Errorf("%v, with %d refusals", err, refusal.Hits())
	}
	if err := errors.Join(<-ended, ctx.Err()); err != nil {
		t.Errorf("OnReady is not called in time: %v", err) // the end of ctx wakes it, too
	}
}

// A completion that one worker alone waits for costs nothing until the NICs have an event: the
// goroutine sleeps once.
func TestAWaitInOneWorkerSleepsUntilAnEvent(t *testing.T) {
	w, dom, f := unreliableNICs(t, 1)
	worker, err := transport.NewWorker(dom, transport.Config{Spin: -1, KeepAlive: -1})
	must(t, err)
	w.workers = append(w.workers, worker)
	f.N, f.Only = 0, "arm"
	comp := transport.NewCompletion(1, nil)
	for range 2 {
		f.N = 0
		if err := worker.Wait(shortly(t), comp); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if f.N != 1 {
			t.Errorf("it has gone to sleep %d times within 50 ms", f.N)
		}
	}
}

// shortly is a context that ends in 50 ms.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}
