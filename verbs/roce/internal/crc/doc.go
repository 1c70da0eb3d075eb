// Package crc runs bytes through the register of CRC-32 (IEEE 802.3), the checksum of RoCEv2's
// packets. It replaces hash/crc32 for packets: on processors that multiply polynomials in vectors,
// Intel's from Ice Lake and AMD's from Zen 3 on, a packet of 4096 bytes takes half the time or
// less.
//
//	r := ^uint32(0)
//	r = crc.Run(r, header)
//	r = crc.Run(r, payload)
//	sum := ^r // what crc32.ChecksumIEEE returns for both
//
// The register is that of the reflected polynomial, without the complements that hash/crc32 applies
// at the beginning and the end: its highest bit is the power 0.
//
// # Folding
//
// After V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction" (Intel, 2009).
//
// The bits of a message are the coefficients of a polynomial over the numbers modulo 2, the first
// bit the highest power. The CRC is the remainder of that polynomial, times x^32, divided by P, the
// polynomial of IEEE. So any part of the message may be replaced by another with the same
// remainder. A block of 128 bits with d bits from its end to the end of a later block is
//
//	(H x^64 + L) x^d
//
// where H and L are its halves. x^(64+d) and x^d have remainders of 32 bits, which are known in
// advance. H and L times these remainders are short, have the same remainder, and are added
// (exclusive or) to the later block. The earlier block is then folded into the later one. All
// folding leaves one block, whose 128 bits are folded to 96 and 64 in the same way. Barrett's
// method then finds the multiple of P in them by two multiplications, and the remaining 32 bits are
// the register. The previous value of the register is added to the first 32 bits of the message.
//
// A fold waits some ten cycles for the one before it, although the processor could begin a
// multiplication in each cycle. So four vectors fold in parallel, each over the other three: a
// vector of 512 bits has four blocks, so the distance is 2048 bits (with four vectors of 256,
// 1024). At the end three of them are folded onto the last, each by its own distance, and so are
// the blocks in it.
//
// # Constants
//
// Bits are reflected: the lowest bit of the first byte is the highest power. The product of two
// reflected numbers of 64 bits has 127 bits and begins at the lowest of 128, so it represents x
// times the correct value. A remainder of 32 bits, reflected and shifted left by one, represents
// x^31 times the correct value where 64 bits are expected. Together that is x^32, so the constants
// for a distance of d are, for H and L,
//
//	x^(d+32) mod P    x^(d-32) mod P
//
// as such remainders. None was copied: foldTable is computed from P when the program starts, in
// some microseconds, and a test verifies it by multiplication.
//
// # What it costs
//
// Nothing allocates. Run reads no byte beyond the slice: it loads whole blocks, and leaves the
// rest, and short input, to hash/crc32. Processors that lower their frequency for vectors of 512
// bits do so for these.
//
// Nanoseconds, the least of five rounds on a shared Xeon of family 6, model 207, beside hash/crc32
// of Go 1.26, which folds one vector of 512 bits from 1024 bytes on (go test -bench Run):
//
//	bytes                               64    256   1024   4096   65536
//	Run, four vectors of 512 bits       13     15     20     47     777
//	hash/crc32                          18     24     44    127   1,806
//
//	without AVX-512 (GODEBUG, below)
//	Run, four vectors of 256 bits       16     18     28     94   1,428
//	hash/crc32, four of 128 bits        19     24     50    186   2,927
//
// The environment turns the instructions off, as in every program that uses package cpu:
// GODEBUG=cpu.avx512f=off, and cpu.avx2=off too. The tag purego builds without them.
package crc
