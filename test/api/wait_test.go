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

func TestWaitReturnsWhenThereIsSomething(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		sendMany(l.A, t, 0, 3)
		for next := uint64(0); next < 3; {
			if err := l.A.CQ().Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if err := l.A.CQ().Wait(ctx); err != nil { // finds a completion at once
				t.Fatal(err)
			}
			got := l.A.Poll(t)
			if len(got) == 0 {
				t.Fatal("woken for nothing")
			}
			for _, wc := range got {
				if wc.ID != next {
					t.Fatalf("%+v, want %d", wc, next)
				}
				next++
			}
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric: soft.Config{Stepped: true}})
	sendMany(l.A, t, 7, 1) // completes only when the test steps the fabric
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.A.CQ().Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := l.A.CQ().Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline: %v", err)
	}
	// The request stays outstanding.
	l.Fabric.Run(100)
	if err := l.A.CQ().Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := l.A.Poll(t); len(got) != 1 || got[0].ID != 7 || got[0].Status != 0 {
		t.Errorf("%s", vqptest.FormatWCs(got))
	}
	// An ended context does not hide available completions.
	sendMany(l.A, t, 8, 1)
	l.Fabric.Run(100)
	if err := l.A.CQ().Wait(ended); err != nil {
		t.Errorf("with something to poll: %v", err)
	}
}

// A completion that arrives between the last poll and the sleep wakes Wait. Two goroutines wait for
// each other's requests.
func TestWaitLosesNoWakeup(t *testing.T) {
	for _, m := range vqptest.Modes {
		if m.NICs > 2 {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			rounds := uint64(2000)
			if testing.Short() {
				rounds = 200
			}
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs,
				QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs,
					FragmentSize: 1000}})
			// Small payloads execute at once, large ones on the NIC's worker.
			sizes := []uint64{8, 3000, 100_000}
			ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
			defer cancel()
			l.A.ExpectRecv(t, 0)
			l.B.ExpectRecv(t, 0)
			ball := func(e *vqptest.End, round uint64) error {
				wr := e.Write(verbs.OpRDMAWriteWithImm, round, 0, sizes[round%3])
				if round%50 != 0 {
					wr.Local.Length = 8
				}
				_, err := e.PostSend(wr)
				return err
			}
			play := func(e *vqptest.End, serves bool) error {
				received, sent := uint64(0), uint64(0)
				if serves {
					if err := ball(e, 0); err != nil {
						return err
					}
					sent++
				}
				var wcs [4]ibverbx.WC
				for received < rounds || sent > 0 {
					if err := e.CQ().Wait(ctx); err != nil {
						return fmt.Errorf("round %d, %d sends open: %w; %w", received, sent, err, e.Err())
					}
					n, err := e.CQ().Poll(wcs[:])
					if err != nil {
						return err
					}
					for _, wc := range wcs[:n] {
						if wc.Status != 0 {
							return fmt.Errorf("%+v: %w", wc, e.Err())
						}
						if !wc.Opcode.IsRecv() {
							sent--
							continue
						}
						if wc.ID != received || wc.Imm != uint32(received) {
							return fmt.Errorf("round %d: %+v", received, wc)
						}
						received++
						if received < rounds {
							if _, err := e.PostRecv(ibverbx.RecvWR{ID: received}); err != nil {
								return err
							}
						}
						next := received
						if !serves {
							next--
						}
						if next < rounds {
							if err := ball(e, next); err != nil {
								return err
							}
							sent++
						}
					}
				}
				return nil
			}
			done := make(chan error)
			go func() { done <- play(l.B, false) }()
			if err := errors.Join(play(l.A, true), <-done); err != nil {
				t.Fatal(err)
			}
		})
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

// One goroutine waits for two virtual CQs in a select, and posts in between.
func TestArmAndEventsInASelect(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 2,
		FragmentSize: 1000}})
	timeout := time.After(20 * time.Second)
	const rounds = 300
	got := map[*vqptest.End]int{}
	post := func() {
		l.B.ExpectRecv(t, 1)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 300_000)) // large: a worker copies it
	}
	post()
	for got[l.B] < rounds || got[l.A] < rounds {
		found := false
		for _, e := range []*vqptest.End{l.A, l.B} {
			if err := e.CQ().Arm(); err != nil {
				t.Fatal(err)
			}
			n := len(e.Poll(t))
			got[e] += n
			found = found || n != 0
			if e == l.B && n != 0 && got[l.B] < rounds {
				post()
			}
		}
		if found {
			continue
		}
		select {
		case <-l.A.CQ().Events():
		case <-l.B.CQ().Events():
		case <-timeout:
			t.Fatalf("stuck after %d and %d", got[l.A], got[l.B])
		}
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
