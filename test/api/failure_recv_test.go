package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A virtual queue pair detects the failure of one of its queue pairs by what it has outstanding
// there. Where it keeps no receive of its own, it takes a receive of the user.
func TestWhichFailuresAreDetected(t *testing.T) {
	for _, c := range []struct {
		scheme  ibverbx.Scheme
		rail    int // 2 is the notify QP
		detects bool
	}{
		{ibverbx.DQPLB, 0, true}, {ibverbx.DQPLB, 1, true}, {ibverbx.DQPLB, 2, false},
		{ibverbx.Spray, 0, false}, {ibverbx.Spray, 1, true}, {ibverbx.Spray, 2, false},
	} {
		fabric := vqptest.NewFabric(t, soft.Config{})
		made := vqptest.PhysicalConfig{Data: 2, Notify: true, QP: ibverbx.Config{Scheme: c.scheme}}
		a := vqptest.NewPhysical(t, fabric.Device(0), made)
		b := vqptest.NewPhysical(t, fabric.Device(0), made)
		vqptest.ConnectBoth(t, a.VirtualQP, b.VirtualQP)
		if err := b.Raw[c.rail].Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
			t.Fatal(err)
		}
		poll := func() {
			var wcs [16]ibverbx.WC
			for range 20 {
				if _, err := b.CQ().Poll(wcs[:]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if poll(); (b.Err() != nil) != c.detects {
			t.Errorf("%v rail %d: %v", c.scheme, c.rail, b.Err())
		}
		if !c.detects {
			wr := ibverbx.RecvWR{ID: 1}
			if c.scheme == ibverbx.DQPLB || c.rail == 0 {
				wr.Local, _ = b.Memory(t, 8)
			}
			if _, err := b.PostRecv(wr); err != nil {
				t.Fatal(err)
			}
			if poll(); b.Err() == nil {
				t.Errorf("%v rail %d: not detected by a receive", c.scheme, c.rail)
			}
		}
	}
}
