//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/verbs/rdmacore"
)

var cgroupFlag = flag.Bool("cgroup", false, "reserve huge pages and move this process into a control group "+
	"that may have none; for a machine that is thrown away")

// A container without a share of the host's huge pages gets an arena without them. Mapping reserved
// ones works there, and the first touch ends the process by SIGBUS.
func TestArenaWithoutAShareOfHugePages(t *testing.T) {
	if !*cgroupFlag {
		t.Skip("only with -args -cgroup")
	}
	write := func(path, text string) {
		t.Helper()
		ok(t, os.WriteFile(path, []byte(text), 0o600))
	}
	p, err := rdmacore.Open(rdmacore.Config{Devices: *devicesFlag})
	ok(t, err)
	closeLater(t, p)
	write("/proc/sys/vm/nr_hugepages", "8")
	arena := func() *rdmacore.Arena {
		a, err := p.NewArena(4 << 20)
		ok(t, err)
		closeLater(t, a)
		b := a.Bytes()
		b[0], b[len(b)-1] = 1, 1
		return a
	}
	if !arena().HugePages() {
		t.Error("no huge pages, although the host has some")
	}
	root := t.TempDir()
	ok(t, unix.Mount("none", root, "cgroup2", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	write(filepath.Join(root, "cgroup.subtree_control"), "+hugetlb")
	group := filepath.Join(root, "none")
	ok(t, os.Mkdir(group, 0o700))
	write(filepath.Join(group, "hugetlb.2MB.max"), "0")
	write(filepath.Join(group, "cgroup.procs"), strconv.Itoa(os.Getpid()))
	if arena().HugePages() {
		t.Error("huge pages that the control group does not allow")
	}
}
