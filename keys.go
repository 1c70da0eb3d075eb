package ibverbx

import (
	"math"

	"ibverbx/verbs"
)

// Keys holds the key of one memory region on each NIC, indexed by device. It is immutable once
// made, and safe for concurrent use.
//
// Local keys are indexed by this process's DeviceID, remote keys by the peer's, which the peer's
// [BusinessCard] gives for each queue pair; if it does not, the peer's devices count as numbered
// like the local ones they are connected to.
type Keys struct {
	have uint64 // bit i: there is a key for device i
	// base and length bound the addresses that may be named; raw keys cover everything.
	base, length uint64
	mr           *MR // the region that requests hold while they use it; nil for raw and remote keys
	key          [verbs.MaxDevices]uint32
}

// NewKeys makes keys for raw memory, from one key per device. Addresses are not checked against
// bounds.
func NewKeys(keys map[verbs.DeviceID]uint32) *Keys {
	k := &Keys{length: math.MaxUint64}
	for dev, key := range keys {
		k.set(dev, key)
	}
	return k
}

// Key returns the key for a device, and whether there is one.
func (k *Keys) Key(dev verbs.DeviceID) (key uint32, ok bool) {
	if k == nil || dev >= verbs.MaxDevices || k.have&(1<<dev) == 0 {
		return 0, false
	}
	return k.key[dev], true
}

// noKeys stands for the keys of memory that a request does not name. It is never changed.
//
//nolint:gochecknoglobals // a constant whose address is needed
var noKeys Keys

func (k *Keys) set(dev verbs.DeviceID, key uint32) {
	if dev < verbs.MaxDevices {
		k.have |= 1 << dev
		k.key[dev] = key
	}
}

// at returns the key for a device that is known to have one. The mask lets the compiler drop the
// bounds check.
func (k *Keys) at(dev uint8) uint32 { return k.key[dev&(verbs.MaxDevices-1)] }

// open reports whether the memory may be named: the region that it is of, if any, is not closed.
func (k *Keys) open() bool { return k.mr == nil || k.mr.holds.Load() >= 0 }

// appendSGL appends pieces of memory, but for the empty ones, as a device names them.
func appendSGL(sgl []verbs.SGE, pieces []Segment, device uint8) []verbs.SGE {
	for i := range pieces {
		if s := &pieces[i]; s.Length != 0 {
			sgl = append(sgl, verbs.SGE{Addr: s.Addr, Length: uint32(s.Length), LKey: s.Keys.at(device)})
		}
	}
	return sgl
}

// covers reports whether n bytes from addr lie within the bounds; n is not 0. An address below base
// has an offset beyond length, since base+length does not wrap.
func (k *Keys) covers(addr, n uint64) bool {
	off := addr - k.base
	return off <= k.length && n <= k.length-off
}
