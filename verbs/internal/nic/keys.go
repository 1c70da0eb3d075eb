package nic

import "ibverbx/verbs"

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
