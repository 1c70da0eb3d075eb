package nic

import (
	"encoding/binary"
	"sync/atomic"

	"ibverbx/verbs"
)

// Move copies src to dst, of the same length. A word at either end is accessed there by one
// operation of sync/atomic: programs poll on a word that a NIC writes, which lands whole on real
// NICs, and then read the data written before it.
func Move(dst, src []byte) {
	switch len(src) {
	case 8:
		store64(dst, load64(src))
	case 4:
		store32(dst, load32(src))
	default:
		copy(dst, src)
	}
}

func load64(b []byte) uint64 {
	if w := Word64(b); w != nil {
		return atomic.LoadUint64(w)
	}
	return binary.NativeEndian.Uint64(b)
}

func store64(b []byte, v uint64) {
	if w := Word64(b); w != nil {
		atomic.StoreUint64(w, v)
		return
	}
	binary.NativeEndian.PutUint64(b, v)
}

func load32(b []byte) uint32 {
	if w := Word32(b); w != nil {
		return atomic.LoadUint32(w)
	}
	return binary.NativeEndian.Uint32(b)
}

func store32(b []byte, v uint32) {
	if w := Word32(b); w != nil {
		atomic.StoreUint32(w, v)
		return
	}
	binary.NativeEndian.PutUint32(b, v)
}

// FetchAndChange does an atomic on the target's memory, a word, and returns what was there.
func FetchAndChange(op verbs.Opcode, compareAdd, swap uint64, target []byte) uint64 {
	w := Word64(target)
	if op == verbs.OpAtomicFetchAdd {
		return atomic.AddUint64(w, compareAdd) - compareAdd
	}
	// The lock excludes other NICs. The program may change the word meanwhile: then the swap fails,
	// and is tried again.
	for {
		was := atomic.LoadUint64(w)
		if was != compareAdd || atomic.CompareAndSwapUint64(w, was, swap) {
			return was
		}
	}
}
