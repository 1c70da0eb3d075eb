package ibverbx

import (
	"errors"
	"fmt"
	"strings"
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

// refusing is a recording queue pair that refuses to be reset or closed.
func refusing(r *recorded, rail int, reset, closing error) {
	r.qps[rail].refuseReset, r.qps[rail].refuseClose = reset, closing
}

// A queue pair that refuses to be reset is destroyed: what it had is over, the error names its
// rail, and the virtual queue pair stays failed.
func TestResetThatAQueuePairRefuses(t *testing.T) {
	reset, closing := errors.New("no reset today"), errors.New("nor close")
	for _, qps := range []int{2, 3} {
		for _, closes := range []bool{true, false} {
			r := newRecorded(t, 1, qps, Config{FragmentSize: 10})
			last := qps - 1
			if _, err := r.PostSend(rawWrite(1, 30)); err != nil {
				t.Fatal(err)
			}
			refusing(r, last, reset, nil)
			if !closes {
				refusing(r, last, reset, closing)
			}
			err := r.Reset()
			if !errors.Is(err, reset) || errors.Is(err, closing) == closes ||
				!strings.Contains(err.Error(), r.send.rails.all[last].qp.Device().Name()) {
				t.Errorf("%d queue pairs: %v", qps, err)
			}
			var failed *FailedError
			if !errors.As(r.Err(), &failed) || failed.Rail != last || !errors.Is(failed, reset) {
				t.Errorf("%d queue pairs: failed with %v", qps, r.Err())
			}
			if _, err := r.PostSend(rawWrite(2, 8)); !errors.Is(err, ErrFailed) {
				t.Errorf("a post: %v", err)
			}
			if r.qps[last].closes != 1 {
				t.Errorf("%d queue pairs: closed %d times", qps, r.qps[last].closes)
			}
			// Again: what is destroyed cannot be reset any more.
			refusing(r, last, nil, nil)
			want := verbs.ErrClosed
			if err := r.Reset(); closes != errors.Is(err, want) || !closes && err != nil {
				t.Errorf("%d queue pairs, reset again: %v", qps, err)
			}
			if err := r.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if n := r.qps[last].closes; closes && n != 1 || !closes && n != 2 {
				t.Errorf("%d queue pairs: closed %d times in all", qps, n)
			}
		}
	}
}

// After a failure a queue pair that refuses receives for good is asked for no more of them; those
// that wait are flushed, and the failure stays what it was.
func TestReceivesAreRefusedAfterAFailure(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{FragmentSize: 10, Scheme: Spray, Linger: -1})
	if _, err := r.PostSend(rawWrite(1, 5)); err != nil {
		t.Fatal(err)
	}
	failed := verbs.WC{ID: r.qps[0].posts[0].ID, Status: verbs.StatusRemAccessErr, QPNum: r.qps[0].Num()}
	r.notify.refuseRecv = &verbs.OpError{Op: "post recv", Err: verbs.ErrState}
	got := r.CQ().ProcessCompletions(nil, 0, failed)
	if len(got) != 1 || got[0].Status != verbs.StatusRemAccessErr {
		t.Errorf("%+v", got)
	}
	if !errors.Is(r.Err(), verbs.StatusRemAccessErr) {
		t.Errorf("%v", r.Err())
	}
}

// Values that are no scheme say so.
func TestNameOfASchemeThatIsNone(t *testing.T) {
	for s, want := range map[Scheme]string{DQPLB: "dqplb", Spray: "spray", 2: "scheme 2", 255: "scheme 255"} {
		if got := s.String(); got != want {
			t.Errorf("%d: %q, want %q", s, got, want)
		}
	}
}

// The move to ERR is tried again where a queue pair has refused it for now, and not where its NIC
// is gone: then there is nothing to move.
func TestMoveToErrIsNotTriedOnANICThatIsGone(t *testing.T) {
	for err, retrying := range map[error]int{
		nil: 0, verbs.ErrNoMemory: 1, &verbs.OpError{Op: "modify", Err: verbs.ErrDeviceGone}: 0,
	} {
		r := newRecorded(t, 1, 2, Config{FragmentSize: 10, Linger: -1})
		if _, err := r.PostSend(rawWrite(1, 5)); err != nil {
			t.Fatal(err)
		}
		r.qps[1].refuseErr = err
		failed := verbs.WC{ID: r.qps[0].posts[0].ID, Status: verbs.StatusRemAccessErr, QPNum: r.qps[0].Num()}
		r.CQ().ProcessCompletions(nil, 0, failed)
		for range 3 {
			r.CQ().ProcessCompletions(nil, 0)
		}
		if n := r.CQ().Stats().Retrying; n != retrying {
			t.Errorf("refused with %v: %d virtual queue pairs try again, want %d", err, n, retrying)
		}
	}
}

