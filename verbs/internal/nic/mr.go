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

// A counted key is, from the top: 18 bits of index, 6 bits of device, 7 bits of generation, 1 bit
// that distinguishes remote from local. In a drawn key only the last bit has a meaning.
const (
	remoteKeyBit     = 1
	keyGenShift      = 1
	keyGenMask       = 1<<7 - 1
	keyDeviceShift   = 8
	keyIndexShift    = 14
	maxKeyIndex      = 1<<18 - 1
	keyReuseDistance = 64 // a freed index is reused only after this many others were freed
)

// Keys finds a NIC's regions by their keys. Every registration gets a new key, so that a stale one
// is detected.
type Keys struct {
	device  uint32
	entries []keyEntry // by index; index 0 is never used
	free    []uint32   // indexes, in the order in which they were freed

	draw  func() uint32
	drawn map[uint32]*MR // by local key; nil if keys are counted
	// recent holds regions that were found before: the packets of a message name the same one again
	// and again, and a look into drawn costs more than all other checks of a packet's memory.
	recent [recentKeys]*MR
}

const recentKeys = 16

type keyEntry struct {
	mr         *MR
	generation uint32
}

// NewKeys makes the table of a NIC. Without draw, keys are counted: they are the same in every run,
// differ from NIC to NIC, and are easily guessed. With draw they are its numbers, and as hard to
// guess. If there are peers outside the process, draw must read crypto/rand.
func NewKeys(device verbs.DeviceID, draw func() uint32) Keys {
	t := Keys{device: uint32(device), entries: make([]keyEntry, 1), draw: draw}
	if draw != nil {
		t.drawn = make(map[uint32]*MR)
	}
	return t
}

// add gives m a key. It returns false if there are too many regions.
func (t *Keys) add(m *MR) bool {
	if t.drawn != nil {
		return t.addDrawn(m)
	}
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

// addDrawn gives m a key of 31 drawn bits. Key 0 is never used: it is the key of a program that
// forgot to set one.
func (t *Keys) addDrawn(m *MR) bool {
	if len(t.drawn) >= maxKeyIndex {
		return false
	}
	key := t.draw() &^ remoteKeyBit
	for key == 0 || t.drawn[key] != nil {
		key = t.draw() &^ remoteKeyBit
	}
	m.key = key
	t.drawn[key] = m
	return true
}

func (t *Keys) remove(m *MR) {
	if r := &t.recent[recentPlace(m.key)]; *r == m {
		*r = nil
	}
	if t.drawn != nil {
		delete(t.drawn, m.key)
		return
	}
	index := m.key >> keyIndexShift
	t.entries[index].mr = nil
	t.free = append(t.free, index)
}

// find returns the region with this local key, or nil.
func (t *Keys) find(lkey uint32) *MR {
	if m := t.recent[recentPlace(lkey)]; m != nil && m.key == lkey {
		return m
	}
	return t.findAny(lkey)
}

func (t *Keys) findAny(lkey uint32) *MR {
	m := t.drawn[lkey]
	if index := lkey >> keyIndexShift; index < uint32(len(t.entries)) && m == nil {
		m = t.entries[index].mr
	}
	if m == nil || m.key != lkey {
		return nil
	}
	t.recent[recentPlace(lkey)] = m
	return m
}

// recentPlace returns the place of a key in recent.
func recentPlace(key uint32) uint32 { return key >> keyIndexShift % recentKeys }

// findRemote returns the region with this remote key, or nil.
func (t *Keys) findRemote(rkey uint32) *MR {
	if rkey&remoteKeyBit == 0 {
		return nil
	}
	return t.find(rkey &^ remoteKeyBit)
}
