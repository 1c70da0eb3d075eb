package crc

import (
	"hash/crc32"
	"math/bits"
)

// polynomial is that of IEEE 802.3 with all its 33 bits, the highest power first.
const polynomial = 1<<32 | 0x04c11db7

// These are the entries of foldTable, by their offsets in bytes: those that fold by a distance in
// bits, from the longest to none, and those that reduce the remaining bits.
const (
	by2048 = 16 * iota
	by1536
	by1024
	by768
	by512
	by384
	by256
	by128
	by0
	narrow
	barrett
	foldEntries = iota
)

// foldTable has the constants of the assembly, two for each entry.
var foldTable = makeFoldTable()

func makeFoldTable() (table [foldEntries][2]uint64) {
	power := powersOfX()
	set := func(entry int, lower, upper uint64) { table[entry/16] = [2]uint64{lower, upper} }
	for _, fold := range []struct{ entry, distance int }{{by2048, 2048}, {by1536, 1536}, {by1024, 1024},
		{by768, 768}, {by512, 512}, {by384, 384}, {by256, 256}, {by128, 128}, {by0, 0}} {
		set(fold.entry, power(fold.distance+32), power(fold.distance-32))
	}
	set(narrow, power(96), power(64))
	set(barrett, reflect33(quotient()), reflect33(polynomial))
	return table
}

// These are the least and the greatest power of x in the table.
const (
	leastPower    = -32
	greatestPower = 2048 + 32
)

// powersOfX returns a function that computes x^n modulo the polynomial, as a constant: reflected,
// in 33 bits of which the lowest is zero.
func powersOfX() (power func(n int) uint64) {
	var powers [greatestPower - leastPower + 1]uint32
	r := uint32(1 << 31) // x^0, reflected
	for range -leastPower {
		if r>>31 != 0 { // divide by x
			r = (r^crc32.IEEE)<<1 | 1
		} else {
			r <<= 1
		}
	}
	for i := range powers {
		powers[i] = r
		r = r>>1 ^ crc32.IEEE&-(r&1) // multiply by x
	}
	return func(n int) uint64 { return uint64(powers[n-leastPower]) << 1 }
}

// quotient returns x^64 divided by the polynomial, without the remainder.
func quotient() (q uint64) {
	rest := uint64(0)
	for n := 64; n >= 0; n-- {
		rest <<= 1
		if n == 64 {
			rest |= 1
		}
		q <<= 1
		if rest>>32 != 0 {
			rest ^= polynomial
			q |= 1
		}
	}
	return q
}

// reflect33 reflects a polynomial of 33 bits.
func reflect33(p uint64) uint64 { return bits.Reverse64(p) >> 31 }

// Run runs bytes through a register, and returns its new value.
func Run(r uint32, p []byte) uint32 {
	r, p = fold(r, p)
	if len(p) == 0 {
		return r
	}
	return ^crc32.Update(^r, crc32.IEEETable, p)
}
