//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// newPD allocates a protection domain that the test's end closes.
func newPD(t testing.TB, d verbs.Device) verbs.PD {
	t.Helper()
	pd, err := d.AllocPD()
	ok(t, err)
	closeLater(t, pd)
	return pd
}

func TestRegisterMemory(t *testing.T) {
	s := openStandin(t, standinConfig{})
	pd := newPD(t, s.device(t))
	buf := make([]byte, 10000)
	part := buf[100:4200:4200]
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteRead
	mr, err := pd.RegisterMR(part, access)
	ok(t, err)
	closeLater(t, mr)
	start := uint64(reflect.ValueOf(part).Pointer())
	if got := s.registered(); got.Addr != start || got.Length != 4100 || got.Access != uint64(access) {
		t.Errorf("registered %+v, want %#x", got, start)
	}
	if mr.Addr() != start || mr.Len() != 4100 {
		t.Errorf("region at %#x of %d bytes", mr.Addr(), mr.Len())
	}
	second, err := pd.RegisterMR(buf, verbs.AccessAll)
	ok(t, err)
	closeLater(t, second)
	if mr.LKey() == second.LKey() || mr.RKey() == second.RKey() || mr.LKey() == mr.RKey() ||
		mr.LKey()&0xff != 0x11 || mr.RKey()>>31 != 1 {
		t.Errorf("keys %#x %#x, and %#x %#x", mr.LKey(), mr.RKey(), second.LKey(), second.RKey())
	}
	if n := s.live("mr"); n != 2 {
		t.Errorf("%d regions are alive", n)
	}
	ok(t, mr.Close())
	if n := s.live("mr"); n != 1 {
		t.Errorf("%d regions are alive after one was closed", n)
	}
	is(t, mr.Close(), verbs.ErrClosed)
}

func TestRegisterRefused(t *testing.T) {
	s := openStandin(t, standinConfig{})
	pd := newPD(t, s.device(t))
	buf := make([]byte, 4096)
	for _, empty := range [][]byte{nil, {}, buf[:0]} {
		_, err := pd.RegisterMR(empty, verbs.AccessLocalWrite)
		is(t, err, verbs.ErrInvalid)
	}
	for _, access := range []verbs.AccessFlags{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic, 1 << 21} {
		_, err := pd.RegisterMR(buf, access)
		is(t, err, verbs.ErrInvalid)
	}

	var old syscall.Rlimit
	const memlock = 8
	ok(t, syscall.Getrlimit(memlock, &old))
	t.Cleanup(func() { ok(t, syscall.Setrlimit(memlock, &old)) })
	ok(t, syscall.Setrlimit(memlock, &syscall.Rlimit{Cur: 65536, Max: old.Max}))
	s.fail("ibv_reg_mr", syscall.ENOMEM)
	_, err := pd.RegisterMR(buf, verbs.AccessLocalWrite)
	is(t, err, verbs.ErrNoMemory, syscall.ENOMEM)
	mentions(t, err, "register memory: standin0", "ibv_reg_mr", "4096 bytes", "65536 bytes", "ulimit -l",
		"LimitMEMLOCK")

	s.fail("ibv_reg_mr", syscall.EFAULT)
	_, err = pd.RegisterMR(buf, verbs.AccessLocalWrite)
	is(t, err, verbs.ErrInvalid, syscall.EFAULT)
	ok(t, pd.Close()) // nothing refused counts as open
}

// Relaxed ordering is asked for by the call that takes optional rights, at the memory's own
// address, and left out where the library has no such call.
func TestRelaxedOrdering(t *testing.T) {
	for _, old := range []bool{false, true} {
		s := openStandin(t, standinConfig{Old: old})
		pd := newPD(t, s.device(t))
		buf := make([]byte, 4096)
		mr, err := pd.RegisterMR(buf, verbs.AccessAll|verbs.AccessRelaxedOrdering)
		ok(t, err)
		start := uint64(reflect.ValueOf(buf).Pointer())
		want := registered{Addr: start, Length: 4096, IOVA: start,
			Access: uint64(verbs.AccessAll | verbs.AccessRelaxedOrdering)}
		if old {
			want.IOVA, want.Access = 0, uint64(verbs.AccessAll)
		}
		if got := s.registered(); got != want {
			t.Errorf("old %v: registered %+v, want %+v", old, got, want)
		}
		if mr.Addr() != start || mr.Len() != 4096 {
			t.Errorf("old %v: region at %#x of %d bytes", old, mr.Addr(), mr.Len())
		}
		ok(t, mr.Close())
		_, err = pd.RegisterMR(buf, verbs.AccessRemoteWrite|verbs.AccessRelaxedOrdering)
		is(t, err, verbs.ErrInvalid)
		if !old { // a refusal names the call that refused
			s.fail("ibv_reg_mr_iova2", syscall.EFAULT)
			_, err = pd.RegisterMR(buf, verbs.AccessLocalWrite|verbs.AccessRelaxedOrdering)
			is(t, err, verbs.ErrInvalid, syscall.EFAULT)
			mentions(t, err, "ibv_reg_mr_iova2")
		}
	}
}

// A region keeps Go memory reachable until it is closed, even one that the program has forgotten:
// the NIC may still write to it.
func TestRegionKeepsMemory(t *testing.T) {
	s := openStandin(t, standinConfig{})
	pd := newPD(t, s.device(t))
	freed := make(chan struct{})
	func() {
		buf := make([]byte, 1<<20)
		runtime.AddCleanup(&buf[0], func(struct{}) { close(freed) }, struct{}{})
		_, err := pd.RegisterMR(buf, verbs.AccessLocalWrite)
		ok(t, err)
	}()
	collected := func() bool {
		for range 5 {
			runtime.GC()
		}
		select {
		case <-freed:
			return true
		default:
			return false
		}
	}
	if collected() {
		t.Fatal("the memory was collected while it was registered")
	}
	is(t, pd.Close(), verbs.ErrBusy)
	for _, mr := range rdmacore.OpenRegions(pd) {
		ok(t, mr.Close())
	}
	for range 100 {
		if collected() {
			return
		}
		runtime.Gosched()
	}
	t.Error("the memory was not collected after the region was closed")
}

