package ibverbx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/verbs"
)

// What a line accepts and shows in each of its states.
func TestLineInEachState(t *testing.T) {
	failure := func() *FailedError { return noRequest(verbs.StatusRetryExcErr) }
	connected := func(l *line) { l.state = verbs.StateRTS }
	for _, c := range []struct {
		name    string
		steps   func(l *line)
		canSend error
		canRecv error
		shown   verbs.QPState
		mayPost bool // receives and credits
		flushed bool // a flushed request is no failure
	}{
		{
			name:    "reset",
			steps:   func(*line) {},
			canSend: ErrNotConnected, canRecv: ErrNotConnected, shown: verbs.StateReset, mayPost: true,
		},
		{
			name:    "init",
			steps:   func(l *line) { l.state = verbs.StateInit },
			canSend: ErrNotConnected, canRecv: nil, shown: verbs.StateInit, mayPost: true,
		},
		{
			name:    "connected",
			steps:   connected,
			canSend: nil, canRecv: nil, shown: verbs.StateRTS, mayPost: true,
		},
		{
			name:    "failed",
			steps:   func(l *line) { connected(l); l.stop(3); l.fail(3, failure()) },
			canSend: ErrFailed, canRecv: ErrFailed, shown: verbs.StateErr, mayPost: true,
		},
		{
			name:    "failed and dead",
			steps:   func(l *line) { connected(l); l.fail(0, failure()); l.dead = true },
			canSend: ErrFailed, canRecv: ErrFailed, shown: verbs.StateErr, mayPost: false,
		},
		{
			name:    "drain awaits sends",
			steps:   func(l *line) { connected(l); l.drain() },
			canSend: ErrDraining, canRecv: ErrDraining, shown: verbs.StateSQD, mayPost: true,
		},
		{
			name:    "drain flushes receives",
			steps:   func(l *line) { connected(l); l.drain(); l.sendsDrained() },
			canSend: ErrDraining, canRecv: ErrDraining, shown: verbs.StateErr, flushed: true,
		},
		{
			name:    "drain again while it flushes",
			steps:   func(l *line) { connected(l); l.drain(); l.sendsDrained(); l.drain() },
			canSend: ErrDraining, canRecv: ErrDraining, shown: verbs.StateErr, flushed: true,
		},
		{
			name:    "failed while it drains",
			steps:   func(l *line) { connected(l); l.drain(); l.fail(0, failure()) },
			canSend: ErrFailed, canRecv: ErrFailed, shown: verbs.StateErr, mayPost: true,
		},
		{
			name:    "reset flushes",
			steps:   func(l *line) { connected(l); l.flushing() },
			canSend: ErrDraining, canRecv: ErrDraining, shown: verbs.StateRTS, flushed: true,
		},
		{
			name:    "reset failed",
			steps:   func(l *line) { connected(l); l.flushing(); l.fail(0, failure()); l.resetFailed() },
			canSend: ErrFailed, canRecv: ErrFailed, shown: verbs.StateErr, flushed: true,
		},
		{
			name:    "closed",
			steps:   func(l *line) { connected(l); l.close() },
			canSend: ErrClosed, canRecv: ErrClosed, shown: verbs.StateErr,
		},
		{
			name:    "closed after a failure",
			steps:   func(l *line) { connected(l); l.fail(0, failure()); l.close() },
			canSend: ErrClosed, canRecv: ErrClosed, shown: verbs.StateErr,
		},
		{
			name:    "fresh after a failure",
			steps:   func(l *line) { connected(l); l.stop(3); l.fail(3, failure()); *l = newLine(time.Now) },
			canSend: ErrNotConnected, canRecv: ErrNotConnected, shown: verbs.StateReset, mayPost: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLine(time.Now)
			c.steps(&l)
			l.check()
			if err := l.canSend(); !errors.Is(err, c.canSend) || (err == nil) != (c.canSend == nil) {
				t.Errorf("canSend: %v, want %v", err, c.canSend)
			}
			if err := l.canRecv(); !errors.Is(err, c.canRecv) || (err == nil) != (c.canRecv == nil) {
				t.Errorf("canRecv: %v, want %v", err, c.canRecv)
			}
			if got := l.shown(); got != c.shown {
				t.Errorf("shown: %v, want %v", got, c.shown)
			}
			if got := l.mayPostReceives(); got != c.mayPost {
				t.Errorf("mayPostReceives: %v", got)
			}
			if got := l.flushAsked(verbs.StatusWRFlushErr); got != c.flushed {
				t.Errorf("flushAsked: %v", got)
			}
			if l.flushAsked(verbs.StatusRetryExcErr) {
				t.Error("a status other than a flush counts as a flush")
			}
		})
	}
}

