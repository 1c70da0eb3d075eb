package ibverbx_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// sendMany posts n writes with IDs from first on. On a background fabric they complete by themselves.
func (e *end) sendMany(tb testing.TB, first, n uint64) {
	tb.Helper()
	for id := first; id < first+n; id++ {
		e.send(tb, e.write(verbs.OpRDMAWrite, id, 0, 8))
	}
}

// What does not fit into the slice waits, in order; an empty slice takes nothing but keeps the work going.
func TestPollWithSlicesOfEverySize(t *testing.T) {
	for _, size := range []int{0, 1, 7, 64, 5000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			eachMode(t, 1000, func(t *testing.T, l *link) {
				const total = 100
				l.a.sendMany(t, 0, total)
				dst := make([]ibverbx.WC, size)
				next := uint64(0)
				for tries := 0; next < total; tries++ {
					n, err := l.a.cq.Poll(dst)
					if err != nil || n > size {
						t.Fatal(n, err)
					}
					for _, wc := range dst[:n] {
						if wc.ID != next || wc.Status != verbs.StatusSuccess {
							t.Fatalf("completion %d: %+v", next, wc)
						}
						next++
					}
					if size == 0 && l.a.cq.Stats().Ready == total {
						return // all collected, nothing taken
					}
					if tries > 10_000_000 {
						t.Fatalf("%d of %d: %+v", next, total, l.a.Stats())
					}
				}
				if n, err := l.a.cq.Poll(make([]ibverbx.WC, 3)); n != 0 || err != nil {
					t.Errorf("more: %d, %v", n, err)
				}
			})
		})
	}
}

func TestPollOne(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}})
	if wc, ok, err := l.a.cq.PollOne(); ok || err != nil || wc != (ibverbx.WC{}) {
		t.Fatalf("of an empty CQ: %+v %v %v", wc, ok, err)
	}
	l.a.sendMany(t, 0, 10)
	for id := uint64(0); id < 10; {
		wc, ok, err := l.a.cq.PollOne()
		if err != nil || ok && wc.ID != id {
			t.Fatalf("%+v, %v: want id %d", wc, err, id)
		}
		if ok {
			id++
		}
	}
}

// PollDevice leaves the other devices' CQs alone.
func TestPollDeviceSparesTheOthers(t *testing.T) {
	null := verbstest.NewNull(2)
	dom, err := ibverbx.NewDomain(null.Device(0), null.Device(1))
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dom.NewCQ(0)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := dom.Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	q, err := dom.NewQP(cq, ibverbx.Config{QPsPerDevice: 1, MaxMsgSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	connectToItself(t, q)
	// Two fragments each, one on either device.
	for id := range uint64(5) {
		if _, err := q.PostSend(ibverbx.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Local: mr.Slice(0, 200), Remote: mr.Remote().At(0)}); err != nil {
			t.Fatal(err)
		}
	}
	outstanding := func() (n [2]int) {
		for i, r := range q.Stats().Rails[:2] {
			n[i] = r.Outstanding
		}
		return n
	}
	wcs := make([]ibverbx.WC, 16)
	for range 3 {
		if n, err := cq.PollDevice(1, wcs); n != 0 || err != nil {
			t.Fatalf("half of every request is on the other device: %d, %v", n, err)
		}
	}
	if got := outstanding(); got != [2]int{5, 0} {
		t.Fatalf("outstanding %v", got)
	}
	if n, err := cq.PollDevice(9, wcs); n != 0 || err != nil {
		t.Fatalf("a device that is not there: %d, %v", n, err)
	}
	if n, err := cq.PollDevice(0, wcs[:3]); n != 3 || err != nil || wcs[0].ID != 0 || wcs[2].ID != 2 {
		t.Fatalf("%d, %v: %s", n, err, fmtWCs(wcs[:n]))
	}
	// What was collected before comes along, whichever device is polled.
	if n, err := cq.PollDevice(1, wcs); n != 2 || err != nil || wcs[0].ID != 3 {
		t.Fatalf("%d, %v: %s", n, err, fmtWCs(wcs[:n]))
	}
}

// connectToItself connects a virtual queue pair over null devices, to which it is all the same.
func connectToItself(tb testing.TB, q *ibverbx.VirtualQP) {
	tb.Helper()
	card, err := q.Card()
	if err != nil {
		tb.Fatal(err)
	}
	if err := q.Connect(card); err != nil {
		tb.Fatal(err)
	}
}

// A loop that ends early loses and reorders nothing, wherever it ends; its body may post.
func TestCompletionsLoopMayEndAnywhere(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		const total = 100
		for stop := 1; stop < 40; stop++ {
			l.a.sendMany(t, 0, total/2)
			posted, next := uint64(total/2), uint64(0)
			for tries := 0; next < total; tries++ {
				taken := 0
				for wc, err := range l.a.cq.Completions() {
					if err != nil || wc.ID != next || wc.Status != verbs.StatusSuccess {
						t.Fatalf("stop %d, completion %d: %+v, %v", stop, next, wc, err)
					}
					next++
					if posted < total {
						l.a.sendMany(t, posted, 1)
						posted++
					}
					if taken++; taken == stop {
						break
					}
				}
				if tries > 10_000_000 {
					t.Fatal("stuck")
				}
			}
		}
	})
}