// Of one kind of event of one rail a line a second is logged. The next line counts those held back,
// and other rails and kinds are not held back with it.
func TestEventLogHoldsBack(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := &eventLog{clock: func() time.Time { return now }, last: map[eventKey]*eventPace{}}
	key := eventKey{"rail lost", 1, 0}
	for i, step := range []struct {
		after time.Duration
		key   eventKey
		held  int
		ok    bool
	}{
		{0, key, 0, true},
		{999 * time.Millisecond, key, 0, false},
		{0, key, 0, false},
		{0, eventKey{"rail lost", 1, 1}, 0, true},
		{0, eventKey{"rail back", 1, 0}, 0, true},
		{time.Millisecond, key, 2, true},
		{time.Second, key, 0, true},
	} {
		now = now.Add(step.after)
		if held, ok := l.admit(step.key); held != step.held || ok != step.ok {
			t.Errorf("step %d: held %d, written %v; want %d, %v", i, held, ok, step.held, step.ok)
		}
	}
	for i := range uint32(2 * maxEventKeys) {
		l.admit(eventKey{"failed", i, 0})
	}
	if len(l.last) > maxEventKeys {
		t.Errorf("%d keys are remembered", len(l.last))
	}
}

// Every clause of an invariant panics where it is broken.
func TestBrokenInvariantsPanic(t *testing.T) {
	connected := func(t *testing.T) *recorded {
		r := newRecorded(t, 1, 2, Config{MaxMsgCntPerQP: 4, FragmentSize: 100})
		if _, err := r.PostRecv(RecvWR{ID: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.PostSend(rawWrite(1, 100)); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, breaks := range map[string]func(r *recorded){
		"line: failed without error": func(r *recorded) {
			r.line.failedReq, r.line.stopAt = 1, 1
		},
		"line: stopped behind failure": func(r *recorded) {
			r.line.fail(1, noRequest(verbs.StatusFatalErr)) // without stop
		},
		"line: closed and not dead": func(r *recorded) { r.line.closed = true },

		"railSet: a slot is lost":      func(r *recorded) { r.send.rails.free-- },
		"railSet: next rail":           func(r *recorded) { r.send.rails.nextRail = 2 },
		"rail: more in use than slots": func(r *recorded) { r.send.rails.notify.inUse = 1 << 20 },
		"rail: more staged than in use": func(r *recorded) {
			r.send.rails.notify.batch = &sendBatch{tail: 1}
		},
		"rail: negative receives":  func(r *recorded) { r.send.rails.notify.recvs = -1 },
		"rail: negative to repost": func(r *recorded) { r.send.rails.data[0].recvsToPost = -1 },

		"passThrough: negative probes": func(r *recorded) { r.pass.probes.posted = -1 },

		"sender: next":          func(r *recorded) { r.send.next = r.send.win.Tail + 1 },
		"sender: data done":     func(r *recorded) { r.send.dataDone = r.send.next + 1 },
		"sender: finals posted": func(r *recorded) { r.send.finalsPosted = r.send.dataDone + 1 },
		"sender: head":          func(r *recorded) { r.send.win.Head = r.send.finalsPosted + 1 },
		"sender: finals":        func(r *recorded) { r.send.finals++ },
		"sender: bytes":         func(r *recorded) { r.send.win.Front().offset = 101 },
		"sender: staged, unlisted": func(r *recorded) {
			rl := r.send.rails.notify
			r.send.rails.take(rl)
			rl.batch = r.send.batches.lend()
			rl.batch.add()
		},

		"receiver: next message":  func(r *recorded) { r.recv.nextMessage = r.recv.win.Tail + 1 },
		"receiver: head":          func(r *recorded) { r.recv.win.Head = r.recv.nextBare + 1 },
		"receiver: to repost":     func(r *recorded) { r.recv.recvsToPost++ },
		"receiver: banked beside": func(r *recorded) { r.recv.bank.Open() },
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t)
			if strings.HasPrefix(name, "passThrough: ") {
				r = &recorded{VirtualQP: newLone(t, Config{})}
			}
			r.checkInvariants()
			breaks(r)
			defer func() {
				if p, _ := recover().(string); !strings.Contains(p, "broken invariant") {
					t.Errorf("the check panics with %q, want a broken invariant", p)
				}
			}()
			r.checkInvariants()
		})
	}
}
