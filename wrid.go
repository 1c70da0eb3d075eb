package ibverbx

// A physical work-request id says all that a completion needs: what it was for, on which rail, for
// which request. Nothing has to be looked up or matched, and the order of completions within a
// queue pair does not matter.
//
//	63    60 59     52 51           28 27             0
//	| kind  |  rail   |      aux       |    number    |
//
// number is the low 28 bits of the request's number in its window (of a credit: of its count on the
// rail); a window can therefore number 2^28 requests, and half of that are let in. aux is the DQPLB
// number of a numbered message, the fragment's position otherwise.
const (
	wridNumberBits = 28
	wridNumberMask = 1<<wridNumberBits - 1
	maxOutstanding = 1 << (wridNumberBits - 1)
	wridAuxShift   = 28
	wridAuxMask    = 1<<24 - 1
	wridRailShift  = 52
	wridRailMask   = 1<<8 - 1
	wridKindShift  = 60
	wridRailBits   = wridRailMask << wridRailShift
)

// What a physical work request was for.
const (
	kindData     = 1 + iota // a plain fragment, or an atomic
	kindNumbered            // a message with a DQPLB number: a fragment or a marker
	kindFinal               // a request's final message: Spray's notification, or an ordinary SEND
	kindRecv                // a receive of the user
	// a receive that the virtual queue pair keeps posted: a credit of DQPLB, or Spray's watch
	kindCredit
	kindImm     // the user's immediate behind a DQPLB message
	kindMessage // a relaxed SEND
	kindControl // a message of one end to the other: see control.go
)

func wrid(kind uint64, railBits uint64, aux uint32, number uint64) uint64 {
	return kind<<wridKindShift | railBits | uint64(aux)<<wridAuxShift | number&wridNumberMask
}

func wridKind(id uint64) uint64   { return id >> wridKindShift }
func wridRail(id uint64) int      { return int(id >> wridRailShift & wridRailMask) }
func wridAux(id uint64) uint32    { return uint32(id >> wridAuxShift & wridAuxMask) }
func wridNumber(id uint64) uint64 { return id & wridNumberMask }
