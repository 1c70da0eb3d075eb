// Package wrid encodes in the 64 bits of a physical work request's ID everything that handling its
// completion needs: what it was for, on which rail, for which request. Nothing is looked up or
// matched, and the order of completions within a queue pair does not matter.
//
//	63    60 59     52 51           28 27             0
//	| kind  |  rail   |      aux       |    number    |
//
// number is the low 28 bits of the request's number in its window, or for a credit of its count on
// the rail. A window can therefore number 2^28 requests; half of that may be outstanding. aux is
// the DQPLB number of a numbered message, and otherwise the fragment's position.
package wrid

const (
	numberBits = 28
	railShift  = 52
	kindShift  = 60

	// NumberMask masks the bits of a request's number that an ID carries.
	NumberMask = 1<<numberBits - 1
	// MaxOutstanding is the most requests that may be outstanding in a window.
	MaxOutstanding = 1 << (numberBits - 1)
	// AuxMask masks the bits of aux.
	AuxMask = 1<<24 - 1

	railMask = 1<<8 - 1
	railBits = railMask << railShift
)

// The purposes of a physical work request.
const (
	Data     = 1 + iota // a plain fragment, or an atomic
	Numbered            // a message with a DQPLB number: a fragment or a marker
	Final               // a request's final message: Spray's notification, or an ordinary SEND
	Recv                // a receive of the user
	// Credit is a receive that the virtual queue pair keeps posted: a credit of DQPLB, or Spray's
	// watch.
	Credit
	Imm     // the user's immediate after a DQPLB message
	Message // a relaxed SEND
	Control // a control message of failover
)

// RailBits is the index of a rail, shifted to its place in an ID so that New need not shift it.
type RailBits uint64

// BitsOf returns the bits of the rail with an index.
func BitsOf(index int) RailBits { return RailBits(index) << railShift }

// Index returns the index of the rail.
func (b RailBits) Index() int { return int(b >> railShift) }

// New returns the ID of a work request of some kind on a rail.
func New(kind uint64, rail RailBits, aux uint32, number uint64) uint64 {
	return kind<<kindShift | uint64(rail) | uint64(aux)<<numberBits | number&NumberMask
}

// Kind returns what a work request was for.
func Kind(id uint64) uint64 { return id >> kindShift }

// Rail returns the index of the rail of a work request.
func Rail(id uint64) int { return int(id >> railShift & railMask) }

// Aux returns the DQPLB number or the fragment's position.
func Aux(id uint64) uint32 { return uint32(id >> numberBits & AuxMask) }

// Number returns the low bits of the request's number.
func Number(id uint64) uint64 { return id & NumberMask }

// OnNoRail returns an ID without its rail. Work that is posted again on another rail keeps the
// rest.
func OnNoRail(id uint64) uint64 { return id &^ railBits }
