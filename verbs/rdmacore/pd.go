//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"

	"ibverbx/verbs"
)

// pd is a protection domain. Its counts are guarded by the device's lock.
type pd struct {
	d      *device
	addr   uintptr
	mrs    int
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
		return nil, callErr(op, d.name, 0, "ibv_alloc_pd", errno, "")
	}
	d.pds++
	return &pd{d: d, addr: addr}, nil
}

// Device is the NIC that the domain is on.
func (p *pd) Device() verbs.Device { return p.d }

// use counts a new object of the domain in.
func (p *pd) use(op string, count *int) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.closed {
		return p.d.err(op, verbs.ErrClosed, "the protection domain is closed")
	}
	*count++
	return nil
}

// drop counts it out.
func (p *pd) drop(count *int) {
	p.d.mu.Lock()
	*count--
	p.d.mu.Unlock()
}

// Close gives the domain back.
func (p *pd) Close() error {
	const op = "close pd"
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.closed:
		return d.err(op, verbs.ErrClosed, "")
	case p.mrs+p.qps > 0:
		return d.err(op, verbs.ErrBusy, fmt.Sprintf("%d memory regions and %d queue pairs are open", p.mrs, p.qps))
	}
	if errno := d.p.lib.status(d.p.lib.deallocPD, p.addr); errno != 0 {
		return callErr(op, d.name, 0, "ibv_dealloc_pd", errno, "")
	}
	p.closed = true
	d.pds--
	return nil
}
