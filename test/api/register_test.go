package api_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/shm"
	"ibverbx/verbs/soft"
)

// newTappedDomain makes a domain over NICs whose registrations call one function, and whose
// deregistrations another. It gives the fabric back, too, to count its objects.
func newTappedDomain(t *testing.T, nics int,
	register, deregister func(verbs.DeviceID) error) (*ibverbx.Domain, *soft.Fabric) {
	t.Helper()
	fabric := vqptest.NewFabric(t, soft.Config{Devices: nics})
	var list []verbs.Device
	for i := range nics {
		list = append(list, &vqptest.Tap{Device: fabric.Device(i), Register: register,
			Deregister: deregister})
	}
	dom, err := ibverbx.NewDomain(list...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dom.Close(); err != nil {
			t.Error(err)
		}
		if o := fabric.Objects(); o != (soft.Objects{}) {
			t.Errorf("left open: %v", o)
		}
	})
	return dom, fabric
}

func allowed(verbs.DeviceID) error { return nil }

// meeting is a call that returns when so many others are under way.
type meeting struct {
	together int
	mu       sync.Mutex
	inside   int
	most     int // that were inside at a time
	met      chan struct{}
}

func newMeeting(together int) *meeting {
	return &meeting{together: together, met: make(chan struct{})}
}

func (m *meeting) call(verbs.DeviceID) error {
	m.mu.Lock()
	m.inside++
	if m.most = max(m.most, m.inside); m.inside == m.together {
		select {
		case <-m.met:
		default:
			close(m.met)
		}
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.inside--
		m.mu.Unlock()
	}()
	select {
	case <-m.met:
		return nil
	case <-time.After(time.Minute):
		return errors.New("the others did not come")
	}
}

// A large region is registered on its NICs side by side, on so many at a time, and likewise
// deregistered.
func TestRegisterSideBySide(t *testing.T) {
	for _, c := range []struct{ nics, together int }{{2, 2}, {4, 4}, {64, 16}} {
		in, out := newMeeting(c.together), newMeeting(c.together)
		dom, _ := newTappedDomain(t, c.nics, in.call, out.call)
		mr, err := dom.Register(make([]byte, 1<<20), verbs.AccessAll)
		if err != nil {
			t.Fatalf("%d NICs: %v", c.nics, err)
		}
		for dev := range verbs.DeviceID(c.nics) {
			lkey, ok := mr.Keys().Key(dev)
			rkey, ok2 := mr.Remote().At(0).Keys.Key(dev)
			if !ok || !ok2 || lkey == rkey {
				t.Errorf("%d NICs: device %d has the keys %d and %d (%v, %v)", c.nics, dev, lkey, rkey, ok,
					ok2)
			}
		}
		if err := mr.Close(); err != nil {
			t.Errorf("%d NICs: %v", c.nics, err)
		}
		if in.most != c.together || out.most != c.together {
			t.Errorf("%d NICs: %d registered and %d deregistered at a time, want %d", c.nics, in.most,
				out.most, c.together)
		}
	}
}

// A small region costs no goroutine: it is registered on the caller's, NIC by NIC.
func TestRegisterSmallInOrder(t *testing.T) {
	var order []verbs.DeviceID // the race detector sees other goroutines
	note := func(id verbs.DeviceID) error {
		order = append(order, id)
		return nil
	}
	dom, _ := newTappedDomain(t, 3, note, allowed)
	mr, err := dom.Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	if len(order) != 3 || order[0] != 0 || order[1] != 1 || order[2] != 2 {
		t.Errorf("registered on the NICs %v", order)
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}

// A region that one NIC refuses is registered on none.
func TestRegisterAllOrNone(t *testing.T) {
	for _, size := range []int{4096, 1 << 20} {
		for refusing := range verbs.DeviceID(4) {
			var closed atomic.Int32
			dom, fabric := newTappedDomain(t, 4, func(id verbs.DeviceID) error {
				if id == refusing {
					return verbs.ErrNoMemory
				}
				return nil
			}, func(verbs.DeviceID) error {
				closed.Add(1)
				return nil
			})
			mr, err := dom.Register(make([]byte, size), verbs.AccessAll)
			if !errors.Is(err, verbs.ErrNoMemory) || mr != nil {
				t.Fatalf("%d bytes, NIC %d refuses: %v", size, refusing, err)
			}
			// Small regions are registered one after the other, up to the NIC that refuses.
			if n := closed.Load(); size < 1<<20 && n != int32(refusing) {
				t.Errorf("%d bytes, NIC %d refuses: %d regions were closed", size, refusing, n)
			}
			if n := fabric.Objects().MRs; n != 0 {
				t.Errorf("%d bytes, NIC %d refuses: %d regions are open, %d were closed", size, refusing, n,
					closed.Load())
			}
		}
	}
}

// A NIC that fails to deregister keeps none of the others from it, and Close returns its error.
func TestDeregisterFails(t *testing.T) {
	gone := &verbs.OpError{Op: "close memory region", Device: "nic1", Err: verbs.ErrDeviceGone}
	for _, size := range []int{4096, 1 << 20} {
		var closed atomic.Int32
		dom, _ := newTappedDomain(t, 3, allowed, func(id verbs.DeviceID) error {
			closed.Add(1)
			if id == 1 {
				return gone
			}
			return nil
		})
		mr, err := dom.Register(make([]byte, size), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		if err := mr.Close(); !errors.Is(err, gone) || closed.Load() != 3 {
			t.Errorf("%d bytes: closed on %d NICs: %v", size, closed.Load(), err)
		}
	}
}

// movedMR is a region that its NIC knows by another address than the others.
type movedMR struct{ verbs.MR }

func (m movedMR) Addr() uint64 { return m.MR.Addr() + 1 }

// Memory that two NICs know by different addresses has no address in work requests: refused.
func TestRegisterAtDifferentAddresses(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	dom, err := ibverbx.NewDomain(fabric.Device(0), &vqptest.Tap{Device: fabric.Device(1),
		MR: func(mr verbs.MR) verbs.MR { return movedMR{mr} }})
	if err != nil {
		t.Fatal(err)
	}
	_, err = dom.Register(make([]byte, 64), verbs.AccessAll)
	if !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), fabric.Device(1).Name()) {
		t.Errorf("register: %v", err)
	}
	if err := dom.Close(); err != nil {
		t.Error(err)
	}
}

