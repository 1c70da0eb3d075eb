package ibverbx_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

func TestWaitReturnsWhenThereIsSomething(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		l.a.sendMany(t, 0, 3)
		for next := uint64(0); next < 3; {
			if err := l.a.cq.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if err := l.a.cq.Wait(ctx); err != nil { // finds a completion at once
				t.Fatal(err)
			}
			got := l.a.poll(t)
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
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{QPsPerDevice: 2},
		fabric: soft.Config{Stepped: true}})
	l.a.sendMany(t, 7, 1) // completes only when the test steps the fabric
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.a.cq.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := l.a.cq.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline: %v", err)
	}
	// The request stays outstanding.
	l.fabric.Run(100)
	if err := l.a.cq.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := l.a.poll(t); len(got) != 1 || got[0].ID != 7 || got[0].Status != 0 {
		t.Errorf("%s", fmtWCs(got))
	}
	// An ended context does not hide available completions.
	l.a.sendMany(t, 8, 1)
	l.fabric.Run(100)
	if err := l.a.cq.Wait(ended); err != nil {
		t.Errorf("with something to poll: %v", err)
	}
}

// A completion that arrives between the last poll and the sleep wakes Wait. Two goroutines wait for
// each other's requests.
func TestWaitLosesNoWakeup(t *testing.T) {
	for _, m := range modes {
		if m.nics > 2 {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			rounds := uint64(2000)
			if testing.Short() {
				rounds = 200
			}
			l := newLink(t, linkConfig{nics: m.nics, qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps,
				FragmentSize: 1000}})
			// Small payloads execute at once, large ones on the NIC's worker.
			sizes := []uint64{8, 3000, 100_000}
			ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
			defer cancel()
			l.a.expectRecv(t, 0)
			l.b.expectRecv(t, 0)
			ball := func(e *end, round uint64) error {
				wr := e.write(verbs.OpRDMAWriteWithImm, round, 0, sizes[round%3])
				if round%50 != 0 {
					wr.Local.Length = 8
				}
				_, err := e.PostSend(wr)
				return err
			}
			play := func(e *end, serves bool) error {
				received, sent := uint64(0), uint64(0)
				if serves {
					if err := ball(e, 0); err != nil {
						return err
					}
					sent++
				}
				var wcs [4]ibverbx.WC
				for received < rounds || sent > 0 {
					if err := e.cq.Wait(ctx); err != nil {
						return fmt.Errorf("round %d, %d sends open: %w; %w", received, sent, err, e.Err())
					}
					n, err := e.cq.Poll(wcs[:])
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
			go func() { done <- play(l.b, false) }()
			if err := errors.Join(play(l.a, true), <-done); err != nil {
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
				l := newLink(t, linkConfig{qp: ibverbx.Config{Scheme: scheme, QPsPerDevice: 2}})
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				fault := l.fabric.Inject(soft.Fault{Kind: kind, Count: 7})
				waits := l.a
				if kind == soft.RefuseSend {
					l.a.send(t, l.a.write(verbs.OpRDMAWrite, 5, 0, 8))
				} else {
					waits = l.b
					if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 5, Local: l.b.mr.Slice(0, 8)}); err != nil {
						t.Fatal(err)
					}
					l.a.send(t, ibverbx.SendWR{Opcode: verbs.OpSend, Local: l.a.mr.Slice(0, 8)})
				}
				if fault.Hits() == 0 {
					t.Fatal("nothing was refused")
				}
				if err := waits.cq.Wait(ctx); err != nil {
					t.Fatal(err)
				}
				if got := waits.poll(t); len(got) != 1 || got[0].ID != 5 || got[0].Status != 0 {
					t.Error(fmtWCs(got))
				}
				if waits == l.b {
					ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
				}
			})
		}
	}
}

// A wait that tries again what a NIC refuses ends with its context, too.
func TestWaitThatTriesAgainEndsWithItsContext(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}})
	refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Count: -1})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 5, 0, 8))
	if n := l.a.cq.Stats().Retrying; n != 1 {
		t.Fatalf("%d virtual queue pairs try again", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := l.a.cq.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	refusal.Remove()
	if err := l.a.cq.Wait(patience(t)); err != nil {
		t.Error(err)
	}
	ids(t, l.a.poll(t), verbs.StatusSuccess)
}

func TestWaitOnAClosedCQ(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}, fabric: soft.Config{Stepped: true}})
	l.a.sendMany(t, 0, 2)
	if err := l.a.cq.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.a.cq.Wait(context.Background()); err != nil {
		t.Errorf("with flushed completions left: %v", err)
	}
	if got := ids(t, l.a.pollClosed(t), verbs.StatusWRFlushErr); !slices.Equal(got, []uint64{0, 1}) {
		t.Errorf("%v were left", got)
	}
	if err := l.a.cq.Wait(context.Background()); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("with nothing left: %v", err)
	}
}

// One goroutine waits for two virtual CQs in a select, and posts in between.
func TestArmAndEventsInASelect(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000}})
	timeout := time.After(20 * time.Second)
	const rounds = 300
	got := map[*end]int{}
	post := func() {
		l.b.expectRecv(t, 1)
		l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 2, 0, 300_000)) // large: a worker copies it
	}
	post()
	for got[l.b] < rounds || got[l.a] < rounds {
		found := false
		for _, e := range []*end{l.a, l.b} {
			if err := e.cq.Arm(); err != nil {
				t.Fatal(err)
			}
			n := len(e.poll(t))
			got[e] += n
			found = found || n != 0
			if e == l.b && n != 0 && got[l.b] < rounds {
				post()
			}
		}
		if found {
			continue
		}
		select {
		case <-l.a.cq.Events():
		case <-l.b.cq.Events():
		case <-timeout:
			t.Fatalf("stuck after %d and %d", got[l.a], got[l.b])
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