// The loop ends when there is nothing, and on a closed CQ behind what was left.
func TestCompletionsLoopEnds(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}, fabric: soft.Config{Stepped: true}})
	for range l.a.cq.Completions() {
		t.Fatal("there is nothing")
	}
	l.a.sendMany(t, 0, 20)
	if err := l.a.Close(); err != nil {
		t.Fatal(err)
	}
	count, ended := 0, false
	for wc, err := range l.a.cq.Completions() {
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

// A program that polls the physical CQs itself, with its own queue pairs, and hands over what it finds.
func TestProcessCompletionsOfAProgramThatPollsItself(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			fabric, err := soft.New(soft.Config{Devices: 4})
			if err != nil {
				t.Fatal(err)
			}
			a, b := newOwnPoller(t, fabric, 0, scheme), newOwnPoller(t, fabric, 2, scheme)
			connectBoth(t, a.vqp, b.vqp)
			fillRandom(a.buf, 1)
			const total = 50
			for id := range uint64(total) {
				if _, err := b.vqp.PostRecv(ibverbx.RecvWR{ID: id}); err != nil {
					t.Fatal(err)
				}
				if _, err := a.vqp.PostSend(ibverbx.SendWR{
					ID: id, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(id),
					Local:  ibverbx.Segment{Addr: a.addr + id*1000, Length: 1000, Keys: a.lkeys},
					Remote: ibverbx.RemoteSegment{Addr: b.addr + id*1000, Length: 1000, Keys: b.rkeys},
				}); err != nil {
					t.Fatal(err)
				}
			}
			for deadline := time.Now().Add(20 * time.Second); len(a.got) < total || len(b.got) < total; runtime.Gosched() {
				a.poll(t)
				b.poll(t)
				if time.Now().After(deadline) {
					t.Fatalf("%d sends, %d receives", len(a.got), len(b.got))
				}
			}
			for i := range uint64(total) {
				if a.got[i].ID != i || a.got[i].Status != 0 || b.got[i].ID != i || b.got[i].Imm != uint32(i) {
					t.Fatalf("%d: %s", i, fmtWCs([]ibverbx.WC{a.got[i], b.got[i]}))
				}
			}
			mustEqual(t, "data", b.buf[:total*1000], a.buf[:total*1000])
			for _, p := range []*ownPoller{a, b} {
				if err := p.vcq.Close(); err != nil {
					t.Error(err)
				}
				for i := range p.pds {
					if err := errors.Join(p.mrs[i].Close(), p.pds[i].Close()); err != nil {
						t.Error(err)
					}
				}
			}
			if err := fabric.Close(); err != nil {
				t.Errorf("leak: %v", err)
			}
		})
	}
}

// ownPoller is an end that is made of physical objects, by hand.
type ownPoller struct {
	pds          []verbs.PD
	cqs          []verbs.CQ
	mrs          []verbs.MR
	vcq          *ibverbx.VirtualCQ
	vqp          *ibverbx.VirtualQP
	buf          []byte
	addr         uint64
	lkeys, rkeys *ibverbx.Keys
	got          []ibverbx.WC
}

