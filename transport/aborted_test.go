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
// where nobody is probed, it would not find out otherwise. The message has a millisecond, for which
// a machine that is busy may be too late now and then.
func TestPeersAreToldOfAnAbort(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for how, abort := range map[string]func(e *end){
		"abort": func(e *end) { _ = e.Abort(nil) },
		"close that is cut short": func(e *end) {
			if err := e.Close(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		},
		"worker": func(e *end) { _ = e.w.Close() },
	} {
		told := func() bool {
			s := shapes()[1]
			s.cfg.KeepAlive = -1
			l := newLink(t, s)
			defer l.close()
			l.fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: 200 * time.Microsecond, Count: -1})
			must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0))) // Close would wait for it
			abort(l.a)
			for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; l.b.w.Progress() {
				if err := l.b.Err(); err != nil {
					return errors.Is(err, transport.ErrPeerAborted)
				}
			}
			return false
		}
		const enough, tries = 10, 100
		n := 0
		for i := 0; i < tries && n < enough; i++ {
			if told() {
				n++
			}
		}
		if n < enough {
			t.Errorf("%s: %d peers of %d are told", how, n, tries)
		}
	}
}
