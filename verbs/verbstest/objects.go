package verbstest

import (
	"testing"

	"ibverbx/verbs"
)

func testDevice(t *testing.T, s *suite) {
	for _, dev := range []verbs.Device{s.a, s.b} {
		s.run(t, "query_"+dev.Name(), func(t *testing.T) { s.queryDevice(t, dev) })
		if s.a == s.b {
			break
		}
	}
	s.run(t, "identity", func(t *testing.T) {
		if s.a == s.b {
			t.Skip("one device")
		}
		if s.a.ID() == s.b.ID() || s.a.Name() == s.b.Name() {
			t.Errorf("two devices are both %s, number %d", s.a.Name(), s.a.ID())
		}
	})
}

func (s *suite) queryDevice(t *testing.T, dev verbs.Device) {
	port := s.env.Port
	if dev.Name() == "" || dev.ID() >= verbs.MaxDevices {
		t.Errorf("name %q, number %d", dev.Name(), dev.ID())
	}
	attr, err := dev.Query()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]int{
		"Ports": attr.Ports, "MaxQP": attr.MaxQP, "MaxQPWR": attr.MaxQPWR, "MaxSGE": attr.MaxSGE,
		"MaxCQ":  attr.MaxCQ,
		"MaxCQE": attr.MaxCQE, "MaxMR": attr.MaxMR, "MaxPD": attr.MaxPD, "MaxRDAtomic": attr.MaxRDAtomic,
	} {
		if v < 1 {
			t.Errorf("%s is %d", name, v)
		}
	}
	if def := dev.DefaultPort(); def < 1 || def > attr.Ports {
		t.Errorf("the default port is %d of %d", def, attr.Ports)
	}
	if attr.Ports < port || attr.MaxMRSize == 0 || attr.MaxInline < 0 {
		t.Errorf("%d ports, regions of %d bytes, inline of %d bytes", attr.Ports, attr.MaxMRSize,
			attr.MaxInline)
	}

	index := s.env.gidIndex(dev)
	p, err := dev.QueryPort(port)
	if err != nil {
		t.Fatal(err)
	}
	// IBTA volume 1: the longest message of a reliable connection is 2^31 bytes; many software NICs
	// carry less.
	if p.State != verbs.PortActive || p.GIDTableLen <= index || p.MaxMsgSize < 1<<20 ||
		p.MaxMsgSize > 1<<31 {
		t.Errorf("port %d: %v, %d GIDs, messages of %d bytes", port, p.State, p.GIDTableLen, p.MaxMsgSize)
	}
	if p.ActiveMTU.Bytes() == 0 || p.MaxMTU.Bytes() == 0 || p.ActiveMTU > p.MaxMTU {
		t.Errorf("port %d: MTU %v of at most %v", port, p.ActiveMTU, p.MaxMTU)
	}
	for _, bad := range []int{-1, 0, attr.Ports + 1} {
		_, err := dev.QueryPort(bad)
		wantErr(t, "query of a port that is not there", err, verbs.ErrInvalid)
		_, err = dev.QueryGID(bad, 0)
		wantErr(t, "query of a GID of a port that is not there", err, verbs.ErrInvalid)
	}

	g, err := dev.QueryGID(port, index)
	if err != nil {
		t.Fatal(err)
	}
	if g.GID.IsZero() || g.Index != index {
		t.Errorf("GID %d: %v, index %d", index, g.GID, g.Index)
	}
	for _, bad := range []int{-1, p.GIDTableLen} {
		_, err := dev.QueryGID(port, bad)
		wantErr(t, "query of a GID that is not there", err, verbs.ErrInvalid)
	}
}

func testObjects(t *testing.T, s *suite) {
	s.run(t, "close_order", s.closeOrder)
	s.run(t, "after_close", s.afterClose)
	s.run(t, "arguments", s.createArguments)
	s.run(t, "properties", s.properties)
}

// closeOrder closes parents too early, then in the right order, then again.
func (s *suite) closeOrder(t *testing.T) {
	n := s.node(t)
	pd := n.NewPD()
	cq := n.NewCQ(verbs.CQConfig{})
	recvCQ := n.NewCQ(verbs.CQConfig{})
	mr, err := pd.RegisterMR(make([]byte, 4096), verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "closing a domain with a memory region", pd.Close(), verbs.ErrBusy)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: recvCQ})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "closing the send queue's completion queue", cq.Close(), verbs.ErrBusy)
	wantErr(t, "closing the receive queue's completion queue", recvCQ.Close(), verbs.ErrBusy)
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, "closing a domain with a queue pair", pd.Close(), verbs.ErrBusy)

	// An object that refused to close still works.
	if _, err := cq.Poll(make([]verbs.WC, 1)); err != nil {
		t.Errorf("poll: %v", err)
	}
	if mr, err := pd.RegisterMR(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	} else if err := mr.Close(); err != nil {
		t.Error(err)
	}

	for _, x := range []struct {
		what string
		c    interface{ Close() error }
	}{
		{"queue pair", qp}, {"completion queue", cq}, {"receive completion queue", recvCQ},
		{"protection domain", pd}, {"memory region", mr},
	} {
		if err := x.c.Close(); err != nil && x.what != "memory region" {
			t.Errorf("close %s: %v", x.what, err)
		}
		wantErr(t, "closing the "+x.what+" twice", x.c.Close(), verbs.ErrClosed)
	}
}

