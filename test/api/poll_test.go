package api_test

import (
	"errors"
	"fmt"
	"runtime"
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

// Completions that do not fit into the slice wait, in order; Poll with an empty slice returns none
// and still makes progress.
func TestPollWithSlicesOfEverySize(t *testing.T) {
	for _, size := range []int{0, 1, 7, 64, 5000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
				const total = 100
				sendMany(l.A, t, 0, total)
				dst := make([]ibverbx.WC, size)
				next := uint64(0)
				for tries := 0; next < total; tries++ {
					n, err := l.A.CQ().Poll(dst)
					if err != nil || n > size {
						t.Fatal(n, err)
					}
					for _, wc := range dst[:n] {
						if wc.ID != next || wc.Status != verbs.StatusSuccess {
							t.Fatalf("completion %d: %+v", next, wc)
						}
						next++
					}
					if size == 0 && l.A.CQ().Stats().Ready == total {
						return // all collected, none returned
					}
					if tries > 10_000_000 {
						t.Fatalf("%d of %d: %+v", next, total, l.A.Stats())
					}
				}
				if n, err := l.A.CQ().Poll(make([]ibverbx.WC, 3)); n != 0 || err != nil {
					t.Errorf("more: %d, %v", n, err)
				}
			})
		})
	}
}

func TestPollOne(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	if wc, ok, err := l.A.CQ().PollOne(); ok || err != nil || wc != (ibverbx.WC{}) {
		t.Fatalf("of an empty CQ: %+v %v %v", wc, ok, err)
	}
	sendMany(l.A, t, 0, 10)
	for id := uint64(0); id < 10; {
		wc, ok, err := l.A.CQ().PollOne()
		if err != nil || ok && wc.ID != id {
			t.Fatalf("%+v, %v: want id %d", wc, err, id)
		}
		if ok {
			id++
		}
	}
}

// PollDevice does not poll the CQs of other devices.
func TestPollDevicePollsNoOtherDevice(t *testing.T) {
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
	q, err := dom.NewQP(cq, ibverbx.Config{QPsPerDevice: 1, FragmentSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	connectElsewhere(t, q)
	// Two fragments each, one on either device.
	for id := range uint64(5) {
		if _, err := q.PostSend(ibverbx.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			Local: mr.Slice(0, 200), Remote: mr.Remote().At(0)}); err != nil {
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
	if n, err := cq.PollDevice(9, wcs); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
		t.Fatalf("a device that does not exist: %d, %v", n, err)
	}
	if n, err := cq.PollDevice(0, wcs[:3]); n != 3 || err != nil || wcs[0].ID != 0 || wcs[2].ID != 2 {
		t.Fatalf("%d, %v: %s", n, err, vqptest.FormatWCs(wcs[:n]))
	}
	// Completions that were collected before are returned, whichever device is polled.
	if n, err := cq.PollDevice(1, wcs); n != 2 || err != nil || wcs[0].ID != 3 {
		t.Fatalf("%d, %v: %s", n, err, vqptest.FormatWCs(wcs[:n]))
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

// A loop may end after any completion: none is lost or reordered. Its body may post.
func TestCompletionsLoopMayEndAnywhere(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		const total = 100
		for stop := 1; stop < 40; stop++ {
			sendMany(l.A, t, 0, total/2)
			posted, next := uint64(total/2), uint64(0)
			for tries := 0; next < total; tries++ {
				taken := 0
				for wc, err := range l.A.CQ().Completions() {
					if err != nil || wc.ID != next || wc.Status != verbs.StatusSuccess {
						t.Fatalf("stop %d, completion %d: %+v, %v", stop, next, wc, err)
					}
					next++
					if posted < total {
						sendMany(l.A, t, posted, 1)
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

// A program polls the physical CQs itself, beside queue pairs of its own, and passes on the
// completions of the virtual queue pairs.
func TestProcessCompletionsOfAProgramThatPollsItself(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			fabric, err := soft.New(soft.Config{Devices: 4})
			if err != nil {
				t.Fatal(err)
			}
			a, b := newOwnPoller(t, fabric, 0, scheme), newOwnPoller(t, fabric, 2, scheme)
			vqptest.ConnectBoth(t, a.vqp, b.vqp)
			vqptest.FillRandom(a.buf, 1)
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
			for deadline := time.Now().Add(20 * time.Second); len(a.got) < total ||
				len(b.got) < total; runtime.Gosched() {
				a.poll(t)
				b.poll(t)
				if time.Now().After(deadline) {
					t.Fatalf("%d sends, %d receives", len(a.got), len(b.got))
				}
			}
			for i := range uint64(total) {
				if a.got[i].ID != i || a.got[i].Status != 0 || b.got[i].ID != i || b.got[i].Imm != uint32(i) {
					t.Fatalf("%d: %s", i, vqptest.FormatWCs([]ibverbx.WC{a.got[i], b.got[i]}))
				}
			}
			vqptest.MustEqual(t, "data", b.buf[:total*1000], a.buf[:total*1000])
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

// ownPoller is an end that the program builds from physical objects.
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
		pd := vqptest.NewPD(t, dev)
		cq := vqptest.NewCQ(t, dev, 2048)
		mr, err := pd.RegisterMR(p.buf, verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			qp := vqptest.NewQP(t, pd, cq)
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
	if p.vqp, err = ibverbx.NewVirtualQP(p.vcq, qps[:3], qps[3],
		ibverbx.Config{Scheme: scheme, FragmentSize: 100, MaxMsgCntPerQP: 16}); err != nil {
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
