//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// mentions fails unless the error's text has every one of the words.
func mentions(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not mention %q", err, w)
		}
	}
}

func TestOpenWithoutLibrary(t *testing.T) {
	text := filepath.Join(t.TempDir(), "libibverbs.so.1")
	ok(t, os.WriteFile(text, []byte("no library"), 0o666))
	for name, lib := range map[string]struct {
		path  string
		words []string
	}{
		"missing": {"/nonexistent/libibverbs.so.1", []string{"/nonexistent/libibverbs.so.1", "install",
			"libibverbs1"}},
		"no library": {text, []string{text}},
		// purego has opened it already, so that it exists wherever the tests run.
		"another library": {"libc.so.6", []string{"libc.so.6", "ibv_get_device_list"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := rdmacore.Open(rdmacore.Config{Library: lib.path})
			is(t, err, rdmacore.ErrNoLibrary, verbs.ErrNotSupported)
			if p != nil || errors.Is(err, rdmacore.ErrNoDevice) {
				t.Errorf("provider %v, error %v", p, err)
			}
			mentions(t, err, lib.words...)
		})
	}
}

func TestOpenWithoutDevice(t *testing.T) {
	s := openStandin(t, standinConfig{})
	t.Run("library sees none", func(t *testing.T) {
		s.set("devices", 0)
		defer s.set("devices", 2)
		_, err := rdmacore.Open(rdmacore.Config{Library: s.path})
		is(t, err, rdmacore.ErrNoDevice, verbs.ErrNotSupported)
		if errors.Is(err, rdmacore.ErrNoLibrary) {
			t.Errorf("%v is said to be no library", err)
		}
		mentions(t, err, "modprobe")
	})
	t.Run("kernel has no RDMA", func(t *testing.T) {
		s.fail("ibv_get_device_list", syscall.ENOSYS)
		_, err := rdmacore.Open(rdmacore.Config{Library: s.path})
		is(t, err, rdmacore.ErrNoDevice, verbs.ErrNotSupported, syscall.ENOSYS)
		mentions(t, err, "ibv_get_device_list", "modprobe")
	})
	t.Run("filter names none", func(t *testing.T) {
		_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "mlx5_0"})
		is(t, err, rdmacore.ErrNoDevice)
		mentions(t, err, "mlx5_0", "standin0", "standin1")
	})
	t.Run("filter leaves none", func(t *testing.T) {
		_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "^standin0,standin1"})
		is(t, err, rdmacore.ErrNoDevice)
		mentions(t, err, "standin0", "standin1")
	})
	t.Run("filter is no filter", func(t *testing.T) {
		_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "standin0:zero"})
		is(t, err, verbs.ErrInvalid)
	})
}

// What has no connections that Modify could make is left out, and refused when it is asked for by
// name.
func TestOpenTransport(t *testing.T) {
	const iwarp, unspecified = 1, 4
	for transport, words := range map[int]string{iwarp: "iWARP", unspecified: "neither InfiniBand nor RoCE"} {
		s := openStandin(t, standinConfig{Devices: 2})
		s.setPort(0, 1, "transport", transport)
		for _, filter := range []string{"", "^standin7", "standin*"} {
			p, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: filter})
			ok(t, err)
			if d := devices(t, p); len(d) != 1 || d[0].Name() != "standin1" || d[0].ID() != 0 {
				t.Errorf("%q chose %v", filter, d)
			}
			ok(t, p.Close())
		}
		_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "standin1,standin0"})
		is(t, err, verbs.ErrNotSupported)
		mentions(t, err, "standin0", words)
		s.setPort(1, 1, "transport", transport)
		_, err = rdmacore.Open(rdmacore.Config{Library: s.path})
		is(t, err, rdmacore.ErrNoDevice)
		mentions(t, err, "standin0, standin1")
	}
}

func TestOpenFilter(t *testing.T) {
	s := openStandin(t, standinConfig{Devices: 3})
	for filter, want := range map[string]string{
		"":                      "standin0:1 standin1:1 standin2:1",
		"standin2:2,standin0":   "standin2:2 standin0:1",
		"standin*:2":            "standin0:2 standin1:2 standin2:2",
		"^standin1":             "standin0:1 standin2:1",
		"=standin1,standin0:1":  "standin1:1 standin0:1",
		"standin1,standin*:2":   "standin1:2 standin0:2 standin2:2",
		"standin1:2,standin1:2": "standin1:2",
	} {
		p, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: filter})
		if err != nil {
			t.Errorf("%q: %v", filter, err)
			continue
		}
		var got []string
		for i, d := range devices(t, p) {
			got = append(got, d.Name()+":"+string(rune('0'+d.DefaultPort())))
			if int(d.ID()) != i {
				t.Errorf("%q: device %d has id %d", filter, i, d.ID())
			}
		}
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%q chose %s, want %s", filter, g, want)
		}
		if p.Name() != "rdmacore" {
			t.Errorf("name %q", p.Name())
		}
		ok(t, p.Close())
	}
	_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "standin1:3"})
	is(t, err, verbs.ErrInvalid)
	mentions(t, err, "standin1", "port 3", "has 2")
}

