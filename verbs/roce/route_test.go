package roce

import (
	"net/netip"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// The port that packets leave from is the one that Linux gives to a NIC's queue pair: computed by
// hand from rdma_flow_label_to_udp_sport and rdma_calc_flow_label.
func TestSourcePort(t *testing.T) {
	for _, x := range []struct {
		label, local, remote uint32
		want                 uint16
	}{
		{1, 7, 9, 0xc001},
		{0x3fff, 0, 0, 0xffff},
		{0x4000, 0, 0, 0xc001},        // bit 14 becomes bit 0
		{0xfffff, 0, 0, 0xffc0},       // 0x3fff and 0x3f differ in the upper eight bits
		{0x100001, 0, 0, 0xc001},      // a label has 20 bits
		{0, 0x11, 0x12, 0xc132},       // 0x132
		{0, 0x12, 0x11, 0xc132},       // both ends have the same
		{0, 0x10000, 0x10000, 0xd000}, // 2^32: bits 12 and 32, folded
	} {
		if got := sourcePort(x.label, x.local, x.remote); got != x.want {
			t.Errorf("%+v: %#x", x, got)
		}
	}
}

// portOf is the port that a queue pair's packets leave from.
func portOf(q *QP) uint16 { return q.path.to.Source().Port() }

// Queue pairs of two NICs leave from ports of their own, at most udp.MaxSources beside RoCEv2's,
// and packets of all of them arrive. A NIC on another port has that one for all.
func TestQueuePairsSpread(t *testing.T) {
	p := openNICs(t, Config{}, ownAddr(3), ownAddr(4))
	a, b := newNode(t, p.Device(0), 64), newNode(t, p.Device(1), 64)
	connect := func(a, b *node, label uint32) (x, y *QP) {
		x, y = a.newQP(t), b.newQP(t)
		t.Cleanup(func() { must(t, x.Close()); must(t, y.Close()) })
		must(t, verbstest.Connect(x, y, verbstest.ConnectConfig{Port: 1,
			Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.AH.FlowLabel = label }}))
		wr := a.write(b, 1, 64)
		_, err := x.PostSend([]verbs.SendWR{wr})
		must(t, err)
		a.succeed(t)
		return x, y
	}
	ports := map[uint16]int{}
	for label := range uint32(20) {
		x, y := connect(a, b, label)
		ports[portOf(x)]++
		if x.peerPort != portOf(y) || y.peerPort != portOf(x) {
			t.Errorf("label %d: ports %d and %d, known as %d and %d", label, portOf(x), portOf(y), y.peerPort,
				x.peerPort)
		}
	}
	if len(ports) != 16 || ports[Port] != 0 {
		t.Errorf("20 queue pairs leave from %v", ports)
	}
	private := openNICs(t, Config{Port: 45124}, ownAddr(3)).Device(0)
	c := newNode(t, private, 64)
	for label := range uint32(2) {
		if x, y := connect(c, b, label+1); portOf(x) != 45124 || portOf(y) == Port {
			t.Errorf("ports %d and %d", portOf(x), portOf(y))
		}
	}
	for _, n := range []*node{a, b, c} {
		if s := n.dev.Counters().Strangers; s != 0 {
			t.Errorf("%v has met %d strangers", n.dev.local, s)
		}
	}
}

// A queue pair keeps its port while it is connected, also when it gets another way to the peer.
func TestPortStays(t *testing.T) {
	p := openNICs(t, Config{}, ownAddr(3), ownAddr(4))
	pair := newNodes(t, p.Device(0), p.Device(1), 64)
	a, b := pair[0], pair[1]
	a.post(t, a.write(b, 1, 64))
	a.succeed(t)
	before := portOf(a.qp)
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateSQD}, verbs.QPAttrState))
	attr, err := a.qp.Query()
	must(t, err)
	attr.AH.FlowLabel, attr.AH.TrafficClass, attr.AH.HopLimit = 0x4321, 0x68, 9
	must(t, a.qp.Modify(&attr, verbs.QPAttrAV))
	attr.State = verbs.StateRTS
	must(t, a.qp.Modify(&attr, verbs.QPAttrState))
	a.post(t, a.write(b, 2, 64))
	a.succeed(t)
	if now := portOf(a.qp); now != before {
		t.Errorf("port %d, before %d", now, before)
	}
	bad := attr
	bad.AH.DGID = verbs.GID(netip.MustParseAddr("2001:db8::1").As16())
	if err := a.qp.Modify(&bad, verbs.QPAttrAV); err == nil || portOf(a.qp) != before {
		t.Errorf("%v, and port %d", err, portOf(a.qp))
	}
}
