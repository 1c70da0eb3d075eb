package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// newPD allocates a protection domain.
func newPD(tb testing.TB, dev verbs.Device) verbs.PD {
	tb.Helper()
	pd, err := dev.AllocPD()
	if err != nil {
		tb.Fatal(err)
	}
	return pd
}

// newCQ creates a CQ without events.
func newCQ(tb testing.TB, dev verbs.Device, depth int) verbs.CQ {
	tb.Helper()
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: depth})
	if err != nil {
		tb.Fatal(err)
	}
	return cq
}

// newQP creates a queue pair whose completions all go to one CQ.
func newQP(tb testing.TB, pd verbs.PD, cq verbs.CQ) verbs.QP {
	tb.Helper()
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		tb.Fatal(err)
	}
	return qp
}

// openHere opens a virtual queue pair on the one NIC of a fabric of its own.
func openHere(tb testing.TB, cfg ibverbx.Config) (*soft.Fabric, *ibverbx.VirtualQP) {
	tb.Helper()
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	q, err := ibverbx.Open([]verbs.Device{fabric.Device(0)}, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return fabric, q
}

// another makes a second pair of virtual queue pairs on the CQs of a link, and connects it.
func (l *link) another(tb testing.TB) (a, b *ibverbx.VirtualQP) {
	tb.Helper()
	a, err := l.a.dom.NewQP(l.a.cq, l.a.Config())
	if err != nil {
		tb.Fatal(err)
	}
	if b, err = l.b.dom.NewQP(l.b.cq, l.b.Config()); err != nil {
		tb.Fatal(err)
	}
	connectBoth(tb, a, b)
	return a, b
}
