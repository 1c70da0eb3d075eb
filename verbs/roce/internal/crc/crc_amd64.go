//go:build !purego

package crc

import "golang.org/x/sys/cpu"

// These are the least numbers of bytes that the functions of the assembly take.
const (
	least512 = 64
	least256 = 32
)

// fold512 and fold256 run bytes through a register: a multiple of 16, and at least the constants
// above. The first needs AVX-512 F, the second AVX2, and both VPCLMULQDQ.
//
//go:noescape
func fold512(r uint32, p []byte) uint32

//go:noescape
func fold256(r uint32, p []byte) uint32

// fold runs the bytes that are worth vector instructions through a register, and returns the
// others.
func fold(r uint32, p []byte) (uint32, []byte) {
	n := len(p) &^ 15
	switch {
	case n >= least512 && has512():
		return fold512(r, p[:n]), p[n:]
	case n >= least256 && has256():
		return fold256(r, p[:n]), p[n:]
	}
	return r, p
}

// has512 reports whether the processor and the system support fold512.
func has512() bool { return cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasPCLMULQDQ }

// has256 reports whether they support fold256.
func has256() bool { return cpu.X86.HasAVX2 && cpu.X86.HasPCLMULQDQ && hasVPCLMULQDQ }

// hasVPCLMULQDQ reports a feature that package cpu reports only for processors with AVX-512.
var hasVPCLMULQDQ = extendedFeatures()>>10&1 != 0 //nolint:gochecknoglobals // read only

// extendedFeatures returns CPUID's ECX for EAX = 7, ECX = 0.
func extendedFeatures() (ecx uint32)
