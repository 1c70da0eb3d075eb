package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
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
