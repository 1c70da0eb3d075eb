package vqp_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// The status of a request if the peer does not answer.
var silentPeer = []verbs.Status{verbs.StatusRetryExcErr, verbs.StatusRespTimeoutErr}

// Its statuses if the link is down: rdma_rxe may find no route.
var deadLink = append(silentPeer[:2:2], verbs.StatusLocQPOpErr, verbs.StatusFatalErr)

// A receiver posts nothing, and the sender's RNR retries are limited. What needs a receive (a SEND,
// a notification of Spray, both on a single queue pair) fails with RNR_RETRY_EXC_ERR. DQPLB keeps
// notifications for late receives.
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
						a.host.rig.until("the sends", func() bool {
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

// busy keeps the queues of an end filled with writes and notifications.
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

// proceed posts the request that is due, after its receive if the other end works. It reports
// whether the request was accepted.
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

// works says whether an end accepts requests.
func (e *end) works() bool { return !e.closed && e.State() == verbs.StateRTS }

// busyUntil keeps both ends busy until done, which may take as long as the timeouts.
func busyUntil(a, b *end, what string, done func() bool) {
	a.tb().Helper()
	deadline := time.Now().Add(*waitFlag)
	a.host.rig.until(what, func() bool {
		if time.Now().After(deadline) {
			a.tb().Fatalf("%s: not within %v\n%s", what, *waitFlag, a.host.rig.describe())
		}
		for _, e := range []*end{a, b} {
			if e.works() {
				e.busy()
			}
		}
		return done()
	})
}

// underWay says whether many requests of both ends have completed.
func underWay(a, b *end) func() bool {
	from, back := a.sends.reported, b.sends.reported
	return func() bool { return a.sends.reported-from >= 40 && b.sends.reported-back >= 40 }
}

// hasty runs a test with ends that have short timeouts. Mostly it waits for them, so such tests and
// their shapes run in parallel, except on real links, which are those of all tests.
func hasty(t *testing.T, suitable func(*shape) bool, test func(t *testing.T, s *shape, a, b *end)) {
	if *devicesFlag == "" {
		t.Parallel()
	}
	for i := range shapes {
		if s := &shapes[i]; suitable(s) {
			t.Run(s.name, func(t *testing.T) {
				if *devicesFlag == "" {
					t.Parallel()
				}
				a, b := newRig(t, s).connectHasty(s.config(ibverbx.Config{FragmentSize: fragment}))
				test(t, s, a, b)
			})
		}
	}
}

// The peer's virtual queue pair is closed during traffic in both directions. It reports everything
// at once. At this end the first unanswered request fails with RETRY_EXC_ERR, and those after it
// are flushed. Then this end can be connected to a new peer.
func TestPeerCloses(t *testing.T) {
	hasty(t, func(*shape) bool { return true }, func(_ *testing.T, s *shape, a, b *end) {
		busyUntil(a, b, "traffic", underWay(a, b))
		a.mayFail = true
		b.close()
		busyUntil(a, b, "the failure", func() bool { return a.Err() != nil })
		a.stopped(silentPeer...)
		a.reset()
		cfg := s.config(ibverbx.Config{FragmentSize: fragment})
		cfg.Conn = over(b.host.rig.kind.patient, cfg.Conn)
		reconnect(a, b.host.newEnd(cfg))
	})
}

// The link of one end goes down during traffic in both directions. Both ends fail, lose nothing,
// and work again after a reset when the link is up.
func TestLinkDown(t *testing.T) {
	hasty(t, (*shape).wired, func(t *testing.T, _ *shape, a, b *end) {
		rig := a.host.rig
		nic := a.CQ().Devices()[0]
		busyUntil(a, b, "traffic", underWay(a, b))
		a.mayFail, b.mayFail = true, true
		rig.kind.setLink(t, nic, false)
		back := false
		t.Cleanup(func() {
			if !back {
				rig.kind.setLink(t, nic, true)
			}
		})
		busyUntil(a, b, "the failure of both", func() bool { return a.Err() != nil && b.Err() != nil })
		a.stopped(deadLink...)
		b.stopped(deadLink...)
		rig.kind.setLink(t, nic, true)
		back = true
		for _, dev := range rig.devices {
			rig.until("the ports", func() bool {
				port, err := dev.QueryPort(1)
				return err == nil && port.State == verbs.PortActive
			})
		}
		restart(a, b)
	})
}

// A reset during traffic in both directions reports everything. So does that of the other end.
func TestResetDuringTraffic(t *testing.T) {
	eachShape(t, ibverbx.Config{}, func(_ *testing.T, a, b *end) {
		for range 3 {
			busyUntil(a, b, "traffic", underWay(a, b))
			restart(a, b)
		}
	})
}
