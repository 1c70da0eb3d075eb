//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"syscall"
	"testing"

	"ibverbx/verbs"
)

func TestQueryDevice(t *testing.T) {
	s := openStandin(t, standinConfig{})
	for i, d := range devices(t, s.open(t, "")) {
		got, err := d.Query()
		want := verbs.DeviceAttr{
			Firmware: "20.31.1014", NodeGUID: 0x0002c90300a1b200 + uint64(i), VendorID: 0x02c9, PartID: 4123,
			HWVersion: 0x107, Ports: 2,
			MaxQP: 131072, MaxQPWR: 16384, MaxSGE: 30, MaxCQ: 16777216, MaxCQE: 1 << 20, MaxMR: 16777215,
			MaxMRSize: 0x123456789abcd,
			MaxPD:     8388608,
			// 16 as the responder, 15 as the requester: what holds for both.
			MaxRDAtomic: 15,
		}
		if i == 1 { // calls itself rdma_rxe
			want.VendorID, want.Software = 0xffffff, true
		}
		if err != nil || got != want {
			t.Errorf("%s:\n got %+v\nwant %+v\n%v", d.Name(), got, want, err)
		}
	}
}

func TestQueryPort(t *testing.T) {
	s := openStandin(t, standinConfig{})
	list := devices(t, s.open(t, ""))
	for i, d := range list {
		for port := 1; port <= 2; port++ {
			got, err := d.QueryPort(port)
			want := verbs.PortAttr{
				State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU1024, GIDTableLen: 8,
				MaxMsgSize: 1 << 30,
				LID:        uint16(0x1200 + 16*i + port), LinkLayer: verbs.LinkLayerEthernet, Speed: 100e9,
			}
			if err != nil || got != want {
				t.Errorf("%s port %d:\n got %+v\nwant %+v\n%v", d.Name(), port, got, want, err)
			}
		}
	}
	s.setPort(1, 2, "state", int(verbs.PortDown))
	s.setPort(1, 2, "link_layer", int(verbs.LinkLayerInfiniBand))
	if got, err := list[1].QueryPort(2); err != nil || got.State != verbs.PortDown ||
		got.LinkLayer != verbs.LinkLayerInfiniBand {
		t.Errorf("after the change: %+v %v", got, err)
	}
	for _, port := range []int{-1, 0, 3, 255, 256, 257, 1 << 32} {
		_, err := list[0].QueryPort(port)
		is(t, err, verbs.ErrInvalid)
		mentions(t, err, "query port: standin0", "port")
	}
}

// The rates that ibstat and the kernel print.
func TestPortSpeed(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	for _, c := range []struct {
		width, speed int
		gbits        float64
	}{
		{1, 1, 2.5}, {2, 1, 10}, {2, 2, 20}, {2, 4, 40}, {4, 4, 80}, {8, 4, 120},
		{2, 8, 40}, {2, 16, 56}, {2, 32, 100}, {1, 32, 25}, {16, 32, 50}, {2, 64, 200}, {2, 128, 400},
		{4, 128, 800},
		{0, 32, 0}, {2, 0, 0}, {3, 32, 0},
	} {
		s.setPort(0, 1, "width", c.width)
		s.setPort(0, 1, "speed", c.speed)
		a, err := d.QueryPort(1)
		if want := uint64(c.gbits * 1e9); err != nil || a.Speed != want {
			t.Errorf("width %d speed %d: %d bits a second, want %d (%v)", c.width, c.speed, a.Speed, want,
				err)
		}
	}
}

func TestQueryGID(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := devices(t, s.open(t, ""))[1]
	linkLocal, v4 := verbs.GID{0: 0xfe, 1: 0x80, 14: 2, 15: 1}, verbs.GID{10: 0xff, 11: 0xff, 12: 10, 14: 2,
		15: 1}
	for i, want := range []verbs.GIDEntry{
		{Index: 0, GID: linkLocal, Type: verbs.GIDTypeRoCEv1, NetDev: "lo"},
		{Index: 1, GID: linkLocal, Type: verbs.GIDTypeRoCEv2, NetDev: "lo"},
		{Index: 2, GID: v4, Type: verbs.GIDTypeRoCEv1, NetDev: "lo"},
		{Index: 3, GID: v4, Type: verbs.GIDTypeRoCEv2, NetDev: "lo"},
		{Index: 4},
		{Index: 5},
		{Index: 6},
		{Index: 7},
	} {
		if got, err := d.QueryGID(1, i); err != nil || got != want {
			t.Errorf("entry %d:\n got %+v\nwant %+v\n%v", i, got, want, err)
		}
	}
	gid := verbs.GID{0: 0xfe, 1: 0x80, 8: 0x12, 15: 0x34}
	s.setGID(1, 2, 5, &gid[0], int32(verbs.GIDTypeIB))
	if got, err := d.QueryGID(2, 5); err != nil ||
		got != (verbs.GIDEntry{Index: 5, GID: gid, Type: verbs.GIDTypeIB}) {
		t.Errorf("set entry: %+v %v", got, err)
	}
	for _, at := range [][2]int{{1, -1}, {1, 8}, {0, 0}, {3, 0}, {1, 1 << 32}} {
		_, err := d.QueryGID(at[0], at[1])
		is(t, err, verbs.ErrInvalid)
	}
	s.fail("ibv_query_gid_ex", syscall.EIO)
	_, err := d.QueryGID(1, 0)
	is(t, err, syscall.EIO)
	mentions(t, err, "query gid: standin1", "port 1, index 0")
}
