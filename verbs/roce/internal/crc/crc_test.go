package crc

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// way is one of the ways in which bytes run through a register.
type way struct {
	name string
	run  func(r uint32, p []byte) uint32
}

// ways are those of this processor, Run first.
func ways() []way { return append([]way{{"Run", Run}}, assembly()...) }

// reference is hash/crc32 without its complements.
func reference(r uint32, p []byte) uint32 { return ^crc32.Update(^r, crc32.IEEETable, p) }

// randomBytes are n bytes that are the same each time.
func randomBytes(n int) []byte {
	r := rand.New(rand.NewPCG(7, 8))
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// The register is that of hash/crc32, for all lengths up to some vectors, at every place in a cache
// line, whatever the register held before.
func TestLengths(t *testing.T) {
	const longest = 1100
	all := randomBytes(64 + longest)
	registers := []uint32{0, ^uint32(0), 1, 1 << 31, 0x12345678, 0xdeadbeef}
	for at := range 64 {
		for n := range longest + 1 {
			p, r := all[at:at+n:at+n], registers[(at+n)%len(registers)]
			want := reference(r, p)
			for _, w := range ways() {
				if got := w.run(r, p); got != want {
					t.Fatalf("%s: %d bytes from byte %d on: %08x, want %08x", w.name, n, at, got, want)
				}
			}
		}
	}
}

// Long slices, as many bytes as go round all loops, with each rest.
func TestLong(t *testing.T) {
	all := randomBytes(1<<20 + 600)
	for _, size := range []int{2048, 4096, 4112, 8192, 9000, 65536, 1 << 20} {
		for rest := 0; rest < 600; rest += 1 + rest/40 {
			p := all[:size+rest]
			if size == 1<<20 && rest > 40 {
				break
			}
			want := reference(0xcafe, p)
			for _, w := range ways() {
				if got := w.run(0xcafe, p); got != want {
					t.Fatalf("%s: %d bytes: %08x, want %08x", w.name, len(p), got, want)
				}
			}
		}
	}
}

// Every single bit counts, with the term that linearity says: a bit that changes in the message
// changes the register as it changes that of zeros.
func TestSingleBits(t *testing.T) {
	const size = 640
	p, zeros := randomBytes(size), make([]byte, size)
	for _, w := range ways() {
		r, r0 := w.run(0xffff1234, p), w.run(0, zeros)
		if r0 != 0 {
			t.Fatalf("%s: zeros through an empty register leave %08x", w.name, r0)
		}
		for bit := range 8 * size {
			p[bit/8] ^= 1 << (bit % 8)
			zeros[bit/8] ^= 1 << (bit % 8)
			if got, want := r^w.run(0xffff1234, p), reference(0, zeros); got != want || got == 0 {
				t.Fatalf("%s: bit %d changes %08x, want %08x", w.name, bit, got, want)
			}
			p[bit/8] ^= 1 << (bit % 8)
			zeros[bit/8] = 0
		}
	}
}

// Nothing allocates.
func TestNoAllocation(t *testing.T) {
	p := randomBytes(4109)
	r := uint32(0)
	if n := testing.AllocsPerRun(10, func() { r = Run(r, p) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The constants are what they stand for, multiplied out bit by bit: a half of a block, of one bit,
// times the constant leaves the rest that the half leaves at its distance.
func TestConstants(t *testing.T) {
	if polynomial != reflect33(uint64(crc32.IEEE)<<1|1) {
		t.Errorf("polynomial %x", uint64(polynomial))
	}
	for entry, distance := range map[int]int{by2048: 2048, by1536: 1536, by1024: 1024, by768: 768, by512: 512,
		by384: 384, by256: 256, by128: 128, by0: 0} {
		for half, constant := range foldTable[entry/16] {
			for bit := range 64 {
				got := rest(multiply(1<<bit, constant))
				// The half begins the block or ends it, with so many powers behind it.
				if want := restOfPower(63 - bit + 64*(1-half) + distance); got != want {
					t.Fatalf("distance %d, half %d, bit %d: %08x, want %08x", distance, half, bit, got, want)
				}
			}
		}
	}
	// Those that the paper prints for the reflected polynomial.
	for _, printed := range []struct{ got, want uint64 }{
		{foldTable[by512/16][0], 0x154442bd4}, {foldTable[by512/16][1], 0x1c6e41596},
		{foldTable[by128/16][0], 0x1751997d0}, {foldTable[by128/16][1], 0x0ccaa009e},
		{foldTable[narrow/16][1], 0x163cd6124},
		{foldTable[barrett/16][0], 0x1f7011641}, {foldTable[barrett/16][1], 0x1db710641},
	} {
		if printed.got != printed.want {
			t.Errorf("constant %x, want %x", printed.got, printed.want)
		}
	}
}

// polynomial128 is a reflected polynomial of 128 bits: its powers from 127 to 64 and below.
type polynomial128 struct{ high, low uint64 }

// multiply is the product of two reflected numbers of 64 bits, as the processor computes it.
func multiply(a, b uint64) (p polynomial128) {
	for i := range 64 {
		if b>>i&1 != 0 {
			p.high ^= a << i
			p.low ^= a >> 1 >> (63 - i)
		}
	}
	return p
}

// rest is what a polynomial leaves, divided by that of IEEE; reflected, as the register.
func rest(p polynomial128) (r uint32) {
	for n := range 128 {
		half := p.high
		if n >= 64 {
			half = p.low
		}
		if half>>(n%64)&1 != 0 {
			r ^= restOfPower(127 - n)
		}
	}
	return r
}

// restOfPower is the rest of x^n, reflected.
func restOfPower(n int) uint32 {
	r := uint32(1 << 31)
	for range n {
		carry := r & 1
		r >>= 1
		if carry != 0 {
			r ^= crc32.IEEE
		}
	}
	return r
}

// All ways leave what hash/crc32 leaves, in two steps as in one.
func FuzzRun(f *testing.F) {
	f.Add(uint32(0), []byte("123456789"), uint16(4))
	f.Add(^uint32(0), randomBytes(300), uint16(64))
	f.Add(uint32(1), randomBytes(1111), uint16(1000))
	f.Fuzz(func(t *testing.T, r uint32, p []byte, cut uint16) {
		want := reference(r, p)
		first := int(cut) % (len(p) + 1)
		for _, w := range ways() {
			if got := w.run(r, p); got != want {
				t.Errorf("%s: %08x, want %08x", w.name, got, want)
			}
			if got := w.run(w.run(r, p[:first]), p[first:]); got != want {
				t.Errorf("%s in two steps: %08x, want %08x", w.name, got, want)
			}
		}
	})
}

// What each way costs, beside hash/crc32.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{32, 64, 256, 1024, 4096, 65536} {
		p := randomBytes(n)
		for _, w := range append(ways(), way{"hash_crc32", reference}) {
			b.Run(fmt.Sprintf("%d/%s", n, w.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				r := uint32(0)
				for b.Loop() {
					r = w.run(r, p)
				}
				sinkRegister = r
			})
		}
	}
}

var sinkRegister uint32
