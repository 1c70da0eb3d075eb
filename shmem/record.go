package shmem

import (
	"fmt"
	"math/bits"
)

// All PEs make the same collective calls in the same order. Each keeps a record of its own, and
// says a hash of it along with whatever it sends in a call: a piece of another call, or of this one
// by PEs that were out of step before, is never taken for what it is not.

// kind is which collective call it is.
type kind uint8

const (
	kindBroadcast kind = iota + 1
	kindReduce
	kindAllGather
	kindAllToAll
	kindAlloc
	kindFree
	kindBarrier // Sync too
)

func (k kind) String() string {
	switch k {
	case kindBroadcast:
		return "broadcast"
	case kindReduce:
		return "reduce"
	case kindAllGather:
		return "all-gather"
	case kindAllToAll:
		return "all-to-all"
	case kindAlloc:
		return "alloc"
	case kindFree:
		return "free"
	case kindBarrier:
		return "barrier"
	}
	return fmt.Sprintf("unknown call %d", uint8(k))
}

// shape is in what calls of a kind must agree. What Alloc and Free are asked for is not among it:
// they tell each other, and are refused alike.
type shape struct {
	n, size int // elements, and bytes of each
	param   int // the root of a broadcast, the op of a reduction
}

// tag is what a PE says of a call. From the top: 4 bits of kind, 2 of the logarithm of the
// element's size, 16 of the parameter, 24 of the number of elements or all ones if there are more,
// 14 of the record's hash, and 4 that are zero, where a piece has its number.
type tag uint64

const (
	tagElements = 1<<24 - 1
	tagHashBits = 14
	tagNumber   = 1<<4 - 1
	// tagCall is what tells of the call itself, and not of those before.
	tagCall = ^tag(1<<(tagHashBits+4) - 1)
)

func (g tag) kind() kind { return kind(g >> 60) }

func (g tag) String() string {
	k := g.kind()
	if k < kindBroadcast || k > kindAllToAll {
		return k.String()
	}
	s := fmt.Sprintf("%v of %d elements of %d bytes", k, g>>18&tagElements, 1<<(g>>58&3))
	switch param := g >> 42 & (1<<16 - 1); {
	case k == kindBroadcast:
		s += fmt.Sprintf(" from PE %d", param)
	case k == kindReduce && param == paramFunc:
		s += " by a function"
	case k == kindReduce:
		s += fmt.Sprintf(" by %v", ReduceOp(param))
	}
	return s
}

// record is what collective calls a PE has made.
//
// Invariant: PEs that have made the same calls have the same record.
type record struct {
	step uint64 // calls so far
	hash uint64 // of all of them
	tags [recent]tag
}

// recent is how many calls are remembered. A PE can be ahead of one that waits for it by no more
// than a tree is deep, two calls for each level.
const recent = 64

// add takes in a call.
func (r *record) add(k kind, s shape) tag {
	r.step++
	for _, v := range [...]int{int(k), s.n, s.size, s.param} {
		r.hash = mix(r.hash, uint64(v))
	}
	g := tag(k)<<60 | tag(bits.TrailingZeros(uint(s.size)|8))<<58 | tag(s.param)<<42 |
		tag(min(s.n, tagElements))<<18 |
		tag(r.hash>>(64-tagHashBits))<<4
	r.tags[r.step%recent] = g
	return g
}

// tag is that of the call under way.
func (r *record) tag() tag { return r.tags[r.step%recent] }

// at is what the call of a number was; ok is false when it is yet to come, or too long ago.
func (r *record) at(step uint64) (g tag, ok bool) {
	return r.tags[step%recent], step != 0 && step <= r.step && r.step-step < recent
}

// mark is what the words of a barrier say: its number among the barriers, and below it a hash of
// all calls.
func (r *record) mark(barrier uint64) uint64 { return barrier<<markBits | r.hash>>(64-markBits) }

const markBits = 24

// mix takes a value into a hash.
func mix(hash, v uint64) uint64 {
	hash = (hash ^ v ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9
	return hash ^ hash>>29
}