func TestOpenManyDevices(t *testing.T) {
	s := openStandin(t, standinConfig{Devices: verbs.MaxDevices})
	if n := len(devices(t, s.open(t, ""))); n != verbs.MaxDevices {
		t.Errorf("%d devices", n)
	}
	s.set("devices", verbs.MaxDevices+1)
	_, err := rdmacore.Open(rdmacore.Config{Library: s.path})
	is(t, err, verbs.ErrInvalid)
	mentions(t, err, "65", "64")
}

// A device that was asked for by name and cannot be opened fails the whole, says what to do, and
// leaves nothing open.
func TestOpenDeviceRefused(t *testing.T) {
	s := openStandin(t, standinConfig{})
	for errno, word := range map[syscall.Errno]string{
		syscall.EACCES: "rdma",
		syscall.EPERM:  "permission",
		syscall.ENOENT: "ib_uverbs",
		syscall.ENODEV: "errno 19",
	} {
		s.fail("ibv_open_device", errno)
		_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "standin0,standin1"})
		is(t, err, errno)
		mentions(t, err, "ibv_open_device", "standin0", word)
	}
	// The second device, when the first is open, and what comes after opening.
	for _, call := range []string{"ibv_open_device", "ibv_query_device"} {
		for device, name := range []string{"standin0", "standin1"} {
			s.failCall(call, int32(syscall.EIO), 1, int32(device))
			_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "standin0,standin1"})
			is(t, err, syscall.EIO)
			mentions(t, err, call, name)
		}
	}
	if n := s.live("all"); n != 0 {
		t.Errorf("%d objects are alive", n)
	}
}

// A call that fails says so in one of three ways, and errno is reachable in each.
func TestErrorStyles(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	for style, name := range []string{"errno returned", "-1 and errno", "-errno returned"} {
		s.set("error_style", style)
		s.fail("ibv_query_device", syscall.EBUSY)
		_, err := d.Query()
		is(t, err, syscall.EBUSY, verbs.ErrBusy)
		mentions(t, err, "query device: standin0: ibv_query_device")
		if t.Failed() {
			t.Fatalf("with %s", name)
		}
	}
}

func TestOldLibrary(t *testing.T) {
	s := openStandin(t, standinConfig{Old: true})
	d := s.device(t)
	pd, err := d.AllocPD()
	ok(t, err)
	closeLater(t, pd)
	_, err = pd.(verbs.DMABufRegistrar).RegisterDMABuf(0, 0, 4096, 0, verbs.AccessLocalWrite)
	is(t, err, verbs.ErrNotSupported)
	mentions(t, err, "ibv_reg_dmabuf_mr", "34")

	// The kind of an entry comes from sysfs, which does not know the stand-in.
	_, err = d.QueryGID(1, 3)
	is(t, err, verbs.ErrNotSupported)
	mentions(t, err, "32")
	// One that is empty has no kind.
	e, err := d.QueryGID(1, 7)
	if err != nil || !e.GID.IsZero() || e.Index != 7 {
		t.Errorf("empty entry: %+v %v", e, err)
	}
}

// One NIC that cannot be opened does not hide the others, unless it was asked for by name.
func TestOpenWithoutOne(t *testing.T) {
	s := openStandin(t, standinConfig{Devices: 2})
	for _, filter := range []string{"", "^standin7", "standin*"} {
		s.fail("ibv_open_device", syscall.EACCES)
		p, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: filter})
		if err != nil {
			t.Errorf("%q: %v", filter, err)
			continue
		}
		if d := devices(t, p); len(d) != 1 || d[0].Name() != "standin1" || d[0].ID() != 0 {
			t.Errorf("%q opened %v", filter, d)
		}
		is(t, p.Unopened(), syscall.EACCES)
		mentions(t, p.Unopened(), "standin0", "ibv_open_device")
		ok(t, p.Close())
	}
	s.fail("ibv_open_device", syscall.EACCES)
	_, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "standin1,standin0"})
	is(t, err, syscall.EACCES)
	mentions(t, err, "standin1")
	s.failTimes("ibv_open_device", syscall.EACCES, 2)
	_, err = rdmacore.Open(rdmacore.Config{Library: s.path})
	is(t, err, syscall.EACCES)
	mentions(t, err, "standin0", "standin1")
	p, err := rdmacore.Open(rdmacore.Config{Library: s.path})
	ok(t, err)
	if d := devices(t, p); len(d) != 2 || p.Unopened() != nil {
		t.Errorf("opened %v, %v", d, p.Unopened())
	}
	ok(t, p.Close())
}

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
