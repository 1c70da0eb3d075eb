// Package pattern says what the messages of a measurement carry: which piece of the source goes
// into which slot of the target in which round, so that what an earlier round left in a slot is as
// wrong as what never arrived.
package pattern

// What a slot gets starts at one of Shifts places of the source, Step bytes, a cache line, apart.
const (
	Shifts = 1024
	Step   = 64
)

// Round is a round of messages of one size. Message i goes to slot i of the target.
type Round struct {
	Number uint64 // no two rounds of a run have the same
	Seed   uint64
	Size   int // of a message, in bytes
}

// Source is where in the source the message of a slot starts. The shift differs from any of the
// last thousand rounds, so what an earlier one left in the slot is never right.
func (r Round) Source(slot int) int {
	shift := (r.Number + 37*uint64(slot) + r.Seed) % Shifts
	return slot*r.Size + int(shift)*Step
}

// Target is where in the target the message of a slot goes.
func (r Round) Target(slot int) int { return slot * r.Size }