func newOwnPoller(t *testing.T, fabric *soft.Fabric, first int, scheme ibverbx.Scheme) *ownPoller {
	t.Helper()
	p := &ownPoller{buf: make([]byte, 1<<16)}
	lkeys, rkeys := map[verbs.DeviceID]uint32{}, map[verbs.DeviceID]uint32{}
	var qps []verbs.QP
	for i := first; i < first+2; i++ {
		dev := fabric.Device(i)
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 2048})
		if err != nil {
			t.Fatal(err)
		}
		mr, err := pd.RegisterMR(p.buf, verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
			if err != nil {
				t.Fatal(err)
			}
			qps = append(qps, qp)
		}
		p.pds, p.cqs, p.mrs = append(p.pds, pd), append(p.cqs, cq), append(p.mrs, mr)
		lkeys[dev.ID()], rkeys[dev.ID()], p.addr = mr.LKey(), mr.RKey(), mr.Addr()
	}
	p.lkeys, p.rkeys = ibverbx.NewKeys(lkeys), ibverbx.NewKeys(rkeys)
	var err error
	if p.vcq, err = ibverbx.NewVirtualCQ(p.cqs...); err != nil {
		t.Fatal(err)
	}
	if p.vqp, err = ibverbx.NewVirtualQP(p.vcq, qps[:3], qps[3], ibverbx.Config{Scheme: scheme, MaxMsgSize: 100, MaxMsgCntPerQP: 16}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *ownPoller) poll(t *testing.T) {
	var wcs [8]verbs.WC
	for _, cq := range p.cqs {
		n, err := cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		p.got = p.vcq.ProcessCompletions(p.got, cq.Device().ID(), wcs[:n]...)
	}
}

func TestWaitReturnsWhenThereIsSomething(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		l.a.sendMany(t, 0, 3)
		for next := uint64(0); next < 3; {
			if err := l.a.cq.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if err := l.a.cq.Wait(ctx); err != nil { // what is there already
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
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{QPsPerDevice: 2}, fabric: soft.Config{Stepped: true}})
	l.a.sendMany(t, 7, 1) // completes only when the test says so
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
	// The request is untouched by it.
	l.fabric.Run(100)
	if err := l.a.cq.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := l.a.poll(t); len(got) != 1 || got[0].ID != 7 || got[0].Status != 0 {
		t.Errorf("%s", fmtWCs(got))
	}
	// A context that has ended does not hide what is there.
	l.a.sendMany(t, 8, 1)
	l.fabric.Run(100)
	if err := l.a.cq.Wait(ended); err != nil {
		t.Errorf("with something to poll: %v", err)
	}
}

// A completion that comes between the last poll and the sleep wakes Wait: two goroutines that sleep for each other.
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
			l := newLink(t, linkConfig{nics: m.nics, qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps, MaxMsgSize: 1000}})
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
	for _, channels := range [][]*verbs.CompChannel{{nil}, {channel, nil}, {nil, channel}, {channel, verbs.NewCompChannel()}} {
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
		if err := c.Wait(context.Background()); !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), "CQConfig.Channel") {
			t.Errorf("%v: error %v: want one that says what to set", channels, err)
		}
	}
	if _, err := ibverbx.NewVirtualCQ(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a virtual CQ of nothing: %v", err)
	}
}

// A refusal for now with nothing in flight: no completion will ever wake Wait, which must try again by itself.
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
		t.Errorf("left were %v", got)
	}
	if err := l.a.cq.Wait(context.Background()); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("with nothing left: %v", err)
	}
}

// pollClosed takes what a closed virtual CQ still has.
func (e *end) pollClosed(tb testing.TB) []ibverbx.WC {
	tb.Helper()
	for {
		wc, ok, err := e.cq.PollOne()
		if ok {
			e.backlog = append(e.backlog, wc)
			continue
		}
		if !errors.Is(err, ibverbx.ErrClosed) {
			tb.Fatalf("a closed CQ with nothing left: %v", err)
		}
		return e.backlog
	}
}

