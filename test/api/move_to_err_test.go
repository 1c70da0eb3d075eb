package api_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// stubborn wraps the first NIC of a fabric, whose queue pairs refuse so many moves to ERR; negative
// for ever.
func stubborn(left *int, err error) func(d *soft.Device) verbs.Device {
	return func(d *soft.Device) verbs.Device {
		if d.ID() != 0 {
			return d
		}
		return &vqptest.Tap{Device: d, Modify: func(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
			if mask&verbs.QPAttrState == 0 || attr.State != verbs.StateErr || *left == 0 {
				return nil
			}
			*left--
			return err
		}}
	}
}

// stubbornLink is a link whose end a refuses so many moves to ERR, with err. Nothing completes.
func stubbornLink(t *testing.T, cfg ibverbx.Config, refusals int, err error) *vqptest.Link {
	t.Helper()
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: cfg, CQDepth: 4096, Wrap: stubborn(&refusals, err)})
	t.Cleanup(l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1}).Remove)
	return l
}

// A queue pair that refuses the move to ERR once is asked again: whatever ends the virtual queue
// pair, everything that was accepted is reported soon.
func TestRefusedMoveToErrIsTriedAgain(t *testing.T) {
	again := maps.Clone(endings)
	again["drain"] = func(e *vqptest.End) error {
		if err := e.Drain(endedContext()); !errors.Is(err, context.Canceled) { // the sends are stalled
			return fmt.Errorf("drain: %w", err)
		}
		return e.Reset()
	}
	for _, qps := range []int{1, 2} {
		for name, end := range again {
			t.Run(fmt.Sprintf("%d qps, %s", qps, name), func(t *testing.T) {
				var l *vqptest.Link
				quickly(t, func() func() error {
					l = stubbornLink(t, ibverbx.Config{QPsPerDevice: qps, FragmentSize: 1000}, 1,
						verbs.ErrNoMemory)
					fill(l.A, t, 5, 4)
					return func() error { return end(l.A) }
				})
				flushed(t, l.A, 5, 4)
			})
		}
	}
}

// A single queue pair that a refused post has ended, and that refuses the move to ERR, is asked
// again by polling: only so does its peer learn that it has failed.
func TestASingleQPsRefusedMoveToErrIsTriedAgain(t *testing.T) {
	for kind, post := range map[soft.FaultKind]func(e *vqptest.End) error{
		soft.RefuseSend: func(e *vqptest.End) error {
			_, err := e.PostSend(e.Write(verbs.OpRDMAWrite, 1, 0, 8))
			return err
		},
		soft.RefuseRecv: func(e *vqptest.End) error {
			_, err := e.PostRecv(ibverbx.RecvWR{ID: 1})
			return err
		},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			l := stubbornLink(t, ibverbx.Config{QPsPerDevice: 1}, 2, verbs.ErrNoMemory)
			l.Fabric.Inject(soft.Fault{Kind: kind, Err: verbs.ErrDeviceGone})
			if err := post(l.A); !errors.Is(err, verbs.ErrDeviceGone) {
				t.Fatal(err)
			}
			for polls := 0; l.A.QPs()[0].State() != verbs.StateErr; polls++ {
				if polls == 3 {
					t.Fatalf("after %d polls its queue pair is in %v", polls, l.A.QPs()[0].State())
				}
				if _, _, err := l.A.CQ().PollOne(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// After a failure the receives on a queue pair that has refused the move to ERR are flushed all the
// same.
func TestReceivesAreFlushedAfterARefusedMoveToErr(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			refusals := 5 // one for each queue pair, and two more
			l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Scheme: scheme},
				Wrap: stubborn(&refusals, verbs.ErrNoMemory)})
			fill(l.A, t, 0, 4)
			l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0],
				Status: verbs.StatusRemAccessErr})
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 0, 0, 8))
			sends, recvs := directions(t, l.A.Wait(t, 5))
			if !slices.Equal(sends, repeated(verbs.StatusRemAccessErr, 1)) ||
				!slices.Equal(recvs, repeated(verbs.StatusWRFlushErr, 4)) || refusals != 0 {
				t.Errorf("sends %v, receives %v, %d refusals are left", sends, recvs, refusals)
			}
		})
	}
}

// What ends a virtual queue pair asks again by itself: there is no completion that would wake it.
// Until a queue pair is in ERR nothing is posted on it: that would be carried out like any request.
func TestEndingsPastARefusedMoveToErr(t *testing.T) {
	ways := maps.Clone(endings)
	ways["drain"] = func(e *vqptest.End) error { return e.Drain(patience(t)) }
	for name, end := range ways {
		for _, qps := range []int{1, 2} {
			refusals := 7
			l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: qps}, CQDepth: 4096,
				Wrap: stubborn(&refusals, verbs.ErrNoMemory)})
			executed := executing(l.Fabric)
			fill(l.A, t, 0, 3)
			if err := end(l.A); err != nil {
				t.Errorf("%s, %d queue pairs: %v", name, qps, err)
			}
			if name == "drain" && refusals != 0 {
				t.Errorf("%d queue pairs: %d refusals are left", qps, refusals)
			}
			flushed(t, l.A, 0, 3)
			select {
			case <-executed:
				t.Errorf("%s, %d queue pairs: a request was carried out, and none was posted", name, qps)
			default:
			}
		}
	}
}

// A single queue pair that always refuses the move to ERR does not say what it still held. Reset
// and Close return the refusal after a second.
func TestMoveToErrThatIsRefusedPermanently(t *testing.T) {
	t.Parallel() // most of the time it waits
	refused := errors.New("no such transition today")
	for name, end := range map[string]func(e *vqptest.End) error{
		"reset": func(e *vqptest.End) error { return e.Reset() },
		"close": func(e *vqptest.End) error { return e.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := stubbornLink(t, ibverbx.Config{}, -1, refused)
			fill(l.A, t, 3, 2)
			if err := end(l.A); !errors.Is(err, refused) || !strings.Contains(err.Error(), "rail 0") {
				t.Errorf("%v", err)
			}
			if _, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 9, 0, 8)); err == nil {
				t.Error("a post is accepted")
			}
		})
	}
}
