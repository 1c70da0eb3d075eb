//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"ibverbx/verbs"
)

// mr is a registered memory region.
type mr struct {
	pd         *pd
	c          uintptr
	addr, size uint64
	lkey, rkey uint32
	buf        []byte // keeps Go memory reachable; nil for a dma-buf
	pin        runtime.Pinner
	arena      *Arena // the arena that contains buf; nil for other memory

	mu     sync.Mutex
	closed bool
}

// RegisterMR registers buf with the NIC. Memory of the Go heap is pinned, for Go and for the
// kernel, until the region is closed.
func (p *pd) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	const op = "register memory"
	switch {
	case len(buf) == 0:
		return nil, p.d.err(op, verbs.ErrInvalid, "the buffer is empty")
	case !access.Valid():
		return nil, p.d.err(op, verbs.ErrInvalid, fmt.Sprintf("access %v: remote write and remote atomic "+
			"need local write", access))
	}
	m := &mr{pd: p, buf: buf, size: uint64(len(buf))}
	if err := p.add(op, m); err != nil {
		return nil, err
	}
	m.pin.Pin(&buf[0])
	m.arena = p.d.p.useArena(buf)
	start := address(&buf[0])
	c, call, errno := p.register(start, uintptr(len(buf)), access)
	if errno != 0 {
		m.release()
		return nil, p.d.callErr(op, 0, call, errno, registerHint(errno, len(buf)))
	}
	m.adopt(c, uint64(start))
	return m, nil
}

// register calls the library, and returns the name of the function that it called. Optional rights
// (package verbs has one, relaxed ordering) go through ibv_reg_mr_iova2, which leaves out those
// that the kernel does not know; ibv_reg_mr would pass them to the driver, which may refuse, so
// register drops them there.
func (p *pd) register(start, size uintptr, access verbs.AccessFlags) (c uintptr, call string,
	errno syscall.Errno) {
	lib := p.d.p.lib
	if access&verbs.AccessRelaxedOrdering != 0 && lib.regMRIova2 != 0 {
		c, errno = lib.pointer(lib.regMRIova2, p.addr, start, size, start, uintptr(access))
		return c, "ibv_reg_mr_iova2", errno
	}
	access &^= verbs.AccessRelaxedOrdering
	c, errno = lib.pointer(lib.regMR, p.addr, start, size, uintptr(access))
	return c, "ibv_reg_mr", errno
}

// RegisterDMABuf registers part of a dma-buf with the NIC.
func (p *pd) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.AccessFlags) (verbs.MR, error) {
	const op = "register dma-buf"
	lib := p.d.p.lib
	switch {
	case length == 0:
		return nil, p.d.err(op, verbs.ErrInvalid, "no bytes")
	case !access.Valid():
		return nil, p.d.err(op, verbs.ErrInvalid, fmt.Sprintf("access %v: remote write and remote atomic "+
			"need local write", access))
	case iova+length < iova:
		return nil, p.d.err(op, verbs.ErrInvalid, fmt.Sprintf("%d bytes at %#x go beyond the address space",
			length, iova))
	case (iova^offset)%uint64(os.Getpagesize()) != 0:
		return nil, p.d.err(op, verbs.ErrInvalid, fmt.Sprintf("iova %#x and offset %#x: must lie at the "+
			"same place of a page", iova, offset))
	case lib.regDMABufMR == 0:
		return nil, p.d.err(op, verbs.ErrNotSupported,
			"this libibverbs has no ibv_reg_dmabuf_mr: rdma-core 34 or later has it")
	}
	m := &mr{pd: p, size: length}
	if err := p.add(op, m); err != nil {
		return nil, err
	}
	c, errno := lib.pointer(lib.regDMABufMR, p.addr, uintptr(offset), uintptr(length), uintptr(iova),
		uintptr(fd), uintptr(access))
	if errno != 0 {
		m.release()
		hint := ""
		if errno == syscall.EOPNOTSUPP {
			hint = "needs Linux 5.12 and a driver that takes part"
		}
		return nil, p.d.callErr(op, 0, "ibv_reg_dmabuf_mr", errno, hint)
	}
	m.adopt(c, iova)
	return m, nil
}

