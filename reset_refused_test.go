package ibverbx

import (
	"errors"
	"strings"
	"testing"

	"ibverbx/verbs"
)

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