// permutations of 0..n-1.
func permutations(n int) (all [][]int) {
	var extend func(p []int)
	extend = func(p []int) {
		if len(p) == n {
			all = append(all, slices.Clone(p))
			return
		}
		for i := range n {
			if !slices.Contains(p, i) {
				extend(append(p, i))
			}
		}
	}
	extend(nil)
	return all
}

// Every order of closing works with requests outstanding: nothing leaks, nothing is lost, and what cannot be closed yet says so.
func TestEveryOrderOfClosing(t *testing.T) {
	const closeQP, closeCQ, closeMR = 0, 1, 2 // and the domain
	for _, m := range modes[:6] {
		for _, order := range permutations(4) {
			t.Run(fmt.Sprint(m.name, order), func(t *testing.T) {
				l := newLink(t, linkConfig{nics: m.nics, qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps, MaxMsgSize: 1000, MaxMsgCntPerQP: 4}})
				multi := l.a.DataRails() > 1
				l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
				recvs := uint64(3)
				for id := range recvs {
					if _, err := l.a.PostRecv(ibverbx.RecvWR{ID: 100 + id, Local: l.a.mr.Slice(0, 8)}); err != nil {
						t.Fatal(err)
					}
				}
				sends := uint64(3)
				for id := range sends {
					l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, 0, 5000))
				}
				qpClosed := false
				for _, what := range order {
					var err, want error
					switch what {
					case closeQP:
						err = l.a.Close()
						if qpClosed {
							want = ibverbx.ErrClosed // with its CQ
						}
						qpClosed = true
					case closeCQ:
						err = l.a.cq.Close()
						if qpClosed {
							want = ibverbx.ErrClosed // the virtual queue pair had it for its own
						}
						qpClosed = true
					case closeMR:
						err = l.a.mr.Close()
						if multi && !qpClosed {
							want = verbs.ErrBusy
						}
					default:
						err = l.a.dom.Close()
						if _, err := l.a.dom.Register(make([]byte, 8), 0); !errors.Is(err, ibverbx.ErrClosed) {
							t.Errorf("registering in a closed domain: %v", err)
						}
					}
					if !errors.Is(err, want) {
						t.Fatalf("step %d of %v: %v, want %v", what, order, err, want)
					}
				}
				gotSends, gotRecvs := uint64(0), uint64(0)
				for _, wc := range l.a.pollClosed(t) {
					next := &gotSends
					id := wc.ID
					if id >= 100 {
						next = &gotRecvs
						id -= 100
					}
					if id != *next || wc.Status != verbs.StatusWRFlushErr {
						t.Errorf("completion %d: %+v", *next, wc)
					}
					*next++
				}
				if gotSends != sends || gotRecvs != recvs {
					t.Errorf("%d of %d sends and %d of %d receives were reported", gotSends, sends, gotRecvs, recvs)
				}
			})
		}
	}
}