// afterClose calls methods of closed objects.
func (s *suite) afterClose(t *testing.T) {
	p := s.pair(t, PairConfig{})
	n := p.A.Node
	pd := n.NewPD()
	if err := p.A.QP.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.A.SendCQ.Close(); err != nil {
		t.Fatal(err)
	}
	if err := pd.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := p.A.QP.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMAWrite}})
	wantErr(t, "post send", err, verbs.ErrClosed)
	_, err = p.A.QP.PostRecv([]verbs.RecvWR{{}})
	wantErr(t, "post receive", err, verbs.ErrClosed)
	wantErr(t, "modify", p.A.QP.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState),
		verbs.ErrClosed)
	_, err = p.A.SendCQ.Poll(make([]verbs.WC, 1))
	wantErr(t, "poll", err, verbs.ErrClosed)
	_, err = pd.RegisterMR(make([]byte, 1), 0)
	wantErr(t, "register", err, verbs.ErrClosed)
	_, err = pd.CreateQP(verbs.QPConfig{SendCQ: p.A.RecvCQ, RecvCQ: p.A.RecvCQ})
	wantErr(t, "create queue pair in a closed domain", err, verbs.ErrClosed)
	_, err = n.PD.CreateQP(verbs.QPConfig{SendCQ: p.A.SendCQ, RecvCQ: p.A.RecvCQ})
	wantErr(t, "create queue pair on a closed completion queue", err, verbs.ErrClosed)
}

// createArguments tries to make objects with invalid arguments.
func (s *suite) createArguments(t *testing.T) {
	n := s.node(t)
	attr, err := s.a.Query()
	if err != nil {
		t.Fatal(err)
	}
	cq := n.NewCQ(verbs.CQConfig{})
	for name, cfg := range map[string]verbs.CQConfig{
		"negative depth": {Depth: -1},
		"too deep":       {Depth: attr.MaxCQE + 1},
	} {
		_, err := s.a.CreateCQ(cfg)
		wantErr(t, name, err, verbs.ErrInvalid)
	}
	for name, cfg := range map[string]verbs.QPConfig{
		"no completion queues":        {},
		"no send completion queue":    {RecvCQ: cq},
		"no receive completion queue": {SendCQ: cq},
		"negative send queue":         {SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: -1}},
		"send queue too long": {SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: attr.MaxQPWR + 1}},
		"receive queue too long": {SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxRecvWR: attr.MaxQPWR + 1}},
		"too many elements": {SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendSGE: attr.MaxSGE + 1}},
	} {
		_, err := n.PD.CreateQP(cfg)
		wantErr(t, name, err, verbs.ErrInvalid)
	}
	if s.a != s.b {
		other := NewNode(t, s.env, s.b).NewCQ(verbs.CQConfig{})
		_, err := n.PD.CreateQP(verbs.QPConfig{SendCQ: other, RecvCQ: cq})
		wantErr(t, "a completion queue of another device", err, verbs.ErrInvalid)
		_, err = n.PD.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: other})
		wantErr(t, "a receive completion queue of another device", err, verbs.ErrInvalid)
	}
	// ibv_reg_mr(3): remote write and remote atomic demand local write.
	for _, access := range []verbs.AccessFlags{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic, 1 << 21} {
		_, err := n.PD.RegisterMR(make([]byte, 64), access)
		wantErr(t, "register for "+access.String(), err, verbs.ErrInvalid)
	}
}

// properties checks the accessors of new objects.
func (s *suite) properties(t *testing.T) {
	n := s.node(t)
	channel := verbs.NewCompChannel()
	cq := n.NewCQ(verbs.CQConfig{Depth: 100, Channel: channel})
	if cq.Depth() < 100 || cq.Channel() != channel || cq.Device() != s.a {
		t.Errorf("completion queue: depth %d, channel %p, device %v", cq.Depth(), cq.Channel(), cq.Device())
	}
	if plain := n.NewCQ(verbs.CQConfig{}); plain.Channel() != nil || plain.Depth() < 256 {
		t.Errorf("default completion queue: channel %v, depth %d", plain.Channel(), plain.Depth())
	}
	if n.PD.Device() != s.a {
		t.Errorf("domain of device %v", n.PD.Device())
	}

	buf := n.Register(5000, verbs.AccessAll)
	inner := n.registerIn(n.PD, buf.B[100:200], verbs.AccessLocalWrite) // regions may overlap
	if buf.Len() != 5000 || inner.Len() != 100 || buf.Addr() == 0 {
		t.Errorf("regions of %d and %d bytes at %#x", buf.Len(), inner.Len(), buf.Addr())
	}
	if inner.LKey() == buf.LKey() || inner.Addr() != buf.At(100) {
		t.Errorf("overlapping regions: keys %#x and %#x, addresses %#x and %#x", buf.LKey(), inner.LKey(),
			buf.Addr(), inner.Addr())
	}

	seen := map[uint32]bool{}
	want := verbs.QPCap{MaxSendWR: 10, MaxRecvWR: 20, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 16}
	for _, asked := range []verbs.QPCap{want, {}} {
		qp := n.NewQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: asked})
		got, least := qp.Cap(), asked.WithDefaults()
		if got.MaxSendWR < least.MaxSendWR || got.MaxRecvWR < least.MaxRecvWR ||
			got.MaxSendSGE < least.MaxSendSGE ||
			got.MaxRecvSGE < least.MaxRecvSGE || got.MaxInline < least.MaxInline {
			t.Errorf("capacity %+v, asked for %+v", got, least)
		}
		if qp.Num() == 0 || qp.Num() >= 1<<24 || seen[qp.Num()] {
			t.Errorf("queue pair number %#x", qp.Num())
		}
		seen[qp.Num()] = true
		if qp.State() != verbs.StateReset || qp.Device() != s.a {
			t.Errorf("new queue pair: %v, device %v", qp.State(), qp.Device())
		}
	}
}
