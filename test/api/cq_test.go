package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// A physical CQ belongs to one virtual CQ. Another one is refused it without effect, and can have
// it when the first is closed.
func TestPhysicalCQBelongsToOneVirtualCQ(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	cqs := []verbs.CQ{vqptest.NewCQ(t, fabric.Device(0), 16), vqptest.NewCQ(t, fabric.Device(1), 16)}
	own := func(cqs ...verbs.CQ) *ibverbx.VirtualCQ {
		t.Helper()
		c, err := ibverbx.NewVirtualCQ(cqs...)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := own(cqs[1])
	_, err := ibverbx.NewVirtualCQ(cqs...)
	says := fmt.Sprintf("the CQ of soft1 belongs to virtual CQ %d already: close that first, or create "+
		"another CQ", first.Num())
	if !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v; want one that says %q", err, says)
	}
	second := own(cqs[0]) // the refusal has not taken it
	// One that the provider does not close stays, and is free.
	pd := vqptest.NewPD(t, fabric.Device(1))
	qp := vqptest.NewQP(t, pd, cqs[1])
	if err := first.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("the CQ of an open queue pair: %v", err)
	}
	third := own(cqs[1])
	if err := errors.Join(qp.Close(), pd.Close(), third.Close(), second.Close()); err != nil {
		t.Error(err)
	}
}

// Of several goroutines that want one CQ, one gets it.
func TestOneOfManyGetsThePhysicalCQ(t *testing.T) {
	cq := vqptest.NewCQ(t, vqptest.NewFabric(t, soft.Config{}).Device(0), 16)
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
	if err := owner.Close(); err != nil {
		t.Error(err)
	}
}

// Errors of a virtual CQ say which.
func TestErrorsNameTheVirtualCQ(t *testing.T) {
	_, f, devs := unreliableNICs(t)
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

	pcq, err := verbstest.NewNull(1).Device(0).CreateCQ(verbs.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if cq, err = ibverbx.NewVirtualCQ(&dyingCQ{CQ: pcq, died: verbs.ErrOverrun}); err != nil {
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

// A CQ's failure is reported once, also where a completions loop ends before it reaches the error.
func TestCompletionsLoopThatEndsEarlyReportsTheErrorLater(t *testing.T) {
	var cq *dyingCQ
	q := vqptest.NewPhysical(t, verbstest.NewNull(1).Device(0), vqptest.PhysicalConfig{Data: 2, Notify: true,
		WrapCQ: func(inner verbs.CQ) verbs.CQ {
			cq = &dyingCQ{CQ: inner}
			return cq
		}})
	connectElsewhere(t, q.VirtualQP)
	for id := range uint64(3) {
		if _, err := q.PostRecv(ibverbx.RecvWR{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	cq.died = verbs.ErrDeviceGone
	next, failures := uint64(0), 0
	for range 10 {
		for wc, err := range q.CQ().Completions() {
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
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	c := vqptest.PhysicalConfig{Data: 2, Notify: true, QP: ibverbx.Config{Linger: -1},
		WrapCQ: func(cq verbs.CQ) verbs.CQ { return flushlessCQ{cq} }}
	q, peer := vqptest.NewPhysical(t, fabric.Device(0), c), vqptest.NewPhysical(t, fabric.Device(1), c)
	vqptest.ConnectBoth(t, q.VirtualQP, peer.VirtualQP)
	if _, err := q.PostRecv(ibverbx.RecvWR{ID: 1}); err != nil { // a notification: on no NIC
		t.Fatal(err)
	}
	fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: fabric.Device(0), Count: -1})
	send := ibverbx.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	send.Local, _ = q.Memory(t, 8)
	if _, err := q.PostSend(send); err != nil {
		t.Fatal(err)
	}
	if err := q.Drain(patience(t)); err == nil || !errors.Is(err, q.Err()) ||
		errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("drain: %v, after %v", err, q.Err())
	}
	wcs := make([]ibverbx.WC, 4)
	if n, err := q.CQ().Poll(wcs); n != 2 || err != nil {
		t.Errorf("completions: %s, %v", vqptest.FormatWCs(wcs[:n]), err)
	}
}
