package dqplb

import "math/bits"

// The parts of an immediate, once [Swap] has turned it.
const (
	// Mod is what numbers are counted modulo.
	Mod = 1<<24 - 1
	// Last marks the last message of a request: the receiver is to be notified.
	Last = 1 << 31
	// Raw says that the user's immediate follows right behind, as a message of its own on the same
	// queue pair. Only ends that both announce it use it, and only together with Last.
	Raw = 1 << 30

	numberMask = 1<<24 - 1
	reserved   = 0x3f << 24
)

// following is the number after n.
func following(n uint32) uint32 {
	if n++; n == Mod {
		return 0
	}
	return n
}

// Distance is how far n lies ahead of base, from 0 to Mod-1.
func Distance(base, n uint32) uint32 {
	if n >= base {
		return n - base
	}
	return n + Mod - base
}

// Swap converts between a number with its marks and what package verbs calls the immediate. It is
// its own inverse.
func Swap(v uint32) uint32 { return bits.ReverseBytes32(v) }