// An overrun CQ takes its virtual queue pairs along and no others.
func TestOverrunCQFailsOnlyItsOwn(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 3})
	if err != nil {
		t.Fatal(err)
	}
	const depth = 1024
	dev := []*soft.Device{fabric.Device(0), fabric.Device(1)}
	channel := verbs.NewCompChannel()
	var pds []verbs.PD
	var cqs []verbs.CQ
	for _, d := range dev {
		pd, err := d.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := d.CreateCQ(verbs.CQConfig{Depth: depth, Channel: channel})
		if err != nil {
			t.Fatal(err)
		}
		pds, cqs = append(pds, pd), append(cqs, cq)
	}
	vcq, err := ibverbx.NewVirtualCQ(cqs...)
	if err != nil {
		t.Fatal(err)
	}
	var peerQPs []*ibverbx.VirtualQP
	// The virtual queue pairs: on device 0, on both, on device 1; a single one on device 1. Each has its peer on device 2.
	var vqps []*ibverbx.VirtualQP
	peers, err := ibverbx.NewDomain(fabric.Device(2))
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	target, err := peers.Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	cfg := ibverbx.Config{MaxMsgSize: 100, NoNotifyQP: true, MaxMsgCntPerQP: 16, Credits: 16}
	for _, devices := range [][]int{{0, 0}, {0, 1}, {1, 1}, {1}} {
		var qps []verbs.QP
		for _, i := range devices {
			qp, err := pds[i].CreateQP(verbs.QPConfig{SendCQ: cqs[i], RecvCQ: cqs[i], Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
			if err != nil {
				t.Fatal(err)
			}
			qps = append(qps, qp)
		}
		q, err := ibverbx.NewVirtualQP(vcq, qps, nil, cfg)
		if err != nil {
			t.Fatal(err)
		}
		peerCfg := cfg
		peerCfg.QPsPerDevice = len(devices)
		peer, err := peers.NewQP(nil, peerCfg)
		if err != nil {
			t.Fatal(err)
		}
		connectBoth(t, q, peer)
		vqps, peerQPs = append(vqps, q), append(peerQPs, peer)
	}
	keys := map[verbs.DeviceID]uint32{}
	var regions []verbs.MR
	for i, pd := range pds {
		mr, err := pd.RegisterMR(buf, verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, mr)
		keys[dev[i].ID()] = mr.LKey()
	}
	write := ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: target.Remote().At(0),
		Local: ibverbx.Segment{Addr: regions[0].Addr(), Length: 350, Keys: ibverbx.NewKeys(keys)}}
	// Everything but the first is held up, and then device 1's CQ drowns in the completions of a queue pair beside them.
	stall := fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: dev[1], Count: -1})
	for _, q := range vqps {
		if _, err := q.PostSend(write); err != nil {
			t.Fatal(err)
		}
	}
	flood, err := pds[1].CreateQP(verbs.QPConfig{SendCQ: cqs[1], RecvCQ: cqs[1], Cap: verbs.QPCap{MaxRecvWR: 2 * depth}})
	if err != nil {
		t.Fatal(err)
	}
	if err := flood.Modify(&verbs.QPAttr{State: verbs.StateInit, Port: 1}, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess); err != nil {
		t.Fatal(err)
	}
	if _, err := flood.PostRecv(make([]verbs.RecvWR, 2*depth)); err != nil {
		t.Fatal(err)
	}
	if err := flood.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
		t.Fatal(err)
	}
	stall.Remove()

	reported := map[uint32][]ibverbx.WC{}
	failures := 0
	wcs := make([]ibverbx.WC, 8)
	for deadline := time.Now().Add(20 * time.Second); len(reported) < 3 || failures == 0; {
		n, err := vcq.Poll(wcs)
		if err != nil {
			if failures++; !errors.Is(err, verbs.ErrOverrun) || !strings.Contains(err.Error(), dev[1].Name()) {
				t.Errorf("poll: %v", err)
			}
		}
		for _, wc := range wcs[:n] {
			reported[wc.QPNum] = append(reported[wc.QPNum], wc)
		}
		if time.Now().After(deadline) {
			t.Fatalf("reported %v, %d failures", reported, failures)
		}
	}
	for range 10 { // it is reported once
		if n, err := vcq.Poll(wcs); n != 0 || err != nil {
			t.Errorf("afterwards: %s %v", fmtWCs(wcs[:n]), err)
		}
	}
	for i, q := range vqps {
		got := reported[q.Num()]
		if i == 0 {
			if len(got) != 1 || got[0].Status != 0 || q.Err() != nil {
				t.Errorf("the one on the other device: %s %v", fmtWCs(got), q.Err())
			}
			continue
		}
		if q.DataRails() > 1 && (len(got) != 1 || got[0].Status == 0) {
			t.Errorf("virtual qp %d: %s", i, fmtWCs(got))
		}
		if !errors.Is(q.Err(), verbs.ErrOverrun) || q.State() != verbs.StateErr {
			t.Errorf("virtual qp %d: %v, %v", i, q.Err(), q.State())
		}
		if _, err := q.PostSend(write); !errors.Is(err, ibverbx.ErrFailed) {
			t.Errorf("virtual qp %d: posting: %v", i, err)
		}
	}
	// The one that is left goes on as before.
	for id := range uint64(20) {
		write.ID = id
		if _, err := vqps[0].PostSend(write); err != nil {
			t.Fatal(err)
		}
		wc := pollBoth(t, vqps[0], vqps[0])
		if wc.ID != id || wc.Status != 0 || wc.QPNum != vqps[0].Num() {
			t.Fatalf("%+v", wc)
		}
	}
	errs := []error{flood.Close(), vcq.Close(), regions[0].Close(), regions[1].Close(), pds[0].Close(), pds[1].Close()}
	for _, peer := range peerQPs {
		errs = append(errs, peer.Close())
	}
	if err := errors.Join(append(errs, target.Close(), peers.Close(), fabric.Close())...); err != nil {
		t.Errorf("leak: %v", err)
	}
}

