package vqptest

import (
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// NewPD allocates a protection domain.
func NewPD(tb testing.TB, dev verbs.Device) verbs.PD {
	tb.Helper()
	pd, err := dev.AllocPD()
	if err != nil {
		tb.Fatal(err)
	}
	return pd
}

// NewCQ creates a CQ without events.
func NewCQ(tb testing.TB, dev verbs.Device, depth int) verbs.CQ {
	tb.Helper()
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: depth})
	if err != nil {
		tb.Fatal(err)
	}
	return cq
}

// NewQP creates a queue pair whose completions all go to one CQ.
func NewQP(tb testing.TB, pd verbs.PD, cq verbs.CQ) verbs.QP {
	tb.Helper()
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		tb.Fatal(err)
	}
	return qp
}

// OpenSoft opens a virtual queue pair on a fabric of its own with one NIC.
func OpenSoft(tb testing.TB, cfg ibverbx.Config) *ibverbx.VirtualQP {
	tb.Helper()
	fabric := NewFabric(tb, soft.Config{})
	q, err := ibverbx.Open([]verbs.Device{fabric.Device(0)}, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return q
}

// Another makes a second pair of virtual queue pairs on the CQs of a link, and connects it.
func (l *Link) Another(tb testing.TB) (a, b *ibverbx.VirtualQP) {
	tb.Helper()
	a, err := l.A.dom.NewQP(l.A.cq, l.A.Config())
	if err != nil {
		tb.Fatal(err)
	}
	if b, err = l.B.dom.NewQP(l.B.cq, l.B.Config()); err != nil {
		tb.Fatal(err)
	}
	ConnectBoth(tb, a, b)
	return a, b
}

// Elsewhere returns a card of the same shape for a peer that does not exist: null devices ignore
// addresses.
func Elsewhere(card ibverbx.BusinessCard) ibverbx.BusinessCard {
	card.Rails = slices.Clone(card.Rails)
	for i := range card.Rails {
		card.Rails[i].GID[0] ^= 1
	}
	return card
}
