package vqptest

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// NewFabric makes a fabric. It fails the test if an object is open on it when the test ends, unless
// the test has closed it before.
func NewFabric(tb testing.TB, cfg soft.Config) *soft.Fabric {
	tb.Helper()
	fabric, err := soft.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := fabric.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			tb.Errorf("leak: %v", err)
		}
	})
	return fabric
}

// Physical is a virtual queue pair over queue pairs that the test has created itself, on one NIC
// and one CQ without a channel. It is closed when the test ends.
type Physical struct {
	*ibverbx.VirtualQP
	PD  verbs.PD
	Raw []verbs.QP // the queue pairs, the notify QP last
}

// PhysicalConfig configures a Physical. The zero value means a single queue pair.
type PhysicalConfig struct {
	Data      int // queue pairs for data; 0 means one
	Notify    bool
	SignalAll bool
	WrapCQ    func(verbs.CQ) verbs.CQ // returns what the virtual CQ polls in place of the CQ
	QP        ibverbx.Config
}

// NewPhysical makes a virtual queue pair in RESET.
func NewPhysical(tb testing.TB, dev verbs.Device, c PhysicalConfig) *Physical {
	tb.Helper()
	p := &Physical{PD: NewPD(tb, dev)}
	cq := NewCQ(tb, dev, 4096)
	data := max(c.Data, 1)
	for len(p.Raw) < data || c.Notify && len(p.Raw) == data {
		qp, err := p.PD.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, SignalAll: c.SignalAll})
		if err != nil {
			tb.Fatal(err)
		}
		p.Raw = append(p.Raw, qp)
	}
	if c.WrapCQ != nil {
		cq = c.WrapCQ(cq)
	}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		tb.Fatal(err)
	}
	var notify verbs.QP
	if c.Notify {
		notify = p.Raw[data]
	}
	if p.VirtualQP, err = ibverbx.NewVirtualQP(vcq, p.Raw[:data], notify, c.QP); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := vcq.Close(); err != nil && !errors.Is(err, ibverbx.ErrClosed) {
			tb.Error(err)
		}
		if err := p.PD.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

// Memory registers n bytes, and returns them for requests of this end and of the other.
func (p *Physical) Memory(tb testing.TB, n uint64) (ibverbx.Segment, ibverbx.RemoteSegment) {
	tb.Helper()
	mr, err := p.PD.RegisterMR(make([]byte, n), verbs.AccessAll)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := mr.Close(); err != nil {
			tb.Error(err)
		}
	})
	dev := p.PD.Device().ID()
	return ibverbx.Segment{Addr: mr.Addr(), Length: n,
			Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{dev: mr.LKey()})},
		ibverbx.RemoteSegment{Addr: mr.Addr(), Length: n,
			Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{dev: mr.RKey()})}
}

// Step holds a state, and the attributes with which Modify moves a virtual queue pair to it.
type Step struct {
	Attr verbs.QPAttr
	Mask verbs.QPAttrMask
}

// The steps in which a program connects by itself, with the attributes that are not in the cards.
var (
	ToInit = Step{verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll},
		verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess}
	ToRTR = Step{verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU4096, MaxDestRDAtomic: 4,
		MinRNRTimer: 12, AH: verbs.AH{Global: true, Port: 1}},
		verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer}
	ToRTS = Step{verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 4},
		verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
			verbs.QPAttrSQPSN | verbs.QPAttrMaxRDAtomic}
)

// Take makes a virtual queue pair take the step towards a peer, which is nil while it is unknown.
func (s Step) Take(q *ibverbx.VirtualQP, peer *ibverbx.BusinessCard) error {
	return q.Modify(s.Attr, s.Mask, peer)
}
