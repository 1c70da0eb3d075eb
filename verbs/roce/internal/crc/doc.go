// Package crc runs bytes through the register of CRC-32 (IEEE 802.3), the checksum of RoCEv2's
// packets. It is hash/crc32 for packets: where the processor multiplies polynomials in vectors, as
// Intel's do from Ice Lake and AMD's from Zen 3 on, one of 4096 bytes takes half the time and less.
//
//	r := ^uint32(0)
//	r = crc.Run(r, header)
//	r = crc.Run(r, payload)
//	sum := ^r // what crc32.ChecksumIEEE says of both
//
// The register is that of the reflected polynomial without the complements that hash/crc32 makes at
// begin and end: its highest bit is the power 0.
//
// # Folding
//
// After V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction" (Intel, 2009).
//
// The bits of a message are the coefficients of a polynomial over the numbers modulo 2, the first
// bit the highest power, and the CRC is the rest of that polynomial, times x^32, divided by P, the
// one of IEEE. So a part of the message may be replaced by whatever leaves the same rest. A block
// of 128 bits with d bits from its end to the end of a later block is
//
//	(H x^64 + L) x^d
//
// H and L its halves. x^(64+d) and x^d leave rests of 32 bits, which are known beforehand: H and L
// times these are short, leave the same rest, and are added (exclusive or) to the later block. The
// earlier one is then done with: it is folded. What remains of all folding is one block, whose 128
// bits are folded to 96 and 64 in the same manner; of these, Barrett's method finds the multiple of
// P that is in them by two multiplications, and the 32 bits that are left are the register. What
// was in the register before is added to the first 32 bits of the message.
//
// A fold waits for the one before it, some ten cycles, while the processor could begin a
// multiplication in each. So four vectors fold side by side, each over the other three: a vector of
// 512 bits has four blocks, and the distance is 2048 bits (four of 256, and 1024). At the end three
// of them are folded onto the last, by a distance of their own each, and so are the blocks in it.
//
// # Constants
//
// Bits are reflected: the lowest bit of the first byte is the highest power. The product of two
// reflected numbers of 64 bits has 127 bits and begins at the lowest of 128: it stands for x times
// what it should. A rest of 32 bits, reflected and shifted left by one, stands for x^31 times as
// much where 64 bits are expected. Together that is x^32, and so the constants for a distance of d
// are, of H and L,
//
//	x^(d+32) mod P    x^(d-32) mod P
//
// as such rests. None was copied: foldTable is computed from P when the program starts, in some
// microseconds, and a test multiplies it out.
//
// # What it costs
//
// Nothing allocates. Run reads no byte beyond the slice: it loads blocks that are whole, and leaves
// to hash/crc32 what is not, and what is short. Processors that lower their frequency for vectors
// of 512 bits do so for these.
//
// Nanoseconds, the least of five rounds on a Xeon of family 6, model 207, that others used too,
// beside hash/crc32 of Go 1.26, which folds one vector of 512 bits from 1024 bytes on
// (go test -bench Run):
//
//	bytes                               64    256   1024   4096   65536
//	Run, four vectors of 512 bits       13     15     20     47     777
//	hash/crc32                          18     24     44    127   1,806
//
//	without AVX-512 (GODEBUG, below)
//	Run, four vectors of 256 bits       16     18     28     94   1,428
//	hash/crc32, four of 128 bits        19     24     50    186   2,927
//
// The environment turns the instructions off, as in every program that asks package cpu:
// GODEBUG=cpu.avx512f=off, and cpu.avx2=off too. The tag purego builds without.
package crc
