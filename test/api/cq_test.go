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

// A physical CQ belongs to one virtual CQ. Another one is refused it without effect, and can have
// it when the first is closed.
func TestPhysicalCQBelongsToOneVirtualCQ(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	cqs := make([]verbs.CQ, 2)
	for i := range cqs {
		if cqs[i], err = fabric.Device(i).CreateCQ(verbs.CQConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := ibverbx.NewVirtualCQ(cqs[1])
	if err != nil {
		t.Fatal(err)
	}
	_, err = ibverbx.NewVirtualCQ(cqs...)
	says := fmt.Sprintf("the CQ of soft1 belongs to virtual CQ %d already: close that first, or create "+
		"another CQ", first.Num())
	if !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v; want one that says %q", err, says)
	}
	// The refusal has not taken the other one.
	second, err := ibverbx.NewVirtualCQ(cqs[0])
	if err != nil {
		t.Fatal(err)
	}
	// One that the provider does not close stays, and is free.
	pd, err := fabric.Device(1).AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cqs[1], RecvCQ: cqs[1]})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("the CQ of an open queue pair: %v", err)
	}
	third, err := ibverbx.NewVirtualCQ(cqs[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(qp.Close(), pd.Close(), third.Close(), second.Close(), fabric.Close()); err != nil {
		t.Error(err)
	}
}

// Of several goroutines that want one CQ, one gets it.
func TestOneOfManyGetsThePhysicalCQ(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 1})
	if err != nil {
		t.Fatal(err)
	}
	cq, err := fabric.Device(0).CreateCQ(verbs.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *ibverbx.VirtualCQ)
	for range 8 {
		go func() {
			c, _ := ibverbx.NewVirtualCQ(cq)
			got <- c
		}()
	}
	var owner *ibverbx.VirtualCQ
	for range 8 {
		if c := <-got; c != nil {
			if owner != nil {
				t.Error("two have it")
			}
			owner = c
		}
	}
	if owner == nil {
		t.Fatal("nobody has it")
	}
	if err := errors.Join(owner.Close(), fabric.Close()); err != nil {
		t.Error(err)
	}
}

