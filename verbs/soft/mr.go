package soft

import (
	"fmt"

	"ibverbx/verbs"
)

// MR is a registered memory region. It is a verbs.MR.
type MR struct {
	_      noCopy
	pd     *PD
	buf    []byte
	mapped []byte // what buf is part of, of a dma-buf; nil for other memory
	addr   uint64
	access verbs.AccessFlags
	key    uint32 // the local key; the remote key is this one with remoteKeyBit
	pins   int    // copies outside of the lock that use buf
	closed bool
}

// RegisterMR makes buf known to the NIC.
func (p *PD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	const op = "register memory"
	if len(buf) == 0 {
		return nil, p.dev.err(op, verbs.ErrInvalid, "the buffer is empty")
	}
	if !access.Valid() {
		return nil, p.dev.err(op, verbs.ErrInvalid,
			fmt.Sprintf("access %v: remote write and remote atomic need local write", access))
	}
	m := &MR{pd: p, buf: buf, addr: addrOf(buf), access: access}
	if err := p.open(op, m); err != nil {
		return nil, err
	}
	return m, nil
}

// open gives a region its key.
func (p *PD) open(op string, m *MR) error {
	f := p.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := p.usable(op); err != nil {
		return err
	}
	if !p.dev.keys.add(m) {
		return p.dev.err(op, verbs.ErrNoMemory, fmt.Sprintf("the NIC holds no more than %d regions",
			maxKeyIndex))
	}
	p.mrs++
	f.objects.MRs++
	return nil
}

// Addr is the real address of the buffer, so it is the same on every NIC; of a dma-buf, its iova.
func (m *MR) Addr() uint64 { return m.addr }

// Len is the size in bytes.
func (m *MR) Len() uint64 { return uint64(len(m.buf)) }

// LKey is the local key.
func (m *MR) LKey() uint32 { return m.key }

// RKey is the remote key. It always differs from LKey, so that mistaking one for the other shows.
func (m *MR) RKey() uint32 { return m.key | remoteKeyBit }

// Close deregisters, and waits for a copy that uses the memory.
func (m *MR) Close() error {
	if err := m.retire(); err != nil {
		return err
	}
	if m.mapped != nil {
		return unmap(m.mapped)
	}
	return nil
}

// retire takes the key back, and waits for a copy that uses the memory.
func (m *MR) retire() error {
	f := m.pd.dev.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.closed {
		return m.pd.dev.err("close memory region", verbs.ErrClosed, "")
	}
	m.closed = true
	m.pd.dev.keys.remove(m)
	for m.pins > 0 {
		f.awaitQuiet()
	}
	m.buf = nil
	m.pd.mrs--
	f.objects.MRs--
	return nil
}

// slice is the n bytes at addr if the region covers them and grants the access; ok is false
// otherwise.
func (m *MR) slice(pd *PD, addr, n uint64, access verbs.AccessFlags) (b []byte, ok bool) {
	size := uint64(len(m.buf))
	off := addr - m.addr // below the region this wraps to a huge number
	if m.pd != pd || m.access&access != access || off > size || n > size-off {
		return nil, false
	}
	return m.buf[off : off+n : off+n], true
}

// A key is, from the top: 18 bits of index, 6 bits of device, 7 bits of generation, 1 bit that
// distinguishes remote from local.
const (
	remoteKeyBit     = 1
	keyGenShift      = 1
	keyGenMask       = 1<<7 - 1
	keyDeviceShift   = 8
	keyIndexShift    = 14
	maxKeyIndex      = 1<<18 - 1
	keyReuseDistance = 64 // a freed index waits until so many others were freed after it
)

// keyTable finds a NIC's regions by their keys. A key changes with every registration, so that a
// stale one is caught.
type keyTable struct {
	device  uint32
	entries []keyEntry // by index; index 0 is never used
	free    []uint32   // indexes, the one freed first in front
}

type keyEntry struct {
	mr         *MR
	generation uint32
}

func newKeyTable(device int) keyTable {
	return keyTable{device: uint32(device), entries: make([]keyEntry, 1)}
}

// add gives m a key. It returns false when there are too many regions.
func (t *keyTable) add(m *MR) bool {
	var index uint32
	switch {
	case len(t.free) > keyReuseDistance || len(t.free) > 0 && len(t.entries) > maxKeyIndex:
		index = t.free[0]
		t.free = t.free[1:]
	case len(t.entries) <= maxKeyIndex:
		index = uint32(len(t.entries))
		t.entries = append(t.entries, keyEntry{})
	default:
		return false
	}
	e := &t.entries[index]
	e.mr = m
	e.generation = (e.generation + 1) & keyGenMask
	m.key = index<<keyIndexShift | t.device<<keyDeviceShift | e.generation<<keyGenShift
	return true
}

func (t *keyTable) remove(m *MR) {
	index := m.key >> keyIndexShift
	t.entries[index].mr = nil
	t.free = append(t.free, index)
}

// find returns the region with this local key, or nil.
func (t *keyTable) find(lkey uint32) *MR {
	index := lkey >> keyIndexShift
	if index >= uint32(len(t.entries)) {
		return nil
	}
	if m := t.entries[index].mr; m != nil && m.key == lkey {
		return m
	}
	return nil
}

// findRemote returns the region with this remote key, or nil.
func (t *keyTable) findRemote(rkey uint32) *MR {
	if rkey&remoteKeyBit == 0 {
		return nil
	}
	return t.find(rkey &^ remoteKeyBit)
}