// Memory is registered without a NIC that is gone while there is another one. Where none is left it
// is refused, on none.
func TestRegisterWithoutANICThatIsGone(t *testing.T) {
	for _, size := range []int{4096, 1 << 20} {
		dom, fabric := newTappedDomain(t, 3, allowed, allowed)
		fabric.Device(0).Kill()
		mr, err := dom.Register(make([]byte, size), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		if n := fabric.Objects().MRs; n != 2 || mr.Len() != uint64(size) || mr.Addr() == 0 {
			t.Errorf("%d bytes: on %d NICs, %d bytes at %#x", size, n, mr.Len(), mr.Addr())
		}
		for dev, there := range map[verbs.DeviceID]bool{0: false, 1: true, 2: true} {
			key, ok := mr.Keys().Key(dev)
			if !ok || (key != 0) != there {
				t.Errorf("%d bytes, NIC %d: key %d, %v", size, dev, key, ok)
			}
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		fabric.Device(1).Kill()
		fabric.Device(2).Kill()
		if _, err := dom.Register(make([]byte, size), verbs.AccessAll); !errors.Is(err, verbs.ErrDeviceGone) {
			t.Errorf("all are gone: %v", err)
		}
		if n := fabric.Objects().MRs; n != 0 {
			t.Errorf("%d regions are open", n)
		}
	}
}

// Alloc makes zeroed memory from the start of a page on and registers it on every NIC, or leaves
// nothing behind.
func TestAlloc(t *testing.T) {
	refused := errors.New("no more")
	var refuse atomic.Bool
	dom, fabric := newTappedDomain(t, 2, func(id verbs.DeviceID) error {
		if id == 1 && refuse.Load() {
			return refused
		}
		return nil
	}, allowed)
	for _, n := range []int{1, 4095, 4096, 100_000} {
		mr, err := dom.Alloc(n, verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		b := mr.Bytes()
		if len(b) != n || mr.Len() != uint64(n) || mr.Addr()%uint64(os.Getpagesize()) != 0 ||
			fabric.Objects().MRs != 2 || slices.ContainsFunc(b, func(b byte) bool { return b != 0 }) {
			t.Errorf("%d bytes: %d at %#x, %v", n, len(b), mr.Addr(), fabric.Objects())
		}
		if err := mr.Close(); err != nil || mr.Bytes() != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := dom.Alloc(n, verbs.AccessAll); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	refuse.Store(true)
	if _, err := dom.Alloc(64, verbs.AccessAll); !errors.Is(err, refused) || fabric.Objects().MRs != 0 {
		t.Errorf("one NIC refuses: %v; %v are open", err, fabric.Objects())
	}
	refuse.Store(false)
	mr, err := dom.Alloc(64, verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ibverbx.NewDomain(fabric.Device(0))
	if err == nil {
		err = other.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Alloc(64, verbs.AccessAll); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("in a closed domain: %v", err)
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}

// Over NICs that share memory, Alloc makes theirs. It is given back with the region, before the
// domain.
func TestAllocShared(t *testing.T) {
	p, err := shm.Open(shm.Config{Devices: 2})
	if errors.Is(err, verbs.ErrNotSupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(p.Device(0), p.Device(1))
	if err != nil {
		t.Fatal(err)
	}
	mr, err := dom.Alloc(64, verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	kept := mr.Bytes()
	copy(kept, "kept")
	if _, err := dom.Alloc(1<<60, verbs.AccessAll); !errors.Is(err, verbs.ErrNoMemory) ||
		!strings.Contains(err.Error(), "cgroup") {
		t.Errorf("too much: %v", err)
	}
	if _, err := dom.Alloc(64, verbs.AccessRemoteWrite); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("without local write: %v", err)
	}
	if err := p.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("the provider: %v", err)
	}
	if err := errors.Join(dom.Close(), mr.Close(), p.Close()); err != nil || string(kept[:4]) != "kept" {
		t.Errorf("%v; %q", err, kept[:4])
	}
}
