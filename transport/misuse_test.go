package transport_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A completion that counts nothing is refused by the call that gets it: inside progress it would be
// counted below zero.
func TestCompletionsThatCountNothingAreRefused(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		var zero transport.Completion
		fired := transport.NewCompletion(1, nil)
		fired.Done(nil)
		for _, comp := range []*transport.Completion{&zero, fired} {
			_, put := l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, 8))
			_, get := l.a.GetBcopy(comp, make([]byte, 8), l.a.peer.At(0))
			am := l.a.AMZcopy(comp, 1, nil, l.a.mr.Slice(0, 8))
			add := l.a.FetchAdd(comp, nil, l.a.peer.At(0), 1)
			for call, err := range map[string]error{"put": put, "get": get, "am": am, "fetch add": add} {
				if !errors.Is(err, verbs.ErrInvalid) {
					t.Errorf("%s: %v", call, err)
				}
			}
		}
		if s := l.a.w.Stats(); s.BounceFree != s.BounceTotal || l.a.Stats().Outstanding != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Configurations that no queue pair can have, and no domain, are refused by name.
func TestImpossibleWorkers(t *testing.T) {
	w := newWorld(t, soft.Config{})
	dom, err := ibverbx.NewDomain(w.fabric.Device(0))
	must(t, err)
	w.domains = append(w.domains, dom)
	for name, cfg := range map[string]ibverbx.Config{
		"QPsPerDevice": {QPsPerDevice: -1}, "MaxSGE": {MaxSGE: -1}, "Credits": {Credits: -1},
		"MaxInline": {MaxInline: -1},
	} {
		if _, err := transport.NewWorker(dom, transport.Config{QP: cfg}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s -1: %v", name, err)
		}
	}
	if _, err := transport.NewWorker(nil, transport.Config{}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no domain: %v", err)
	}
}

// Close returns when its context ends, even while a callback holds progress up.
func TestCloseKeepsToItsContext(t *testing.T) {
	s := shapes()[0]
	block, blocked := make(chan struct{}), make(chan struct{})
	s.handle = func(*transport.Message) { close(blocked); <-block }
	l := newLink(t, s)
	must(t, l.b.w.Start())
	must(t, l.a.AMShort(1, nil, nil))
	<-blocked
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := l.b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	close(block)
}

// A call that is refused, or whose post the NIC refuses, returns no bytes and keeps no buffer.
func TestRefusedPackCallsHaveNoEffect(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		before := l.a.w.Stats()
		for name, call := range map[string]func(pack func([]byte) int) (int, error){
			"put": func(pack func([]byte) int) (int, error) { return l.a.PutBcopy(pack, l.a.peer.At(0)) },
			"am":  func(pack func([]byte) int) (int, error) { return l.a.AMBcopy(1, nil, pack) },
		} {
			if n, err := call(nil); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s without a pack function: %d, %v", name, n, err)
			}
			func() {
				defer func() { _ = recover() }()
				n, err := call(func([]byte) int { panic("pack") })
				t.Errorf("%s: %d, %v", name, n, err)
			}()
			if n, err := call(func([]byte) int { return -1 }); n > 0 || err == nil {
				t.Errorf("%s of -1 bytes: %d, %v", name, n, err)
			}
		}
		if after := l.a.w.Stats(); after.BounceFree != before.BounceFree || after.AMSent != before.AMSent ||
			after.Puts != before.Puts || l.a.Stats().OwnBuffers != 2 || l.a.Stats().Outstanding != 0 {
			t.Errorf("before %+v, after %+v", before, after)
		}
		for range 3 { // the buffers are as good as new
			l.send(l.a, []byte{1, 2, 3})
		}
		l.until("the messages", func() bool { return l.got == 3 })
	})
}

// What a single queue pair refuses for now is not sent: the call says so, and may be made again.
func TestRefusedForNowIsNotSent(t *testing.T) {
	s := shapes()[0]
	if !s.single() {
		t.Fatal("the first shape has several queue pairs")
	}
	l := newLink(t, s)
	data := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	for name, call := range map[string]func() error{
		"am short":  func() error { return l.a.AMShort(1, nil, data) },
		"am bcopy":  func() error { _, err := l.a.AMBcopy(1, nil, pack(data)); return err },
		"am zcopy":  func() error { return l.a.AMZcopy(nil, 1, nil, l.a.mr.Slice(0, 8)) },
		"put short": func() error { return l.a.PutShort(data, l.a.peer.At(0)) },
		"put bcopy": func() error { _, err := l.a.PutBcopy(pack(data), l.a.peer.At(0)); return err },
		"put zcopy": func() error {
			_, err := l.a.PutZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(0, 8))
			return err
		},
		"get bcopy": func() error {
			_, err := l.a.GetBcopy(nil, make([]byte, 8), l.a.peer.At(0))
			return err
		},
		"get zcopy": func() error {
			_, err := l.a.GetZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(0, 8))
			return err
		},
		"fetch add": func() error { return l.a.FetchAdd(nil, nil, l.a.peer.At(0), 1) },
	} {
		before, mine := l.a.w.Stats(), l.a.Stats()
		fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.RefuseSend})
		err := call()
		if after, now := l.a.w.Stats(), l.a.Stats(); !errors.Is(err, transport.ErrNoResource) ||
			after.SentBytes != before.SentBytes || after.BounceFree != before.BounceFree || now != mine {
			t.Errorf("%s: %v; before %+v, after %+v", name, err, mine, now)
		}
		fault.Remove()
		if err := call(); err != nil {
			t.Errorf("%s again: %v", name, err)
		}
		l.flushed(l.a)
	}
}

// Progress returns how much it did: whenever it ran a callback, that is not nothing.
func TestProgressCountsCallbacks(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		ran := 0
		s.handle = func(*transport.Message) { ran++ }
		l := newLink(t, s)
		for want := range 5 {
			l.send(l.a, nil)
			for ran <= want {
				l.a.w.Progress()
				if s.stepped {
					l.fabric.Step()
				}
				before := ran
				if n := l.b.w.Progress(); n < ran-before {
					t.Fatalf("%d messages were handled, and Progress did %d", ran-before, n)
				}
				runtime.Gosched()
			}
		}
	})
}

// An endpoint is aborted once, also while the first call's callbacks are still to come.
func TestAbortTwice(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
		must(t, l.a.Abort(nil))
		for range 2 {
			if err := l.a.Abort(nil); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("aborted twice: %v", err)
			}
			l.a.w.Progress()
		}
	})
}
