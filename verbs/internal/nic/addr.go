package nic

import (
	"unsafe"

	"ibverbx/verbs"
)

// This file holds all uses of unsafe in this package. A region's address only names its memory;
// access always goes through the region's slice.

// addrOf returns the address of buf's first byte.
func addrOf(buf []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) }

// Word64 returns b as a word if it is eight bytes at a multiple of eight, and nil otherwise.
func Word64(b []byte) *uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) != 8 || uintptr(p)%8 != 0 {
		return nil
	}
	return (*uint64)(p)
}

// Word32 returns b as a word if it is four bytes at a multiple of four, and nil otherwise.
func Word32(b []byte) *uint32 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b) != 4 || uintptr(p)%4 != 0 {
		return nil
	}
	return (*uint32)(p)
}

// LocalSlice returns the n bytes at addr under a local key; ok is false if no region of the queue
// pair's domain covers them and grants the access. It is valid while the lock is held, or until the
// region is closed.
func (q *QP) LocalSlice(lkey uint32, addr, n uint64, access verbs.AccessFlags) (b []byte, ok bool) {
	m := q.dev.Keys.find(lkey)
	if m == nil {
		return nil, false
	}
	return m.slice(q.PD, addr, n, access)
}

// RemoteSlice is LocalSlice for a remote key. For an atomic the bytes must be an aligned word in
// memory, as in Target.
func (q *QP) RemoteSlice(rkey uint32, addr, n uint64, access verbs.AccessFlags) (b []byte, ok bool) {
	m := q.dev.Keys.findRemote(rkey)
	if m == nil {
		return nil, false
	}
	b, ok = m.slice(q.PD, addr, n, access)
	return b, ok && (access&verbs.AccessRemoteAtomic == 0 || Word64(b) != nil)
}
