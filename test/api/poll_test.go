package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// sendMany posts n writes with IDs from first on. On a fabric that is not stepped they complete by
// themselves.
func sendMany(e *vqptest.End, tb testing.TB, first, n uint64) {
	tb.Helper()
	for id := first; id < first+n; id++ {
		e.Send(tb, e.Write(verbs.OpRDMAWrite, id, 0, 8))
	}
}

// connectElsewhere connects a virtual queue pair over null devices, which ignore the peer.
func connectElsewhere(tb testing.TB, q *ibverbx.VirtualQP) {
	tb.Helper()
	card, err := q.Card()
	if err != nil {
		tb.Fatal(err)
	}
	if err := q.Connect(vqptest.Elsewhere(card)); err != nil {
		tb.Fatal(err)
	}
}

// The loop ends when there is no completion; on a closed CQ, after the remaining ones.
func TestCompletionsLoopEnds(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric: soft.Config{Stepped: true}})
	for range l.A.CQ().Completions() {
		t.Fatal("a completion where there is none")
	}
	sendMany(l.A, t, 0, 20)
	if err := l.A.Close(); err != nil {
		t.Fatal(err)
	}
	count, ended := 0, false
	for wc, err := range l.A.CQ().Completions() {
		switch {
		case ended:
			t.Fatal("it goes on behind the end")
		case err != nil:
			ended = true
			if !errors.Is(err, ibverbx.ErrClosed) || wc != (ibverbx.WC{}) {
				t.Errorf("%+v, %v", wc, err)
			}
		default:
			if wc.ID != uint64(count) || wc.Status != verbs.StatusWRFlushErr {
				t.Errorf("%+v", wc)
			}
			count++
		}
	}
	if count != 20 || !ended {
		t.Errorf("%d completions, ended %v", count, ended)
	}
}

// A NIC that completes as fast as it is polled does not delay the others.
func TestPollServesEveryDevice(t *testing.T) {
	for _, devices := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			null := verbstest.NewNull(devices)
			var cqs []verbs.CQ
			var pds []verbs.PD
			for i := range devices {
				cq := vqptest.NewCQ(t, null.Device(i), 1024)
				pd := vqptest.NewPD(t, null.Device(i))
				cqs, pds = append(cqs, cq), append(pds, pd)
			}
			vcq, err := ibverbx.NewVirtualCQ(cqs...)
			if err != nil {
				t.Fatal(err)
			}
			// One pass-through queue pair a device.
			var qps []*ibverbx.VirtualQP
			for i := range devices {
				qp := vqptest.NewQP(t, pds[i], cqs[i])
				q, err := ibverbx.NewVirtualQP(vcq, []verbs.QP{qp}, nil, ibverbx.Config{})
				if err != nil {
					t.Fatal(err)
				}
				connectElsewhere(t, q)
				qps = append(qps, q)
			}
			done := map[uint32]int{}
			wcs := make([]ibverbx.WC, 32)
			const polls = 1000
			for range polls {
				for _, q := range qps {
					for { // as many as its queue holds
						_, err := q.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
						if errors.Is(err, verbs.ErrQueueFull) {
							break
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				n, err := vcq.Poll(wcs)
				if err != nil {
					t.Fatal(err)
				}
				for _, wc := range wcs[:n] {
					done[wc.QPNum]++
				}
			}
			fair := polls * len(wcs) / devices
			for i, q := range qps {
				if n := done[q.Num()]; n < fair/2 {
					t.Errorf("device %d: %d of %d completions, a fair share is %d", i, n, polls*len(wcs),
						fair)
				}
			}
		})
	}
}

// A full slice ends a poll: the NIC's CQ is not drained. An empty slice is never full.
func TestPollStopsAtAFullSlice(t *testing.T) {
	const posted = 200
	for _, c := range []struct{ slice, want, least, most int }{
		{10, 10, 1, posted - 10}, {0, 0, 0, 0}, {posted + 1, posted, 0, 0},
	} {
		null := verbstest.NewNull(1)
		cq := vqptest.NewCQ(t, null.Device(0), 1024)
		vcq, err := ibverbx.NewVirtualCQ(cq)
		if err != nil {
			t.Fatal(err)
		}
		qp, err := vqptest.NewPD(t, null.Device(0)).CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: posted}})
		if err != nil {
			t.Fatal(err)
		}
		q, err := ibverbx.NewVirtualQP(vcq, []verbs.QP{qp}, nil, ibverbx.Config{})
		if err != nil {
			t.Fatal(err)
		}
		connectElsewhere(t, q)
		wrs := slices.Repeat([]ibverbx.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}, posted)
		if _, err := q.PostSend(wrs...); err != nil {
			t.Fatal(err)
		}
		n, err := vcq.Poll(make([]ibverbx.WC, c.slice))
		if n != c.want || err != nil {
			t.Errorf("a slice of %d: %d completions, %v", c.slice, n, err)
		}
		if left, err := cq.Poll(make([]verbs.WC, posted)); left < c.least || left > c.most || err != nil {
			t.Errorf("a slice of %d: %d completions of %d are left in the NIC's CQ, %v", c.slice, left,
				posted, err)
		}
	}
}