// NICs that complete as fast as they are polled do not keep another one waiting.
func TestPollServesEveryDevice(t *testing.T) {
	for _, devices := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			null := verbstest.NewNull(devices)
			var cqs []verbs.CQ
			var pds []verbs.PD
			for i := range devices {
				cq, err := null.Device(i).CreateCQ(verbs.CQConfig{Depth: 1024})
				if err != nil {
					t.Fatal(err)
				}
				pd, err := null.Device(i).AllocPD()
				if err != nil {
					t.Fatal(err)
				}
				cqs, pds = append(cqs, cq), append(pds, pd)
			}
			vcq, err := ibverbx.NewVirtualCQ(cqs...)
			if err != nil {
				t.Fatal(err)
			}
			// One pass-through queue pair a device.
			var qps []*ibverbx.VirtualQP
			for i := range devices {
				qp, err := pds[i].CreateQP(verbs.QPConfig{SendCQ: cqs[i], RecvCQ: cqs[i]})
				if err != nil {
					t.Fatal(err)
				}
				q, err := ibverbx.NewVirtualQP(vcq, []verbs.QP{qp}, nil, ibverbx.Config{})
				if err != nil {
					t.Fatal(err)
				}
				connectToItself(t, q)
				qps = append(qps, q)
			}
			done := map[uint32]int{}
			wcs := make([]ibverbx.WC, 32)
			const polls = 1000
			for range polls {
				for _, q := range qps {
					for { // as many as its queue takes
						if _, err := q.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); errors.Is(err, verbs.ErrQueueFull) {
							break
						} else if err != nil {
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
					t.Errorf("device %d: %d of %d completions, a fair share is %d", i, n, polls*len(wcs), fair)
				}
			}
		})
	}
}

// dyingCQ is a CQ that fails when it is told to.
type dyingCQ struct {
	verbs.CQ
	err error
}

func (c *dyingCQ) Poll(wcs []verbs.WC) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	return c.CQ.Poll(wcs)
}

// A CQ's death is told once, also to a loop that ends before it comes to it.
func TestCompletionsLoopThatEndsEarlyLosesNoError(t *testing.T) {
	dev := verbstest.NewNull(1).Device(0)
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	inner, err := dev.CreateCQ(verbs.CQConfig{Depth: 4096})
	if err != nil {
		t.Fatal(err)
	}
	var qps []verbs.QP
	for range 3 {
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: inner, RecvCQ: inner})
		if err != nil {
			t.Fatal(err)
		}
		qps = append(qps, qp)
	}
	cq := &dyingCQ{CQ: inner}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	q, err := ibverbx.NewVirtualQP(vcq, qps[:2], qps[2], ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	connectToItself(t, q)
	for id := range uint64(3) {
		if _, err := q.PostRecv(ibverbx.RecvWR{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	cq.err = verbs.ErrDeviceGone
	next, failures := uint64(0), 0
	for range 10 {
		for wc, err := range vcq.Completions() {
			if err != nil {
				if failures++; !errors.Is(err, verbs.ErrDeviceGone) {
					t.Error(err)
				}
				continue
			}
			if wc.ID != next || wc.Status != verbs.StatusWRFlushErr {
				t.Errorf("%+v, want %d", wc, next)
			}
			next++
			break
		}
	}
	if next != 3 || failures != 1 {
		t.Errorf("%d of 3 completions, and the error was told %d times", next, failures)
	}
	if !errors.Is(q.Err(), verbs.ErrDeviceGone) {
		t.Errorf("Err: %v", q.Err())
	}
}