func TestArena(t *testing.T) {
	s := openStandin(t, standinConfig{})
	p := s.open(t, "")
	list := devices(t, p)
	for _, size := range []int{1, 4096, 10000, 2 << 20, 5<<20 + 3} {
		a, err := p.NewArena(size)
		ok(t, err)
		b := a.Bytes()
		if len(b) != size || cap(b) != size {
			t.Errorf("arena of %d bytes has %d, capacity %d", size, len(b), cap(b))
		}
		if a.HugePages() && size < 2<<20 {
			t.Errorf("%d bytes on huge pages", size)
		}
		for i := range b {
			if b[i] != 0 {
				t.Fatalf("byte %d of a new arena is %d", i, b[i])
			}
			b[i] = byte(i)
		}
		// Registered whole on one device and in part on another; it stays until both are closed.
		pd0, pd1 := newPD(t, list[0]), newPD(t, list[1])
		whole, err := pd0.RegisterMR(b, verbs.AccessAll)
		ok(t, err)
		part, err := pd1.RegisterMR(b[size/2:], verbs.AccessAll)
		ok(t, err)
		if part.Addr() != whole.Addr()+uint64(size/2) {
			t.Errorf("part at %#x of an arena at %#x", part.Addr(), whole.Addr())
		}
		is(t, a.Close(), verbs.ErrBusy)
		ok(t, whole.Close())
		is(t, a.Close(), verbs.ErrBusy)
		is(t, p.Close(), verbs.ErrBusy)
		ok(t, part.Close())
		ok(t, a.Close())
		is(t, a.Close(), verbs.ErrClosed)
	}
	for _, size := range []int{0, -1} {
		_, err := p.NewArena(size)
		is(t, err, verbs.ErrInvalid)
	}
	_, err := p.NewArena(1 << 60)
	is(t, err, verbs.ErrNoMemory)

	// An open arena keeps the provider open.
	other := s.open(t, "")
	a, err := other.NewArena(4096)
	ok(t, err)
	is(t, other.Close(), verbs.ErrBusy)
	ok(t, a.Close())
	ok(t, other.Close())
	_, err = other.NewArena(4096)
	is(t, err, verbs.ErrClosed)
	if b := a.Bytes(); b != nil {
		t.Errorf("a closed arena has %d bytes", len(b))
	}
}

// A registration that was refused does not keep its arena.
func TestArenaAfterRefusedRegistration(t *testing.T) {
	s := openStandin(t, standinConfig{})
	p := s.open(t, "")
	a, err := p.NewArena(8192)
	ok(t, err)
	pd := newPD(t, devices(t, p)[0])
	s.fail("ibv_reg_mr", syscall.ENOMEM)
	_, err = pd.RegisterMR(a.Bytes(), verbs.AccessAll)
	is(t, err, verbs.ErrNoMemory)
	ok(t, a.Close())
}

func TestDMABuf(t *testing.T) {
	s := openStandin(t, standinConfig{})
	pd := newPD(t, s.device(t))
	reg := pd.(verbs.DMABufRegistrar)
	file, err := os.Open(os.DevNull)
	ok(t, err)
	defer file.Close()
	fd := int(file.Fd())
	const offset, length, iova = 0x3000, 0x1_2345_6000, 0x7f00_0000_0000
	mr, err := reg.RegisterDMABuf(fd, offset, length, iova, verbs.AccessAll)
	ok(t, err)
	closeLater(t, mr)
	if got, want := s.registered(), (registered{Length: length, Offset: offset, IOVA: iova, FD: uint64(fd),
		Access: uint64(verbs.AccessAll)}); got != want {
		t.Errorf("registered %+v, want %+v", got, want)
	}
	// libibverbs has the offset where a region of process memory has the address.
	if mr.Addr() != iova || mr.Len() != length || mr.LKey() == 0 || mr.RKey() == 0 {
		t.Errorf("region at %#x of %d bytes", mr.Addr(), mr.Len())
	}
	is(t, pd.Close(), verbs.ErrBusy)
	ok(t, mr.Close())

	_, err = reg.RegisterDMABuf(fd, 0, 0, 0, verbs.AccessAll)
	is(t, err, verbs.ErrInvalid)
	_, err = reg.RegisterDMABuf(fd, 0, 4096, 0, verbs.AccessRemoteWrite)
	is(t, err, verbs.ErrInvalid)
	_, err = reg.RegisterDMABuf(fd, 100, 4096, 0, verbs.AccessAll) // at another place of a page
	is(t, err, verbs.ErrInvalid)
	_, err = reg.RegisterDMABuf(fd, 0, 8192, 1<<64-4096, verbs.AccessAll)
	is(t, err, verbs.ErrInvalid)
	_, err = reg.RegisterDMABuf(1<<20, 0, 4096, 0, verbs.AccessAll)
	is(t, err, syscall.EBADF)
	s.fail("ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP)
	_, err = reg.RegisterDMABuf(fd, 0, 4096, 0, verbs.AccessAll)
	is(t, err, verbs.ErrNotSupported, syscall.EOPNOTSUPP)
	mentions(t, err, "5.12", "driver")
	ok(t, pd.Close())
	_, err = reg.RegisterDMABuf(fd, 0, 4096, 0, verbs.AccessAll)
	is(t, err, verbs.ErrClosed)
}

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
