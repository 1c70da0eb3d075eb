package nic

import (
	"encoding/binary"
	"testing"

	"ibverbx/verbs"
)

// A word is accessed as one where it has the length of a word and its alignment: processors need
// not be able to do so elsewhere.
func TestOnlyAlignedWordsAreWords(t *testing.T) {
	b := make([]byte, 4096)
	if addrOf(b)%8 != 0 {
		t.Fatal("the memory begins at no multiple of 8")
	}
	for at := range 9 {
		for n := range 17 {
			if got, want := Word64(b[at:at+n]) != nil, n == 8 && at%8 == 0; got != want {
				t.Errorf("%d bytes at %d are a word of 8: %v", n, at, got)
			}
			if got, want := Word32(b[at:at+n]) != nil, n == 4 && at%4 == 0; got != want {
				t.Errorf("%d bytes at %d are a word of 4: %v", n, at, got)
			}
		}
	}
}

// Bytes are moved whole and nothing beside them, whatever their number and alignment.
func TestMove(t *testing.T) {
	for n := range 18 {
		for from := range 9 {
			for to := range 9 {
				src, dst := make([]byte, 32), make([]byte, 32)
				for i := range src {
					src[i], dst[i] = byte(i+1), 0xee
				}
				Move(dst[to:to+n], src[from:from+n])
				for i, got := range dst {
					want := byte(0xee)
					if i >= to && i < to+n {
						want = src[from+i-to]
					}
					if got != want {
						t.Fatalf("%d bytes from %d to %d: byte %d is %#x, want %#x", n, from, to, i, got,
							want)
					}
				}
			}
		}
	}
}

// An atomic is refused where its address is that of a word and the memory behind it is none.
func TestWordsOfAtomics(t *testing.T) {
	r := newRig(t)
	r.ready()
	for off := range uint64(9) {
		r.mr.addr = addrOf(r.buf) - off // as if the region were known by another address
		for op, want := range map[verbs.Opcode]verbs.Status{
			verbs.OpAtomicFetchAdd: verbs.StatusRemAccessErr, verbs.OpRDMAWrite: verbs.StatusSuccess} {
			if off%8 == 0 {
				want = verbs.StatusSuccess
			}
			if got := r.qp.Target(nil, op, r.mr.RKey(), addrOf(r.buf)+8, 8); got != want {
				t.Errorf("%v, %d bytes off a word: %v, want %v", op, off, got, want)
			}
		}
	}
}

// An atomic returns what it found, and leaves the sum, or the new value where it found the one
// compared with.
func TestFetchAndChange(t *testing.T) {
	for _, c := range []struct {
		op                     verbs.Opcode
		was, operand, swap, is uint64
	}{
		{verbs.OpAtomicFetchAdd, 5, 7, 99, 12}, {verbs.OpAtomicFetchAdd, 5, ^uint64(0), 99, 4},
		{verbs.OpAtomicCmpAndSwp, 5, 5, 99, 99}, {verbs.OpAtomicCmpAndSwp, 5, 6, 99, 5},
	} {
		word := make([]byte, 8)
		binary.NativeEndian.PutUint64(word, c.was)
		found := FetchAndChange(c.op, c.operand, c.swap, word)
		if is := binary.NativeEndian.Uint64(word); found != c.was || is != c.is {
			t.Errorf("%v %d, %d on %d: found %d, left %d", c.op, c.operand, c.swap, c.was, found, is)
		}
	}
}
