//go:build !purego

package crc

import "golang.org/x/sys/cpu"

// The least number of bytes that the functions of the assembly take.
const (
	least512 = 64
	least256 = 32
)

// fold512 and fold256 run bytes through a register: a multiple of 16, and at least as many as the
// constants above say. The first needs AVX-512 F, the second AVX2, and both VPCLMULQDQ.
//
//go:noescape
func fold512(r uint32, p []byte) uint32

//go:noescape
func fold256(r uint32, p []byte) uint32

// fold runs as many of the bytes as vector instructions are worth it for through a register, and
// returns the others.
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

// has512 reports whether the processor, and the system, have what fold512 needs.
func has512() bool { return cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ && cpu.X86.HasPCLMULQDQ }

// has256 reports the same for fold256.
func has256() bool { return cpu.X86.HasAVX2 && cpu.X86.HasPCLMULQDQ && hasVPCLMULQDQ }

// hasVPCLMULQDQ reports a feature that package cpu only reports for processors with AVX-512.
var hasVPCLMULQDQ = extendedFeatures()>>10&1 != 0 //nolint:gochecknoglobals // read only

// extendedFeatures is CPUID's answer in ECX to EAX = 7, ECX = 0.
func extendedFeatures() (ecx uint32)
