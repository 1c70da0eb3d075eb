package shmem

import (
	"fmt"

	"ibverbx/internal/collective"
)

// All PEs make the same collective calls in the same order. Each keeps its own record of them, and
// sends a hash of it with everything that it sends in a call. This reveals a message of another
// call, and one of the same call from a PE that was out of step earlier.

// kind is a kind of collective call.
type kind uint8

const (
	kindBroadcast kind = iota + 1
	kindReduce
	kindAllGather
	kindAllToAll
	kindAlloc
	kindFree
	kindBarrier // Barrier and Sync
	kindClose
	kindSplit
	kindReduceScatter
	kindScan
	kindGather
	kindScatter
	kinds
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
	case kindClose:
		return "close"
	case kindSplit:
		return "split"
	case kindReduceScatter:
		return "reduce-scatter"
	case kindScan:
		return "scan"
	case kindGather:
		return "gather"
	case kindScatter:
		return "scatter"
	}
	return fmt.Sprintf("unknown call %d", uint8(k))
}

// shape is the part of a call that all PEs must agree on. The arguments of Alloc and Free are not
// part of it: the PEs exchange them, and all refuse alike.
type shape struct {
	n     int // elements; of SplitStrided a hash of its arguments, which is not zero
	of    collective.Type
	param int // the root of a broadcast, the op of a reduction
	// unequal says that blocks have unequal lengths, and counts is a hash of them if all PEs know
	// them.
	unequal bool
	counts  int
}

// tag describes a call to other PEs. From the top: 4 bits of kind, 4 of the element, 16 of the
// parameter, 1 that is set if blocks have unequal lengths, 21 of the number of elements or all ones
// if there are more, 14 of the record's hash, and 4 that are zero, where a message has its number.
// With unequal lengths a message has its own length, in bytes, in place of the number of elements.
type tag uint64

const (
	tagElements = 1<<21 - 1
	tagUnequal  = 1 << 39
	tagHashBits = 14
	tagNumber   = 1<<4 - 1
	// tagCall masks the bits that describe the call itself: not the hash of earlier calls, and not
	// the message's number.
	tagCall = ^tag(1<<(tagHashBits+4) - 1)
)

func (g tag) kind() kind { return kind(g >> 60) }

// tagOfLength is what the tag of a message of a call with unequal lengths has besides that of the
// call.
func tagOfLength(n int) tag { return tag(n) << 18 }

func (g tag) String() string {
	k := g.kind()
	if k == kindSplit && g>>18&tagElements != 0 {
		return "split strided"
	}
	if k < kindBroadcast || k > kindAllToAll && k < kindReduceScatter {
		return k.String()
	}
	of := collective.Type(g >> 56 & 15)
	s := fmt.Sprintf("%v of %d elements of %v", k, g>>18&tagElements, of)
	if g&tagUnequal != 0 {
		s = fmt.Sprintf("%v of unequal parts of %v", k, of)
		if n := g >> 18 & tagElements; n != 0 {
			s += fmt.Sprintf(", of which one message has %d bytes,", n)
		}
	}
	switch param := g >> 40 & (1<<16 - 1); {
	case k == kindBroadcast || k == kindScatter:
		s += fmt.Sprintf(" from PE %d", param)
	case k == kindGather:
		s += fmt.Sprintf(" to PE %d", param)
	case k == kindReduce && param == paramFunc:
		s += " by a function"
	case k == kindReduce || k == kindReduceScatter || k == kindScan:
		s += fmt.Sprintf(" by %v", ReduceOp(param))
	}
	return s
}

// record is the record of the calls that a PE has made in a team.
type record struct{ collective.Record[tag] }

// add records a call, and returns its tag.
func (r *record) add(k kind, s shape) tag {
	r.Add(int(k), s.n, int(s.of), s.param)
	if s.unequal {
		r.Hash = collective.Mix(r.Hash, uint64(s.counts)+1)
	}
	g := tag(k)<<60 | tag(s.of)<<56 | tag(s.param)<<40 | tag(min(s.n, tagElements))<<18 |
		tag(r.Hash>>(64-tagHashBits))<<4
	if s.unequal {
		g |= tagUnequal
	}
	r.Describe(g)
	return g
}

// mark returns the value of a barrier's words: the number of the barrier, and in the low bits a
// hash of all calls.
func (r *record) mark(barrier uint64) uint64 { return barrier<<markBits | r.Hash>>(64-markBits) }

// markBits is the number of bits of the hash in a mark.
const markBits = 24
