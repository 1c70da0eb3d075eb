package roce

import (
	"sync/atomic"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// PD is a protection domain. It is a verbs.PD.
type PD struct {
	_    guard.NoCopy
	dev  *Device
	core nic.PD
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (verbs.PD, error) {
	p := &PD{dev: d}
	if err := p.core.Init(&d.core); err != nil {
		return nil, err
	}
	return p, nil
}

// Device is the NIC that the domain belongs to.
func (p *PD) Device() verbs.Device { return p.dev }

// Close frees the domain.
func (p *PD) Close() error { return p.core.Close() }

// MR is a registered memory region. It is a verbs.MR.
type MR struct {
	_    guard.NoCopy
	core nic.MR
}

// RegisterMR makes buf known to the NIC.
func (p *PD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	m := &MR{}
	if err := m.core.Register(&p.core, buf, access); err != nil {
		return nil, err
	}
	return m, nil
}

// RegisterDMABuf makes memory known to the NIC by a file descriptor that can be mapped, as
// [verbs.DMABufRegistrar] says; needs Linux.
func (p *PD) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.AccessFlags) (verbs.MR, error) {
	m := &MR{}
	if err := m.core.RegisterDMABuf(&p.core, fd, offset, length, iova, access); err != nil {
		return nil, err
	}
	return m, nil
}

// Addr is the real address of the buffer; of a dma-buf, its iova.
func (m *MR) Addr() uint64 { return m.core.Addr() }

// Len is the size in bytes.
func (m *MR) Len() uint64 { return m.core.Len() }

// LKey is the local key: a random number.
func (m *MR) LKey() uint32 { return m.core.LKey() }

// RKey is the remote key: a random number.
func (m *MR) RKey() uint32 { return m.core.RKey() }

// Close deregisters.
func (m *MR) Close() error { return m.core.Close() }

// CQ is a completion queue. It is a verbs.CQ.
type CQ struct {
	_    guard.NoCopy
	dev  *Device
	core nic.CQ
	// armed is set from Arm until completions are polled. A program that polls meanwhile does not
	// poll on, but waits for the event.
	armed atomic.Bool
}

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	c := &CQ{dev: d}
	if err := c.core.Init(&d.core, c, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// coreOf returns the core of this package's completion queue; nil for another provider's.
func coreOf(cq verbs.CQ) *nic.CQ {
	if c, ok := cq.(*CQ); ok && c != nil {
		return &c.core
	}
	return nil
}

// Device is the NIC that the queue belongs to.
func (c *CQ) Device() verbs.Device { return c.dev }

// Depth is the depth that was asked for.
func (c *CQ) Depth() int { return c.core.Depth() }

// Channel is the completion channel, or nil.
func (c *CQ) Channel() *verbs.CompChannel { return c.core.Channel() }

// Poll moves completions into wcs. When there are none, it receives the packets that have arrived
// at the NIC's socket.
func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	if !c.core.Attention() {
		c.dev.recv.help(!c.armed.Load())
	}
	n, err := c.core.Poll(wcs)
	if n > 0 && c.armed.Load() {
		c.armed.Store(false)
	}
	return n, err
}

// Arm asks for one event. Arming for any completion outweighs arming for solicited ones.
func (c *CQ) Arm(solicitedOnly bool) error {
	if err := c.core.Arm(solicitedOnly); err != nil {
		return err
	}
	c.armed.Store(true)
	c.dev.recv.stopKeepingOut()
	return nil
}

// Close destroys the queue.
func (c *CQ) Close() error { return c.core.Close() }
