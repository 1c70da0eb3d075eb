package transport_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// Whatever aborts an endpoint, the peer is told, although the message that says so takes its time:
// where nobody is probed, it would not find out otherwise.
func TestPeersAreToldOfAnAbort(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	shut := func(e *end) {
		if err := e.Close(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	for _, c := range []struct {
		how   string
		abort func(e *end)
		busy  bool // a put is outstanding; Close waits for it before it says goodbye
		told  error
	}{
		{"abort", func(e *end) { _ = e.Abort(nil) }, true, transport.ErrPeerAborted},
		{"worker", func(e *end) { _ = e.w.Close() }, true, transport.ErrPeerAborted},
		{"close that is cut short", shut, true, transport.ErrPeerAborted},
		{"close that is cut short behind its goodbye", shut, false, transport.ErrPeerClosed},
	} {
		t.Run(c.how, func(t *testing.T) {
			s := shapes()[1]
			s.cfg.KeepAlive = -1
			l := newLink(t, s)
			l.a.w.SetAbortPatience(patience) // a busy machine may be late by more than the usual
			slow := l.fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: 30 * time.Millisecond, Count: -1})
			defer slow.Remove()
			if c.busy {
				must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0)))
			}
			c.abort(l.a)
			l.until("the peer is told", func() bool { return l.b.Err() != nil })
			if err := l.b.Err(); !errors.Is(err, c.told) {
				t.Errorf("%v", err)
			}
		})
	}
}
