package rdmacore

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"ibverbx/verbs"
)

// sysTree is /sys/class/infiniband of a host with a RoCE NIC and an InfiniBand one.
var sysTree = fstest.MapFS{
	"mlx5_0/ports/1/gid_attrs/types/0": {Data: []byte("IB/RoCE v1\n")},
	"mlx5_0/ports/1/gid_attrs/types/3": {Data: []byte("RoCE v2\n")},
	"mlx5_0/ports/1/gid_attrs/ndevs/3": {Data: []byte("eth2\n")},
	"ib0/ports/2/gid_attrs/types/0":    {Data: []byte("IB/RoCE v1\n")},
}

func TestSysGIDType(t *testing.T) {
	for _, c := range []struct {
		device      string
		port, index int
		link        verbs.LinkLayer
		want        verbs.GIDType
	}{
		{"mlx5_0", 1, 0, verbs.LinkLayerEthernet, verbs.GIDTypeRoCEv1},
		{"mlx5_0", 1, 3, verbs.LinkLayerEthernet, verbs.GIDTypeRoCEv2},
		{"ib0", 2, 0, verbs.LinkLayerInfiniBand, verbs.GIDTypeIB},
	} {
		if got, err := sysGIDType(sysTree, c.device, c.port, c.index, c.link); got != c.want || err != nil {
			t.Errorf("%s port %d entry %d: %v, %v; want %v", c.device, c.port, c.index, got, err, c.want)
		}
	}
	if _, err := sysGIDType(sysTree, "mlx5_0", 1, 1, verbs.LinkLayerEthernet); err == nil {
		t.Error("an entry that is not there has a type")
	}
}

func TestSysNetDev(t *testing.T) {
	if got := sysNetDev(sysTree, "mlx5_0", 1, 3); got != "eth2" {
		t.Errorf("entry 3 belongs to %q", got)
	}
	if got := sysNetDev(sysTree, "mlx5_0", 1, 0); got != "" {
		t.Errorf("entry 0 belongs to %q", got)
	}
}

// Of a NIC's counters those are read that count what went wrong, by whatever name, and nothing that
// is no number.
func TestSysRepairs(t *testing.T) {
	counters := fstest.MapFS{}
	for file, text := range map[string]string{
		"mlx5_0/ports/1/hw_counters/out_of_sequence":       "3\n",
		"mlx5_0/ports/1/hw_counters/packet_seq_err":        "0\n",
		"mlx5_0/ports/1/hw_counters/np_cnp_sent":           "18446744073709551615\n",
		"mlx5_0/ports/1/hw_counters/rx_write_requests":     "900\n",
		"mlx5_0/ports/1/hw_counters/lifespan":              "10\n",
		"mlx5_0/ports/2/hw_counters/out_of_sequence":       "99\n",
		"rxe0/ports/1/hw_counters/duplicate_request":       "4\n",
		"rxe0/ports/1/hw_counters/retry_rnr_exceeded_err":  "5\n",
		"rxe0/ports/1/hw_counters/link_downed":             "1\n",
		"rxe0/ports/1/hw_counters/sent_pkts":               "1000\n",
		"rxe0/ports/1/hw_counters/completer_retry_err":     "a few\n",
		"rxe0/ports/1/hw_counters/rdma_sends":              "7\n",
		"irdma0/ports/1/hw_counters/RetransSegs":           "6\n",
		"siw0/ports/1/gid_attrs/types/0":                   "RoCE v2\n",
		"rxe0/ports/1/hw_counters/out_of_seq_request/text": "8\n",
	} {
		counters[file] = &fstest.MapFile{Data: []byte(text)}
	}
	for device, want := range map[string]map[string]uint64{
		"mlx5_0": {"out_of_sequence": 3, "packet_seq_err": 0, "np_cnp_sent": 1<<64 - 1},
		"rxe0":   {"duplicate_request": 4, "retry_rnr_exceeded_err": 5, "link_downed": 1},
		"irdma0": {"RetransSegs": 6}, "siw0": {}, "none": {},
	} {
		if got := sysRepairs(counters, device, 1); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", device, got, want)
		}
	}
}

// What the kernel lists decides which reason is given for an empty list of devices.
func TestWhyNoDevice(t *testing.T) {
	for _, c := range []struct {
		name string
		sys  fstest.MapFS
		want []string
	}{
		{"devices without a driver in user space", sysTree, []string{"ib0, mlx5_0", "ibverbs-providers",
			"ib_uverbs"}},
		{"no device", fstest.MapFS{".": {Mode: 0o755 | 1<<31}}, []string{"has no device", "rdma link add"}},
	} {
		text := whyNoDevice(c.sys)
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: %q does not mention %q", c.name, text, want)
			}
		}
	}
	if text := whyNoDevice(os.DirFS(filepath.Join(t.TempDir(), "missing"))); !strings.Contains(
		text, "modprobe rdma_rxe") {
		t.Errorf("no RDMA in the kernel: %q", text)
	}
}

// FuzzSysfs reads an entry of a GID table from files of any content, under a device of any name. An
// entry has a type if and only if there is a file with it, is RoCE v2 if and only if the file says
// so, and its interface is the file's text.
func FuzzSysfs(f *testing.F) {
	f.Add("mlx5_0", 1, 3, true, "RoCE v2\n", "eth2\n")
	f.Add("mlx5_0", 1, 0, true, "IB/RoCE v1\n", "")
	f.Add("ib0", 2, 0, false, "IB/RoCE v1\n", "\n")
	f.Add("../../etc", 1, 0, false, "", "\x00")
	f.Add("a/b", -1, 1<<31, true, "RoCE v2", " eth0 \n\n")
	f.Add("", 0, 0, true, "roce V2", "eth0\neth1")
	f.Fuzz(func(t *testing.T, device string, port, index int, ethernet bool, types, ndevs string) {
		link := verbs.LinkLayerInfiniBand
		if ethernet {
			link = verbs.LinkLayerEthernet
		}
		sys := fstest.MapFS{
			"mlx5_0/ports/1/gid_attrs/types/3": {Data: []byte(types)},
			"mlx5_0/ports/1/gid_attrs/ndevs/3": {Data: []byte(ndevs)},
		}
		there := device == "mlx5_0" && port == 1 && index == 3
		kind, err := sysGIDType(sys, device, port, index, link)
		if (err == nil) != there && fs.ValidPath(device) {
			t.Fatalf("%q port %d entry %d: %v, %v", device, port, index, kind, err)
		}
		if err == nil {
			want := map[bool]verbs.GIDType{true: verbs.GIDTypeRoCEv1, false: verbs.GIDTypeIB}[ethernet]
			if strings.TrimSpace(types) == "RoCE v2" {
				want = verbs.GIDTypeRoCEv2
			}
			if kind != want {
				t.Fatalf("%q is %v, want %v", types, kind, want)
			}
		}
		if name := sysNetDev(sys, device, port, index); there && name != strings.TrimSpace(ndevs) || !there &&
			name != "" && fs.ValidPath(device) {
			t.Fatalf("%q port %d entry %d belongs to %q", device, port, index, name)
		}
		if fs.ValidPath(device) && device != "." && !strings.Contains(device, "/") {
			sys = fstest.MapFS{device: {Mode: fs.ModeDir}}
			if why := whyNoDevice(sys); !strings.Contains(why, device) ||
				!strings.Contains(why, "ibverbs-providers") {
				t.Fatalf("%q: %s", device, why)
			}
		}
	})
}
