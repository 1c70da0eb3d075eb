package rdmacore

import (
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"ibverbx/verbs"
)

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
