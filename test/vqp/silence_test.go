package vqp_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// Statuses with which a request ends whose peer does not answer.
var silentPeer = []verbs.Status{verbs.StatusRetryExcErr, verbs.StatusRespTimeoutErr}

// Statuses with which it ends when the link is down: rdma_rxe does not even find a way out.
var deadLink = append(silentPeer[:2:2], verbs.StatusLocQPOpErr, verbs.StatusFatalErr)

// A receiver that posts nothing, and a sender that does not wait for ever. What takes a receive of
// its own, a SEND, a notification of Spray, all of a single queue pair, ends with
// RNR_RETRY_EXC_ERR. DQPLB keeps notifications for receives that come late.
func TestReceiverThatPostsNothing(t *testing.T) {
	for name, make := range map[string]func(*end) request{
		"WRITE_WITH_IMM": func(e *end) request { return e.writeImm(5 * fragment) },
		"SEND":           func(e *end) request { return e.message(100) },
	} {
		t.Run(name, func(t *testing.T) {
			eachShape(t, ibverbx.Config{Conn: ibverbx.ConnConfig{RNRRetry: 2}},
				func(t *testing.T, a, b *end) {
					r := make(a)
					if !a.single() && a.Scheme() == ibverbx.DQPLB && !r.Opcode.IsSend() {
						a.send(r, a.write(8))
						a.host.lab.until("the sends", func() bool {
							return len(a.sends.open) == 0 &&
								b.Stats().Banked != 0
						})
						b.expect(&r)
						settle(a, b)
						return
					}
					r.never = true
					a.mayFail = true
					a.send(r, a.write(fragment), a.read(8))
					a.stopped(verbs.StatusRNRRetryExcErr)
					if b.Err() != nil {
						t.Errorf("the receiver has done nothing wrong: %v", b.Err())
					}
					restart(a, b)
				})
		})
	}
}

// busy keeps an end's queues filled with writes and notifications, as far as they take them.
func (e *end) busy() {
	const window = 24
	for e.Err() == nil && len(e.sends.open) < window {
		if e.due == nil {
			kind, n := e.write, uint64(3*fragment)
			if e.mem.rng.IntN(4) == 0 {
				kind, n = e.writeImm, 2*fragment+1
			}
			r := kind(n)
			e.due, e.announced = &r, false
		}
		if !e.proceed() {
			return
		}
	}
}

// proceed posts the request that is due, after its receive if somebody is there to post one. It
// says whether the queues took it.
func (e *end) proceed() bool {
	if !e.announced && e.other.works() && !e.other.tryExpect(e.due) {
		return false
	}
	e.announced = true
	if e.trySend(*e.due) == 0 {
		return false
	}
	e.due = nil
	return true
}

// works says whether an end takes requests.
func (e *end) works() bool { return !e.closed && e.State() == verbs.StateRTS }

// busyUntil keeps both ends busy until done. Between two silent ends that takes a while, but not
// for ever.
func busyUntil(a, b *end, what string, done func() bool) {
	a.tb().Helper()
	deadline := time.Now().Add(*waitFlag)
	a.host.lab.until(what, func() bool {
		if time.Now().After(deadline) {
			a.tb().Fatalf("%s: not within %v\n%s", what, *waitFlag, a.host.lab.story())
		}
		for _, e := range []*end{a, b} {
			if e.works() {
				e.busy()
			}
		}
		return done()
	})
}

// underWay says whether a good part of both ends' traffic has come through.
func underWay(a, b *end) func() bool {
	from, back := a.sends.reported, b.sends.reported
	return func() bool { return a.sends.reported-from >= 40 && b.sends.reported-back >= 40 }
}

// hasty runs a test with ends that soon give up on a silent peer.
func hasty(t *testing.T, suitable func(*shape) bool, test func(t *testing.T, s *shape, a, b *end)) {
	for i := range shapes {
		if s := &shapes[i]; suitable(s) {
			t.Run(s.name, func(t *testing.T) {
				a, b := newLab(t, s).connectHastily(s.config(ibverbx.Config{MaxMsgSize: fragment}))
				test(t, s, a, b)
			})
		}
	}
}

// The peer's virtual queue pair is closed in the middle of traffic both ways. There it reports
// everything at once; here the first request that nobody answers ends with RETRY_EXC_ERR, and what
// comes behind it is flushed. A new peer can take the place.
func TestPeerCloses(t *testing.T) {
	hasty(t, func(*shape) bool { return true }, func(_ *testing.T, s *shape, a, b *end) {
		busyUntil(a, b, "traffic", underWay(a, b))
		a.mayFail = true
		b.close()
		busyUntil(a, b, "the failure", func() bool { return a.Err() != nil })
		a.stopped(silentPeer...)
		a.reset()
		cfg := s.config(ibverbx.Config{MaxMsgSize: fragment})
		cfg.Conn = over(b.host.lab.kind.patient, cfg.Conn)
		reunite(a, b.host.newEnd(cfg))
	})
}

// One end's link goes down in the middle of traffic both ways: both ends fail, lose nothing, and
// work again after a reset when the link is back.
func TestLinkDown(t *testing.T) {
	hasty(t, (*shape).wired, func(t *testing.T, _ *shape, a, b *end) {
		lab := a.host.lab
		nic := a.CQ().Devices()[0]
		busyUntil(a, b, "traffic", underWay(a, b))
		a.mayFail, b.mayFail = true, true
		lab.kind.setLink(t, nic, false)
		back := false
		t.Cleanup(func() {
			if !back {
				lab.kind.setLink(t, nic, true)
			}
		})
		busyUntil(a, b, "the failure of both", func() bool { return a.Err() != nil && b.Err() != nil })
		a.stopped(deadLink...)
		b.stopped(deadLink...)
		lab.kind.setLink(t, nic, true)
		back = true
		for _, dev := range lab.devices {
			lab.until("the ports", func() bool {
				port, err := dev.QueryPort(1)
				return err == nil && port.State == verbs.PortActive
			})
		}
		restart(a, b)
	})
}

// A reset in the middle of traffic both ways reports everything; so does the other end's.
func TestResetInTheMiddle(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		for range 3 {
			busyUntil(a, b, "traffic", underWay(a, b))
			restart(a, b)
		}
	})
}
