package soft

import (
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

// Device returns the NIC that the domain belongs to.
func (p *PD) Device() verbs.Device { return p.dev }

// Close frees the domain.
func (p *PD) Close() error { return p.core.Close() }

// MR is a registered memory region. It is a verbs.MR.
type MR struct {
	_    guard.NoCopy
	dev  *Device
	core nic.MR
}

// RegisterMR registers buf with the NIC.
func (p *PD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	m := &MR{dev: p.dev}
	if err := m.core.Register(&p.core, buf, access); err != nil {
		return nil, err
	}
	return m, nil
}

// RegisterDMABuf registers memory by a file descriptor, as [verbs.DMABufRegistrar] says; it needs
// Linux. The NIC maps the descriptor, which may be anything that can be mapped and has a size: a
// memfd, a plain file, or the dma-buf of an exporter that allows access by the processor (udmabuf
// does, most GPUs do not). So you can test a program for GPU memory without a GPU. If the file
// becomes shorter meanwhile, access to it ends the process, as with any mapped file.
func (p *PD) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.AccessFlags) (verbs.MR, error) {
	m := &MR{dev: p.dev}
	if err := m.core.RegisterDMABuf(&p.core, fd, offset, length, iova, access); err != nil {
		return nil, err
	}
	return m, nil
}

// Addr returns the real address of the buffer, so it is the same on every NIC; for a dma-buf, its
// iova.
func (m *MR) Addr() uint64 { return m.core.Addr() }

// Len returns the size in bytes.
func (m *MR) Len() uint64 { return m.core.Len() }

// LKey returns the local key.
func (m *MR) LKey() uint32 { return m.core.LKey() }

// RKey returns the remote key. It always differs from LKey, so that using one for the other fails.
func (m *MR) RKey() uint32 { return m.core.RKey() }

// Close deregisters, and waits for a copy that uses the memory.
func (m *MR) Close() error {
	return m.core.CloseAfter(func() { m.dev.f.placeEverything(m.dev) })
}
