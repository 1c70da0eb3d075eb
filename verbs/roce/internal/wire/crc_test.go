package wire

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// Bytes run through the register as in hash/crc32, at every length.
func TestRun(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	p := make([]byte, 400)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	for n := range p {
		register := r.Uint32()
		want := ^crc32.Update(^register, crc32.IEEETable, p[:n])
		if got := runFew(register, p[:n]); got != want {
			t.Errorf("runFew of %d bytes: %08x, want %08x", n, got, want)
		}
		if got := runMany(register, p[:n]); got != want {
			t.Errorf("runMany of %d bytes: %08x, want %08x", n, got, want)
		}
	}
}

// runBack undoes zeros, as many as there can be.
func TestRunBack(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	zeros := make([]byte, 1<<16)
	for i := range 600 {
		n := i
		if i >= 300 {
			n = r.IntN(1 << 16)
		}
		register := r.Uint32()
		if got := runBack(runMany(register, zeros[:n]), n); got != register {
			t.Errorf("%d zeros: %08x, want %08x", n, got, register)
		}
	}
}

// The product without carries is that of the school.
func TestMultiplyLong(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	numbers := []uint32{0, 1, 1 << 31, ^uint32(0), 0x11111111, 0x88888888}
	for range 200 {
		numbers = append(numbers, r.Uint32())
	}
	for _, a := range numbers {
		for _, b := range numbers {
			want := uint64(0)
			for bit := range 32 {
				if b>>bit&1 != 0 {
					want ^= uint64(a) << bit
				}
			}
			if got := multiplyLong(a, b); got != want {
				t.Fatalf("%08x times %08x: %016x, want %016x", a, b, got, want)
			}
		}
	}
}
