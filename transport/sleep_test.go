package transport

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs/soft"
)

// woken reports whether a sleeper was woken, and has it sleep again.
func (s *sleeper) woken() bool {
	select {
	case <-s.wake:
		return true
	default:
		return false
	}
}

// Each goroutine that sleeps is woken once by any number of calls, whoever else has come and gone;
// one that has left is not, and nothing of its sleep meets who sleeps next.
func TestSleepersComeAndGo(t *testing.T) {
	for leaves := range 3 {
		var s sleepers
		if s.any() {
			t.Error("somebody sleeps at the start")
		}
		var list []*sleeper
		for range 3 {
			list = append(list, s.enter())
			if !s.any() {
				t.Error("nobody sleeps")
			}
		}
		gone := list[leaves]
		gone.timer.Reset(time.Hour)
		s.leave(gone)
		if gone.timer.Stop() {
			t.Error("a timer runs for a goroutine that has left")
		}
		s.wake()
		s.wake()
		for i, x := range list {
			if got := x.woken(); got != (i != leaves) {
				t.Errorf("sleeper %d of which %d has left is woken: %v", i, leaves, got)
			}
			if x.woken() {
				t.Errorf("sleeper %d is woken twice", i)
			}
		}
		s.wake()
		for i, x := range list {
			if i != leaves {
				s.leave(x)
			}
		}
		if s.any() {
			t.Error("somebody sleeps at the end")
		}
		for range 4 {
			x := s.enter()
			if x.woken() {
				t.Error("a goroutine is woken as it enters")
			}
			if x.timer.Stop() {
				t.Error("a timer runs as a goroutine enters")
			}
		}
		if len(s.spare) != 0 {
			t.Errorf("%d sleepers are not used again", len(s.spare))
		}
	}
}

// The clock is looked at once in 128 rounds of progress.
func TestTheClockIsLookedAtNowAndThen(t *testing.T) {
	w := &Worker{cfg: Config{KeepAlive: -1}}
	for range 3 {
		for round := 1; round < keepAliveRounds; round++ {
			if w.probes.tick() {
				t.Fatalf("round %d looks at the clock", round)
			}
		}
		if !w.probes.tick() {
			t.Fatalf("round %d does not look at the clock", keepAliveRounds)
		}
		w.keepAlive()
	}
}

// Probes are due when their time has come, and again an interval later.
func TestProbesAreDueOnceAnInterval(t *testing.T) {
	var c probeClock
	if !c.due(time.Hour) || c.due(time.Hour) {
		t.Error("not due once")
	}
	if left := time.Until(c.at); left <= 59*time.Minute || left > time.Hour {
		t.Errorf("due again after %v, not an hour", left)
	}
}

// A goroutine that enters its sleep after the worker was closed, or has died, misses the call that
// wakes the sleepers, and does not sleep.
func TestNobodySleepsOnAClosedWorker(t *testing.T) {
	for name, end := range map[string]func(l *lifetime){
		"closed": func(l *lifetime) { l.stage.Store(lifeClosing) },
		"dead":   func(l *lifetime) { l.call(callbackEvent); l.die() },
	} {
		f, err := soft.New(soft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dom, err := ibverbx.NewDomain(f.Device(0))
		if err != nil {
			t.Fatal(err)
		}
		w, err := NewWorker(dom, Config{KeepAlive: -1})
		if err != nil {
			t.Fatal(err)
		}
		end(&w.life)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if w.sleepOrPoll(ctx, 0, func() bool { return false }); ctx.Err() != nil {
			t.Errorf("%s: a goroutine slept", name)
		}
		cancel()
		if err := w.free(); err != nil && !errors.Is(err, ErrWorkerDead) {
			t.Error(err)
		}
		if err := errors.Join(dom.Close(), f.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A goroutine that waits polls for as long as Config.Spin says, and then no more; where that is
// negative, not at all.
func TestSpinning(t *testing.T) {
	for _, limit := range []time.Duration{-1, 0} {
		var s spinner
		if s.more(limit) {
			t.Errorf("it polls once more with a limit of %v", limit)
		}
	}
	for _, limit := range []time.Duration{20 * time.Microsecond, 3 * time.Millisecond} {
		var s spinner
		begin := time.Now()
		polls := 0
		for s.more(limit) {
			if polls++; time.Since(begin) > 10*time.Second {
				t.Fatalf("it polls for ever with a limit of %v", limit)
			}
		}
		if took := time.Since(begin); took < limit || polls < 16 {
			t.Errorf("it polled for %v, %d times, with a limit of %v", took, polls, limit)
		}
		for range 100 {
			if s.more(time.Hour) {
				t.Fatal("it polls again, after it had decided to sleep")
			}
		}
	}
}
