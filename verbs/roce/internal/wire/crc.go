package wire

import (
	"encoding/binary"
	"hash/crc32"

	"ibverbx/verbs/roce/internal/crc"
)

// This file has the arithmetic of CRC-32: a register of 32 bits that bytes run through. The
// register is that of the reflected polynomial of IEEE 802.3, without the complements at begin and
// end. It is linear: the contribution of a byte to the final register depends neither on the other
// bytes nor on the initial register.

// zerosTables has, for [k][byte], an empty register after the byte and k zeros have run through it.
var zerosTables = makeZerosTables()

func makeZerosTables() (tables [16][256]uint32) {
	for k := range tables {
		tables[k] = makeZerosTable(k)
	}
	return tables
}

// makeZerosTable makes the table for one k.
func makeZerosTable(k int) (table [256]uint32) {
	table = *crc32.IEEETable
	for range k {
		for b, r := range table {
			table[b] = r>>8 ^ crc32.IEEETable[byte(r)]
		}
	}
	return table
}

// run4 runs four bytes through an empty register. To run bytes through another register,
// exclusive-or it into the first four.
func run4(w uint32) uint32 {
	return zerosTables[3][byte(w)] ^ zerosTables[2][byte(w>>8)] ^
		zerosTables[1][byte(w>>16)] ^ zerosTables[0][byte(w>>24)]
}

// run8 runs eight bytes through an empty register, and then the zeros of t (see [tablesAfter]). The
// bytes that contain a register come last, so that the others need not wait for it.
func run8(t *[8][256]uint32, w uint64) uint32 {
	return (t[0][w>>56] ^ t[1][byte(w>>48)] ^ t[2][byte(w>>40)] ^ t[3][byte(w>>32)]) ^
		(t[4][byte(w>>24)] ^ t[5][byte(w>>16)]) ^ (t[6][byte(w>>8)] ^ t[7][byte(w)])
}

// tablesAfter returns the tables for eight bytes with k zeros after them, at most 8.
func tablesAfter(k int) *[8][256]uint32 { return (*[8][256]uint32)(zerosTables[k:]) }

// run1 runs one byte through a register.
func run1(r uint32, b byte) uint32 { return r>>8 ^ zerosTables[0][byte(r)^b] }

// runFew runs some bytes through a register.
func runFew(r uint32, p []byte) uint32 {
	for len(p) >= 16 {
		r = run8(tablesAfter(8), binary.LittleEndian.Uint64(p)^uint64(r)) ^
			run8(tablesAfter(0), binary.LittleEndian.Uint64(p[8:]))
		p = p[16:]
	}
	if len(p) >= 8 {
		r = run8(tablesAfter(0), binary.LittleEndian.Uint64(p)^uint64(r))
		p = p[8:]
	}
	if len(p) >= 4 {
		r = run4(binary.LittleEndian.Uint32(p) ^ r)
		p = p[4:]
	}
	for _, b := range p {
		r = run1(r, b)
	}
	return r
}

// many is the least number of bytes for which vector instructions are worth their call.
const many = 64

// runMany runs any number of bytes through a register. Package crc is fast for multiples of 16.
func runMany(r uint32, p []byte) uint32 {
	if len(p) >= many {
		n := len(p) &^ 15
		r = crc.Run(r, p[:n])
		if p = p[n:]; len(p) == 0 {
			return r
		}
	}
	return runFew(r, p)
}

// polynomial is that of IEEE 802.3, reflected: the highest bit is the power 0; the power 32 is left
// out.
const polynomial = crc32.IEEE

// backTables has the powers of x that undo zeros which ran through a register: x^-8n for
// n zeros, [0][n] below 256 and [1][n / 256] above.
var backTables = makeBackTables()

func makeBackTables() (tables [2][256]uint32) {
	power := uint32(1 << 31) // x^0
	for n := range tables[0] {
		tables[0][n] = power
		for range 8 {
			power = divideByX(power)
		}
	}
	step := power // x^-8*256
	power = 1 << 31
	for n := range tables[1] {
		tables[1][n] = power
		power = multiply(power, step)
	}
	return tables
}

// divideByX undoes running one zero bit.
func divideByX(r uint32) uint32 {
	if r>>31 != 0 {
		return (r^polynomial)<<1 | 1
	}
	return r << 1
}

// runBack undoes the run of n zeros, fewer than 2^16.
func runBack(r uint32, n int) uint32 {
	return multiply(multiply(r, backTables[0][n&0xff]), backTables[1][n>>8&0xff])
}

// multiply returns the product of two polynomials, modulo that of the CRC.
func multiply(a, b uint32) uint32 {
	p := multiplyLong(a, b) << 1 // the highest bit is the power 0
	return uint32(p>>32) ^ run4(uint32(p))
}

// multiplyLong returns the product of two polynomials. At a time it takes the bits that are four
// apart: sums of at most eight carry only into the three bits between, which are then dropped.
func multiplyLong(a, b uint32) uint64 {
	const every4 = 0x1111111111111111
	a0, a1, a2, a3 := uint64(a)&every4, uint64(a)&(every4<<1), uint64(a)&(every4<<2), uint64(a)&(every4<<3)
	b0, b1, b2, b3 := uint64(b)&every4, uint64(b)&(every4<<1), uint64(b)&(every4<<2), uint64(b)&(every4<<3)
	p0 := a0*b0 ^ a1*b3 ^ a2*b2 ^ a3*b1
	p1 := a0*b1 ^ a1*b0 ^ a2*b3 ^ a3*b2
	p2 := a0*b2 ^ a1*b1 ^ a2*b0 ^ a3*b3
	p3 := a0*b3 ^ a1*b2 ^ a2*b1 ^ a3*b0
	return p0&every4 | p1&(every4<<1) | p2&(every4<<2) | p3&(every4<<3)
}
