package transport_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/transport"
)

// A peer that vanished is noticed even though nothing was on its way to it.
func TestKeepAliveNoticesAPeerThatVanished(t *testing.T) {
	for _, spin := range []time.Duration{-1, time.Hour} { // sleeping, and polling
		eachShape(t, func(t *testing.T, s setup) {
			var reported atomic.Int32
			s.cfg.Spin, s.cfg.KeepAlive = spin, time.Millisecond
			s.cfg.QP.Conn.Timeout, s.cfg.QP.Conn.RetryCount = 1, 1
			s.onError = func(_ *transport.Endpoint, err error) {
				if !errors.Is(err, transport.ErrPeerFailed) {
					t.Errorf("reported: %v", err)
				}
				reported.Add(1)
			}
			l := newLink(t, s)
			for _, nic := range l.b.nics {
				nic.Kill()
			}
			must(t, l.a.w.WaitFor(within(t), 0, func() bool { return reported.Load() == 1 }))
		})
	}
}

// An endpoint on which something travels is not probed; with KeepAlive off none is.
func TestKeepAliveIsForSilence(t *testing.T) {
	for _, every := range []time.Duration{0, -1} {
		s := shapes()[0]
		s.cfg.Spin, s.cfg.KeepAlive = time.Hour, every
		l := newLink(t, s)
		l.send(l.a, []byte("busy"))
		rounds := 0
		must(t, l.a.w.WaitFor(within(t), 0, func() bool { rounds++; return rounds > 5000 }))
		if n := l.a.w.Stats().Probes; n != 0 {
			t.Errorf("KeepAlive %v: %d probes within milliseconds", every, n)
		}
	}
}
