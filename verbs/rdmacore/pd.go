//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"

	"ibverbx/verbs"
)

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
