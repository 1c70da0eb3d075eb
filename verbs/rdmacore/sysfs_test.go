package rdmacore

import (
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
