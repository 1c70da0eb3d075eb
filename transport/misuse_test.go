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
