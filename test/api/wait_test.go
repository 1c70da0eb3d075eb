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

// A wait that tries again what a NIC refuses ends with its context, too.
func TestWaitThatTriesAgainEndsWithItsContext(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	refusal := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Count: -1})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 5, 0, 8))
	if n := l.A.CQ().Stats().Retrying; n != 1 {
		t.Fatalf("%d virtual queue pairs try again", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := l.A.CQ().Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
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

func TestArmWithoutAChannelIsRefused(t *testing.T) {
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cq, err := fabric.Device(0).CreateCQ(verbs.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	if err := vcq.Arm(); !errors.Is(err, verbs.ErrNotSupported) || vcq.Events() != nil {
		t.Errorf("%v", err)
	}
	if err := errors.Join(vcq.Close(), fabric.Close()); err != nil {
		t.Error(err)
	}
}
