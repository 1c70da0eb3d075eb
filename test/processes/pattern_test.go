package processes_test

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// seed names a pattern of bytes: sender, receiver, and number.
func seed(from, to, n int) uint64 { return uint64(from)<<48 | uint64(to)<<40 | uint64(n) }

// patternWord is the i-th word of a pattern. Other words and patterns differ.
func patternWord(seed uint64, i int) uint64 {
	x := (seed+1)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// fill writes a pattern.
func fill(b []byte, seed uint64) {
	i := 0
	for ; len(b) >= 8; i++ {
		binary.LittleEndian.PutUint64(b, patternWord(seed, i))
		b = b[8:]
	}
	for w := patternWord(seed, i); len(b) != 0; w >>= 8 {
		b[0] = byte(w)
		b = b[1:]
	}
}

// filled returns new memory with a pattern.
func filled(n int, seed uint64) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

// verify returns an error that says where b differs from a pattern.
func verify(b []byte, seed uint64) error {
	for i := 0; i < len(b); i += 8 {
		var got, want [8]byte
		n := copy(got[:], b[i:])
		binary.LittleEndian.PutUint64(want[:], patternWord(seed, i/8))
		clear(want[n:])
		if got != want {
			return fmt.Errorf("bytes %d to %d of %d are % x, want % x", i, i+n-1, len(b), got[:n], want[:n])
		}
	}
	return nil
}

// untouched returns an error that says where b is not b0.
func untouched(b []byte, b0 byte) error {
	for i := range b {
		if b[i] != b0 {
			return fmt.Errorf("byte %d of %d was written: %#x", i, len(b), b[i])
		}
	}
	return nil
}

// word64 is the word at an offset of b, which must be aligned. It is the only use of package unsafe
// here: Go has no other way to read atomically what a NIC writes.
func word64(b []byte, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[at : at+8])))
}
