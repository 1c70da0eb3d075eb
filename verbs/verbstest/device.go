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
