package shmem

import (
	"testing"
	"testing/synctest"
	"time"
)

// lonePE is the part of a PE that waits look at.
func lonePE(cfg Config) *PE {
	l := newLayout(1)
	p := &PE{cfg: cfg.withDefaults(), layout: l, heap: make([]byte, l.user), sleepStep: defaultSleepStep}
	p.peers = make([]peer, 1)
	p.peers[0].pe = p
	return p
}

// look lets a PE that waits look at its heap until it wants to sleep for longer, but n times at
// most, with a pause after each, and returns how often it did.
func look(t *testing.T, v *watcher, n int, pause time.Duration) (looks int) {
	t.Helper()
	for looks = 1; !v.over() && looks < n; looks++ {
		time.Sleep(pause)
	}
	if v.err != nil {
		t.Fatal(v.err)
	}
	return looks
}

// loneCall is a collective call that waits for nobody.
func loneCall(p *PE) *Request {
	p.world = newWorldTeam(p)
	return &Request{pe: p, team: p.world, lines: make([]line, 1)}
}

// A PE that waits for a word sleeps for Step between looks, after twenty of them twice as long, and
// so on, up to a millisecond. In a collective call it does so once, asks to be woken, and sleeps
// long.
func TestHowLongAWaitSleeps(t *testing.T) {
	const us = time.Microsecond
	type change struct{ after, step time.Duration } // after the one before
	for _, c := range []struct {
		step       time.Duration
		collective bool
		want       []change
	}{
		{0, false, []change{{1000 * us, 100 * us}, {1000 * us, 200 * us}, {2000 * us, 400 * us},
			{4000 * us, 800 * us}, {8000 * us, 1000 * us}}},
		{500 * us, false, []change{{10000 * us, 1000 * us}}},
		{0, true, []change{{1000 * us, 100 * us}, {1000 * us, 20000 * us}}},
		{15000 * us, true, []change{{300000 * us, 30000 * us}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := watcher{p: lonePE(Config{Step: c.step}), ctx: t.Context()}
			v.step = v.p.cfg.Step
			if c.collective {
				v.r = loneCall(v.p)
			}
			pause := v.step / 50
			for _, want := range c.want {
				start := time.Now()
				look(t, &v, 100000, pause)
				// the clock is read at every 16th look
				after := time.Since(start)
				if v.step != want.step || after < want.after || after > want.after+16*pause {
					t.Errorf("collective %v: it sleeps for %v after %v, want %v after %v", c.collective,
						v.step, after, want.step, want.after)
				}
			}
			if look(t, &v, 10000, v.step/10) != 10000 {
				t.Errorf("collective %v: in the end it sleeps for %v", c.collective, v.step)
			}
		})
	}
}

// A PE that sleeps in a collective call, until others wake it, looks around each time that it wakes
// by itself, and not more often.
func TestASleeperLooksAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := watcher{p: lonePE(Config{}), ctx: t.Context()}
		v.r = loneCall(v.p)
		v.step = v.p.cfg.Step
		for v.step != v.p.sleepStep {
			look(t, &v, 10000, time.Microsecond)
		}
		time.Sleep(time.Second)
		for range 5 {
			before := v.checks
			look(t, &v, 3, 0) // the first of them looks around, as its step has passed
			if v.checks != before+1 {
				t.Errorf("it looked around %d times in a step", v.checks-before)
			}
			time.Sleep(v.p.sleepStep + 1)
		}
	})
}

// A program with a scheduler of its own has its own time: a PE then counts its looks.
func TestAWaitWithoutAClock(t *testing.T) {
	cfg := Config{}
	cfg.Transport.Idle = func() {}
	v := watcher{p: lonePE(cfg), ctx: t.Context(), step: time.Millisecond / 4}
	for _, want := range []time.Duration{time.Millisecond / 2, time.Millisecond} {
		if n := look(t, &v, 1001, 0); n != 1000 || v.step != want {
			t.Errorf("after %d looks steps of %v, want %v after 1000", n, v.step, want)
		}
	}
	if n := look(t, &v, 5000, 0); n != 5000 || v.checks != 7 {
		t.Errorf("it has looked around %d times in 7000 looks", v.checks)
	}
}