// Errors of a virtual CQ say which.
func TestErrorsNameTheVirtualCQ(t *testing.T) {
	fabric, f, devs := unreliableNICs(t)
	q, err := ibverbx.Open(devs, ibverbx.Config{QPsPerDevice: 2})
	if err != nil {
		t.Fatal(err)
	}
	cq := q.CQ()
	name := fmt.Sprintf(" virtual cq %d: ", cq.Num())
	check := func(what, op string, err error) {
		t.Helper()
		if err == nil || !strings.HasPrefix(err.Error(), "ibverbx: "+op+name) {
			t.Errorf("%s: %v; want one of %q", what, err, op+name)
		}
	}
	_, err = cq.PollDevice(9, nil)
	check("a device that is not there", "poll", err)
	check("no context", "wait for", cq.Wait(nil)) //nolint:staticcheck // that is what is refused
	f.N, f.At, f.Only = 0, 1, "arm"
	check("a CQ that cannot be armed", "wait for", cq.Wait(t.Context()))
	f.N = 0
	check("a CQ that cannot be armed", "arm", cq.Arm())
	f.N, f.At, f.Only = 0, 1, "close cq"
	if err := q.Close(); err == nil || !strings.Contains(err.Error(), "close"+name+"soft1: ") {
		t.Errorf("a CQ that cannot be closed: %v", err)
	}
	for err = nil; err == nil; {
		_, err = cq.Poll(make([]ibverbx.WC, 4))
	}
	check("closed", "poll", err)
	check("closed", "arm", cq.Arm())
	check("closed", "wait for", cq.Wait(t.Context()))
	check("closed", "close", cq.Close())
	if err := fabric.Close(); err != nil {
		t.Error(err)
	}

	pcq, err := verbstest.NewNull(1).Device(0).CreateCQ(verbs.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if cq, err = ibverbx.NewVirtualCQ(&failingCQ{pcq, verbs.ErrOverrun}); err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf(" virtual cq %d: ", cq.Num())
	check("no channel", "arm", cq.Arm())
	check("no channel", "wait for", cq.Wait(t.Context()))
	_, err = cq.Poll(make([]ibverbx.WC, 4))
	check("a CQ that fails", "poll", err)
	if err := cq.Close(); err != nil {
		t.Error(err)
	}
}

// An overrun CQ fails the virtual queue pairs that use it, and no others.
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
		pd := vqptest.NewPD(t, d)
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
	// The virtual queue pairs: on device 0, on both, on device 1; a single one on device 1. Each
	// has its peer on device 2.
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
	cfg := ibverbx.Config{FragmentSize: 100, NoNotifyQP: true, MaxMsgCntPerQP: 16, Credits: 16}
	for _, devices := range [][]int{{0, 0}, {0, 1}, {1, 1}, {1}} {
		var qps []verbs.QP
		for _, i := range devices {
			qp, err := pds[i].CreateQP(verbs.QPConfig{SendCQ: cqs[i], RecvCQ: cqs[i],
				Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
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
		vqptest.ConnectBoth(t, q, peer)
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
	write := ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Remote: target.Remote().At(0),
		Local:  ibverbx.Segment{Addr: regions[0].Addr(), Length: 350, Keys: ibverbx.NewKeys(keys)}}
	// Device 1 stalls, and so do all virtual queue pairs but the first. Then the completions of one
	// more queue pair overrun its CQ.
	stall := fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: dev[1], Count: -1})
	for _, q := range vqps {
		if _, err := q.PostSend(write); err != nil {
			t.Fatal(err)
		}
	}
	flood, err := pds[1].CreateQP(verbs.QPConfig{SendCQ: cqs[1], RecvCQ: cqs[1],
		Cap: verbs.QPCap{MaxRecvWR: 2 * depth}})
	if err != nil {
		t.Fatal(err)
	}
	if err := flood.Modify(&verbs.QPAttr{State: verbs.StateInit, Port: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess); err != nil {
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
			if failures++; !errors.Is(err, verbs.ErrOverrun) ||
				!strings.Contains(err.Error(), dev[1].Name()) {
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
			t.Errorf("afterwards: %s %v", vqptest.FormatWCs(wcs[:n]), err)
		}
	}
	for i, q := range vqps {
		got := reported[q.Num()]
		if i == 0 {
			if len(got) != 1 || got[0].Status != 0 || q.Err() != nil {
				t.Errorf("the virtual qp on the other device: %s %v", vqptest.FormatWCs(got), q.Err())
			}
			continue
		}
		if q.DataRails() > 1 && (len(got) != 1 || got[0].Status == 0) {
			t.Errorf("virtual qp %d: %s", i, vqptest.FormatWCs(got))
		}
		if !errors.Is(q.Err(), verbs.ErrOverrun) || q.State() != verbs.StateErr {
			t.Errorf("virtual qp %d: %v, %v", i, q.Err(), q.State())
		}
		if _, err := q.PostSend(write); !errors.Is(err, ibverbx.ErrFailed) {
			t.Errorf("virtual qp %d: posting: %v", i, err)
		}
	}
	// The remaining virtual queue pair continues to work.
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
	errs := []error{flood.Close(), vcq.Close(), regions[0].Close(), regions[1].Close(), pds[0].Close(),
		pds[1].Close()}
	for _, peer := range peerQPs {
		errs = append(errs, peer.Close())
	}
	if err := errors.Join(append(errs, target.Close(), peers.Close(), fabric.Close())...); err != nil {
		t.Errorf("leak: %v", err)
	}
}

// failingCQ is a CQ that fails once err is set.
type failingCQ struct {
	verbs.CQ
	err error
}

func (c *failingCQ) Poll(wcs []verbs.WC) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	return c.CQ.Poll(wcs)
}

// A CQ's failure is reported once, also where a completions loop ends before it reaches the error.
func TestCompletionsLoopThatEndsEarlyReportsTheErrorLater(t *testing.T) {
	dev := verbstest.NewNull(1).Device(0)
	pd := vqptest.NewPD(t, dev)
	inner := vqptest.NewCQ(t, dev, 4096)
	var qps []verbs.QP
	for range 3 {
		qp := vqptest.NewQP(t, pd, inner)
		qps = append(qps, qp)
	}
	cq := &failingCQ{CQ: inner}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	q, err := ibverbx.NewVirtualQP(vcq, qps[:2], qps[2], ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	connectElsewhere(t, q)
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
		t.Errorf("%d of 3 completions, and the error was reported %d times", next, failures)
	}
	if !errors.Is(q.Err(), verbs.ErrDeviceGone) {
		t.Errorf("Err: %v", q.Err())
	}
}

// flushlessCQ is a CQ that loses the flushes of receives.
type flushlessCQ struct{ verbs.CQ }

func (c flushlessCQ) Poll(wcs []verbs.WC) (int, error) {
	n, err := c.CQ.Poll(wcs)
	return len(slices.DeleteFunc(wcs[:n], func(wc verbs.WC) bool {
		return wc.Status == verbs.StatusWRFlushErr
	})), err
}

// What has failed is drained when the user has all completions: the receives of the rails, of which
// nothing can come any more, are not waited for.
func TestDrainOfWhatHasFailedWaitsForNoCredits(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	dev := fabric.Device(0)
	pd, inner := vqptest.NewPD(t, dev), vqptest.NewCQ(t, dev, 4096)
	qps := []verbs.QP{vqptest.NewQP(t, pd, inner), vqptest.NewQP(t, pd, inner), vqptest.NewQP(t, pd, inner)}
	vcq, err := ibverbx.NewVirtualCQ(flushlessCQ{inner})
	if err != nil {
		t.Fatal(err)
	}
	q, err := ibverbx.NewVirtualQP(vcq, qps[:2], qps[2], ibverbx.Config{Linger: -1})
	if err != nil {
		t.Fatal(err)
	}
	peer, err := ibverbx.Open([]verbs.Device{fabric.Device(1)}, ibverbx.Config{QPsPerDevice: 2})
	if err != nil {
		t.Fatal(err)
	}
	card, err := peer.Card()
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Connect(card); err != nil {
		t.Fatal(err)
	}
	if _, err := q.PostRecv(ibverbx.RecvWR{ID: 1}); err != nil { // a notification: on no NIC
		t.Fatal(err)
	}
	fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: dev, Count: -1})
	mr, err := pd.RegisterMR(make([]byte, 8), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.PostSend(ibverbx.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		Local: ibverbx.Segment{Addr: mr.Addr(), Length: 8, Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{
			dev.ID(): mr.LKey()})}}); err != nil {
		t.Fatal(err)
	}
	if err := q.Drain(patience(t)); err == nil || !errors.Is(err, q.Err()) ||
		errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v, after %v", err, q.Err())
	}
	wcs := make([]ibverbx.WC, 4)
	if n, err := vcq.Poll(wcs); n != 2 || err != nil {
		t.Errorf("completions: %s, %v", vqptest.FormatWCs(wcs[:n]), err)
	}
}
