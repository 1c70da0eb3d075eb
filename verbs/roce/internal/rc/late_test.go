package rc

import (
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// A Tick that comes late, since the process did not run for a while, is one timeout however long
// that was: what is sent again gets the time that it has to be answered.
func TestLateTickIsOneTimeout(t *testing.T) {
	n := newNetwork(t, 1, shape{timeout: 10, retries: 3})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 8))
	lost := true
	n.drop = func(int, *wire.Header) bool { return lost }
	n.flush(0)
	now := n.now + int64(time.Minute)
	a.q.Tick(now)
	if at := a.q.Deadline(); at <= now {
		t.Errorf("the next timeout is due %v before the first one was counted", time.Duration(now-at))
	} else if most := now + int64(verbs.AckTimeout(10)); at > most {
		t.Errorf("the next timeout is due %v after the first one, want %v", time.Duration(at-now),
			verbs.AckTimeout(10))
	}
	if got := a.q.Stats().Timeouts; got != 1 {
		t.Errorf("%d timeouts", got)
	}
	n.now, lost = now, false
	n.run()
	a.wantStatuses(success(1)...)
}

// A rate limit holds, and is reached, where timers come late by up to some ten milliseconds.
func TestLateTimersKeepTheRate(t *testing.T) {
	for _, late := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond} {
		const rate, size = 50e6, 4096
		var l limiter
		l.start(rate, 0)
		sent, now := 0, int64(0)
		for now < int64(time.Second) {
			for l.allows(now) {
				l.spend(size)
				sent += size
			}
			now = l.next(now) + int64(late)
		}
		if got := float64(sent) / (float64(now) / 1e9) / rate; got < 0.97 || got > 1.03 {
			t.Errorf("%v late: %.3f of the limit", late, got)
		}
	}
}

// A pause in which nothing is to be sent is no delay that is made up for: after it there is a burst
// of a millisecond at most, although the last packet took more than there was.
func TestAPauseGivesABurstOnly(t *testing.T) {
	const rate, size = 20_000_000, 4096
	n := newNetwork(t, 1, shape{mtu: verbs.MTU4096, rate: rate, timeout: 18})
	a, b := n.ends[0], n.ends[1]
	a.send(a.write(b, 1, 4*size))
	n.run()
	n.now += int64(time.Second)
	a.send(a.write(b, 2, 64*size))
	if got, most := len(a.transmit(n.now)), rate/1000/size+1; got > most {
		t.Errorf("%d packets leave at once, want %d at most", got, most)
	}
}
