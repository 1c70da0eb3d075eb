package nic

import (
	"encoding/binary"
	"sync/atomic"

	"ibverbx/verbs"
)

// Move copies src to dst, of the same length. A word at either end is accessed by one operation of
// sync/atomic, because programs poll a word that a NIC writes, and then read the data written
// before it. Real NICs write such a word at once.
func Move(dst, src []byte) {
	switch len(src) {
	case 8:
		store64(dst, Load64(src))
	case 4:
		store32(dst, load32(src))
	default:
		copy(dst, src)
	}
}

// Load64 returns the eight bytes of b, read at once if they are a word.
func Load64(b []byte) uint64 {
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

// FetchAndChange carries out an atomic on a word of the target's memory, and returns the value
// before.
func FetchAndChange(op verbs.Opcode, compareAdd, swap uint64, target []byte) uint64 {
	w := Word64(target)
	if op == verbs.OpAtomicFetchAdd {
		return atomic.AddUint64(w, compareAdd) - compareAdd
	}
	// The lock excludes other NICs. The program may change the word meanwhile; then the swap fails
	// and is repeated.
	for {
		was := atomic.LoadUint64(w)
		if was != compareAdd || atomic.CompareAndSwapUint64(w, was, swap) {
			return was
		}
	}
}