// adopt records the region that the library has made.
func (m *mr) adopt(c uintptr, addr uint64) {
	r := object[ibvMR](c)
	m.c, m.addr, m.lkey, m.rkey = c, addr, r.lkey, r.rkey
}

// registerHint returns what to do if memory cannot be registered.
func registerHint(errno syscall.Errno, size int) string {
	switch errno {
	case syscall.ENOMEM:
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && limit.Cur != unix.RLIM_INFINITY {
			return fmt.Sprintf("%d bytes: a process without CAP_IPC_LOCK may lock %d bytes in all: raise "+
				"the limit "+
				"(ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; memlock in "+
				"/etc/security/limits.conf)", size, limit.Cur)
		}
		return fmt.Sprintf("%d bytes: the host has not so much memory to lock, or the NIC no room for more "+
			"regions", size)
	case syscall.EAGAIN, syscall.ENOSPC:
		return "a limit on the number of regions: of the NIC, or of the control group (rdma.max)"
	case syscall.EFAULT:
		return "the memory is not mapped, or not writable as the access rights ask"
	}
	return ""
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) Len() uint64  { return m.size }
func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// Close deregisters the region.
func (m *mr) Close() error {
	const op = "close memory region"
	d := m.pd.d
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return d.err(op, verbs.ErrClosed, "")
	}
	if errno := d.destroy(d.p.lib.deregMR, m.c); errno != 0 {
		return d.callErr(op, 0, "ibv_dereg_mr", errno, "")
	}
	m.closed = true
	m.release()
	return nil
}

// release undoes what registering did in Go.
func (m *mr) release() {
	m.pin.Unpin()
	m.buf = nil
	m.arena.drop()
	m.pd.remove(m)
}

// pd is a protection domain. The fields after addr are guarded by the device's lock.
type pd struct {
	d    *device
	addr uintptr
	// mrs holds the open regions, which keeps their memory reachable: the NIC may still write to a
	// region that the program has dropped without closing it.
	mrs    map[*mr]struct{}
	qps    int
	closed bool
}

// AllocPD makes a protection domain.
func (d *device) AllocPD() (verbs.PD, error) {
	const op = "alloc pd"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.err(op, verbs.ErrClosed, "the provider is closed")
	}
	addr, errno := d.p.lib.pointer(d.p.lib.allocPD, d.ctx)
	if errno != 0 {
		return nil, d.callErr(op, 0, "ibv_alloc_pd", errno, "")
	}
	p := &pd{d: d, addr: addr, mrs: map[*mr]struct{}{}}
	d.pds[p] = struct{}{}
	return p, nil
}

// Device returns the NIC that the domain is on.
func (p *pd) Device() verbs.Device { return p.d }

// add counts a region that is about to be registered.
func (p *pd) add(op string, m *mr) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.closed {
		return p.d.err(op, verbs.ErrClosed, "the protection domain is closed")
	}
	p.mrs[m] = struct{}{}
	return nil
}

// remove undoes add.
func (p *pd) remove(m *mr) {
	p.d.mu.Lock()
	delete(p.mrs, m)
	p.d.mu.Unlock()
}

// Close frees the domain.
func (p *pd) Close() error {
	const op = "close pd"
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.closed:
		return d.err(op, verbs.ErrClosed, "")
	case len(p.mrs)+p.qps > 0:
		return d.err(op, verbs.ErrBusy, fmt.Sprintf("%d memory regions and %d queue pairs are open",
			len(p.mrs), p.qps))
	}
	if errno := d.destroy(d.p.lib.deallocPD, p.addr); errno != 0 {
		return d.callErr(op, 0, "ibv_dealloc_pd", errno, "")
	}
	p.closed = true
	delete(d.pds, p)
	return nil
}