// A device of which a virtual CQ has no CQ is refused, with those that it has.
func TestPollNamesTheDevicesThereAre(t *testing.T) {
	null := verbstest.NewNull(4)
	c, err := ibverbx.NewVirtualCQ(vqptest.NewCQ(t, null.Device(3), 16), vqptest.NewCQ(t, null.Device(1), 16))
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range []verbs.DeviceID{0, 2, 63, verbs.MaxDevices, 255} {
		n, err := c.PollDevice(dev, make([]ibverbx.WC, 1))
		if n != 0 || !errors.Is(err, verbs.ErrInvalid) || !strings.HasSuffix(err.Error(),
			fmt.Sprintf("no CQ of device %d: there are those of 1, 3", dev)) {
			t.Errorf("%d, %v", n, err)
		}
	}
	for _, dev := range []verbs.DeviceID{1, 3} {
		if n, err := c.PollDevice(dev, make([]ibverbx.WC, 1)); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestWaitNeedsAChannel(t *testing.T) {
	null := verbstest.NewNull(2)
	channel := verbs.NewCompChannel()
	for _, channels := range [][]*verbs.CompChannel{{nil}, {channel, nil}, {nil, channel},
		{channel, verbs.NewCompChannel()}} {
		var cqs []verbs.CQ
		for i, ch := range channels {
			cq, err := null.Device(i).CreateCQ(verbs.CQConfig{Channel: ch})
			if err != nil {
				t.Fatal(err)
			}
			cqs = append(cqs, cq)
		}
		c, err := ibverbx.NewVirtualCQ(cqs...)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(context.Background()); !errors.Is(err, verbs.ErrNotSupported) ||
			!strings.Contains(err.Error(), "CQConfig.Channel") {
			t.Errorf("%v: error %v: want one that says what to set", channels, err)
		}
	}
	if _, err := ibverbx.NewVirtualCQ(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a virtual CQ of nothing: %v", err)
	}
}

// After a transient refusal with nothing in flight no completion wakes Wait: it must retry by
// itself.
func TestWaitProgressesPastRefusals(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, kind := range []soft.FaultKind{soft.RefuseSend, soft.RefuseRecv} {
			t.Run(fmt.Sprintf("%v/%v", scheme, kind), func(t *testing.T) {
				l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{Scheme: scheme,
					QPsPerDevice: 2}})
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				fault := l.Fabric.Inject(soft.Fault{Kind: kind, Count: 7})
				waits := l.A
				if kind == soft.RefuseSend {
					l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 5, 0, 8))
				} else {
					waits = l.B
					if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 5, Local: l.B.MR.Slice(0, 8)}); err != nil {
						t.Fatal(err)
					}
					l.A.Send(t, ibverbx.SendWR{Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 8)})
				}
				if fault.Hits() == 0 {
					t.Fatal("nothing was refused")
				}
				if err := waits.CQ().Wait(ctx); err != nil {
					t.Fatal(err)
				}
				if got := waits.Poll(t); len(got) != 1 || got[0].ID != 5 || got[0].Status != 0 {
					t.Error(vqptest.FormatWCs(got))
				}
				if waits == l.B {
					vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
				}
			})
		}
	}
}

// A wait that tries again what a NIC refuses ends with its context, too, and says why that has
// ended.
func TestWaitThatTriesAgainEndsWithItsContext(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	refusal := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Count: -1})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 5, 0, 8))
	if n := l.A.CQ().Stats().Retrying; n != 1 {
		t.Fatalf("%d virtual queue pairs try again", n)
	}
	why := errors.New("enough is enough")
	ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Millisecond, why)
	defer cancel()
	begin := time.Now()
	if err := l.A.CQ().Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || err.Error() != why.Error() {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	refusal.Remove()
	if err := l.A.CQ().Wait(patience(t)); err != nil {
		t.Error(err)
	}
	vqptest.IDs(t, l.A.Poll(t), verbs.StatusSuccess)
}

func TestWaitOnAClosedCQ(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric: soft.Config{Stepped: true}})
	sendMany(l.A, t, 0, 2)
	if err := l.A.CQ().Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.A.CQ().Wait(context.Background()); err != nil {
		t.Errorf("with flushed completions left: %v", err)
	}
	if got := vqptest.IDs(t, pollClosed(l.A, t), verbs.StatusWRFlushErr); !slices.Equal(got, []uint64{0, 1}) {
		t.Errorf("%v were left", got)
	}
	if err := l.A.CQ().Wait(context.Background()); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("with nothing left: %v", err)
	}
}