// The first error stays, whatever follows, and its request reports its own status once.
func TestLineKeepsTheFirstFailure(t *testing.T) {
	l := newLine(time.Now)
	for n := range uint64(10) {
		if l.flushes(n) {
			t.Fatalf("request %d is flushed while the line runs", n)
		}
	}
	first := noRequest(verbs.StatusRemAccessErr)
	if !l.fail(5, first) || l.fail(4, noRequest(verbs.StatusRetryExcErr)) || l.err != first ||
		l.failedReq != 5 {
		t.Fatalf("the error is %v of request %d", l.err, l.failedReq)
	}
	l.stop(5)
	l.stop(7) // a later stop changes nothing
	flushed := func(want string) {
		t.Helper()
		got := ""
		for n := range uint64(8) {
			if l.flushes(n) {
				got += fmt.Sprint(n, " ")
			}
		}
		if l.check(); got != want {
			t.Errorf("stopped at %d, flushed are %q, want %q", l.stopAt, got, want)
		}
	}
	flushed("6 7 ") // 5 reports its own status
	l.sendReported(verbs.StatusWRFlushErr)
	l.stop(3) // an earlier request could not be posted either
	flushed("4 6 7 ")
	l.sendReported(verbs.StatusRemAccessErr)
	flushed("4 5 6 7 ")
}

func TestLineLingers(t *testing.T) {
	l := newLine(time.Now)
	l.fail(1, noRequest(verbs.StatusRetryExcErr))
	if l.lingered(time.Hour) {
		t.Error("lingered for an hour at once")
	}
	l.failedAt = l.failedAt.Add(-2 * time.Hour)
	if !l.lingered(time.Hour) {
		t.Error("two hours are not enough")
	}
}

// A receive that was flushed by an unknown cause is withheld until the cause is known.
func TestLineWithholdsUntilTheCauseIsKnown(t *testing.T) {
	suspected := func() line { l := newLine(time.Now); l.suspect = &rail{}; return l }
	if l := newLine(time.Now); l.withholds() {
		t.Error("withholds without a suspect")
	}
	l := suspected()
	if !l.withholds() {
		t.Error("does not withhold")
	}
	if l.fail(1, noRequest(verbs.StatusRetryExcErr)); l.withholds() {
		t.Error("withholds although the cause is known")
	}
	l = suspected()
	if l.resetFailed(); !l.dead || l.withholds() {
		t.Error("withholds although the line is dead")
	}
}

// An error that only says that a request was flushed gives way to the error of a failed reset.
func TestLineForgetsOnlyAFlush(t *testing.T) {
	for _, status := range []verbs.Status{verbs.StatusWRFlushErr, verbs.StatusRetryExcErr} {
		forgotten := status == verbs.StatusWRFlushErr
		l := newLine(time.Now)
		l.stop(2)
		l.fail(2, noRequest(status))
		l.forgetFlush()
		if l.check(); (l.err == nil) != forgotten || (l.failedReq == 0) != forgotten {
			t.Errorf("%v: %v of request %d", status.Name(), l.err, l.failedReq)
		}
	}
}
