package nic

import (
	"fmt"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// MR is a registered memory region.
type MR struct {
	_      guard.NoCopy
	pd     *PD
	buf    []byte
	mapped []byte // for a dma-buf, the mapping that contains buf; nil for other memory
	addr   uint64
	access verbs.AccessFlags
	key    uint32 // the local key; the remote key is this one with remoteKeyBit
	holds  int    // uses of buf outside the lock: see Pieces.Hold
	closed bool
}

// Register registers buf with the NIC. It locks.
func (m *MR) Register(p *PD, buf []byte, access verbs.AccessFlags) error {
	const op = "register memory"
	if len(buf) == 0 {
		return p.dev.Err(op, verbs.ErrInvalid, "the buffer is empty")
	}
	if !access.Valid() {
		return p.dev.Err(op, verbs.ErrInvalid,
			fmt.Sprintf("access %v: remote write and remote atomic need local write", access))
	}
	m.pd, m.buf, m.addr, m.access = p, buf, addrOf(buf), access
	return m.open(op)
}

// open gives the region its key.
func (m *MR) open(op string) error {
	p, d := m.pd, m.pd.dev
	d.Lock.Lock()
	defer d.Lock.Unlock()
	if err := p.Usable(op); err != nil {
		return err
	}
	if !d.Keys.add(m) {
		return d.Err(op, verbs.ErrNoMemory, fmt.Sprintf("the NIC holds no more than %d regions", maxKeyIndex))
	}
	p.mrs++
	d.Open.MRs++
	return nil
}

// Addr returns the real address of the buffer, so it is the same on every NIC; for a dma-buf, its
// iova.
func (m *MR) Addr() uint64 { return m.addr }

// Len returns the size in bytes.
func (m *MR) Len() uint64 { return uint64(len(m.buf)) }

// LKey returns the local key.
func (m *MR) LKey() uint32 { return m.key }

// RKey returns the remote key. It always differs from LKey, so that using one for the other fails.
func (m *MR) RKey() uint32 { return m.key | remoteKeyBit }

// Close implements verbs.MR: it removes the key, and waits until nobody holds the memory. It locks.
func (m *MR) Close() error { return m.CloseAfter(func() {}) }

// CloseAfter is Close, except that it calls release, locked, once the key is removed: release makes
// holders that would keep the memory longer let go of it.
func (m *MR) CloseAfter(release func()) error {
	if err := m.retire(release); err != nil {
		return err
	}
	if m.mapped != nil {
		return unmap(m.mapped)
	}
	return nil
}

func (m *MR) retire(release func()) error {
	d := m.pd.dev
	d.Lock.Lock()
	defer d.Lock.Unlock()
	if m.closed {
		return d.Err("close memory region", verbs.ErrClosed, "")
	}
	m.closed = true
	d.Keys.remove(m)
	release()
	for m.holds > 0 {
		d.Lock.AwaitQuiet()
	}
	m.buf = nil
	m.pd.mrs--
	d.Open.MRs--
	return nil
}

// slice returns the n bytes at addr if the region covers them and grants the access; ok is false
// otherwise.
func (m *MR) slice(pd *PD, addr, n uint64, access verbs.AccessFlags) (b []byte, ok bool) {
	size := uint64(len(m.buf))
	off := addr - m.addr // wraps to a huge number if addr is below the region
	if m.pd != pd || m.access&access != access || off > size || n > size-off {
		return nil, false
	}
	return m.buf[off : off+n : off+n], true
}
