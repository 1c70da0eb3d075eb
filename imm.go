package ibverbx

import "math/bits"

// immOrder is the order in which the bytes of the user's immediates travel: as in verbs, or, if it
// is set, the least first. The numbers of DQPLB have an order of their own (dqplb.Swap).
type immOrder bool

// turn converts between an immediate of the user and what package verbs calls one. It is its own
// inverse.
func (o immOrder) turn(imm uint32) uint32 {
	if o {
		return bits.ReverseBytes32(imm)
	}
	return imm
}
