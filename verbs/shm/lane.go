package shm

import (
	"sync/atomic"

	"ibverbx/verbs"
)

// A lane is the memory of one direction of a connection. The end that makes the requests makes the
// lane and passes it to the other. It holds
//
//	the requester's words   written by the requester only
//	the responder's words   written by the responder only
//	the ring                slots, written by the requester only
//	the window              payloads: of writes and sends by the requester, of answers by the responder
//
// There is no lock and no word that both write: either end may die between any two instructions,
// and the other finds a state that is as if the dead one had stopped there. Numbers of slots and
// positions in the window only grow, and the slot or byte that one names is the number modulo the
// size.
//
// The requester fills a slot and then stores its number plus one in the slot's first word, so the
// responder that waits reads a single line. The responder copies a slot, checks the copy and
// nothing else, and counts it in wordDone once it is carried out.
const (
	ringSlots   = 128
	slotWords   = 8
	windowBytes = 256 << 10
	// mostBytes is the most that a slot carries: a quarter of the window, so that one end fills it
	// while the other empties it.
	mostBytes = windowBytes / 4
	// inlineBytes is the most that lies in the slot itself.
	inlineBytes = 32
	calmReports = 8
	// grain keeps payloads of the window on cache lines of their own.
	grain = 64

	ringAt    = 4096
	windowAt  = ringAt + ringSlots*slotWords*8
	laneBytes = windowAt + windowBytes
)

// The requester's words of a lane, by index.
const (
	// wordAwaitsReceive is 1 while the requester waits for a receive: who posts one wakes it.
	wordAwaitsReceive = 0
	// wordLeft is 1 once the requester uses the lane no more.
	wordLeft = 1
	// wordHold is odd while the requester accesses memory of the responder itself. It counts, and
	// has a line of its own.
	wordHold = 8
)

// The responder's words, on a line of their own, away from the requester's.
const (
	wordDone = 16 + iota // slots that are carried out
	// wordReceives counts the receives that were posted since the queue pair was reset. The
	// requester begins a message that takes one only if one is left, so no message waits in the
	// ring for a receive.
	wordReceives
	wordState   // a laneState, and from bit 8 on the responder's code of RNRTimer
	wordRefusal // the status with which slot wordDone was refused; 0 if none was
)

// The responder's grants, on lines that seldom change: the regions that the requester may access
// itself.
const (
	// wordGrants changes whenever a grant does, and is odd meanwhile. A requester that begins a
	// copy stores wordHold and then loads this word; a responder changes this one and then loads
	// wordHold. So the requester sees the change, or the responder the copy.
	wordGrants = 32
	// A grant is eight words: key and, from bit 32 on, rights, or 0 for none; address; length; the
	// number of the arena; the region's offset in it.
	wordFirstGrant = 64
	grantWords     = 8
	// mostGrants is how many regions a lane grants at a time.
	mostGrants = 32
)

// laneState is what the responder makes of a lane.
type laneState uint64

const (
	laneNew    laneState = iota // its queue pair is not ready to receive
	laneOpen                    // slots are carried out
	laneClosed                  // no more: the queue pair has failed, was reset or closed
	stateMask  = 1<<8 - 1
)

// lane is one end's view of a lane.
//
// cursor, state and receives change only with both locks of the device, so who holds one may read
// them.
type lane struct {
	mem    []byte
	words  []uint64
	window []byte
	link   *link
	id     uint64 // names it on its link
	in     bool   // this end is the responder
	qp     *QP    // nil while it waits for its queue pair, and once it has none any more
	// retired is set once the lane is given up and waits to be unmapped.
	retired bool

	// cursor is how many slots are carried out, as far as this end has seen.
	cursor uint64
	// state and receives are the responder's words, as the requester has seen them last.
	state, receives uint64
	// done and posted are the responder's own words, as it has reported them last; owes is set
	// while the device is to report newer ones.
	done, posted uint64
	owes         bool

	// Of the responder: the regions that it grants, by their place in the lane, nil before the
	// first; the version of wordGrants; and the key that it has considered last.
	given      []*MR
	grants     uint64
	considered uint32
	// unfinished is set while the requester has stopped in the middle of what it does itself.
	unfinished atomic.Bool
	// Of the requester: wanted is set while something waits for what the responder reports
	// ([QP.waits]). Otherwise the polls leave the line of the reports to the responder's processor.
	// It is cleared after calmReports in a row for which nothing waited, which calm counts, because
	// to store it with each message costs more.
	wanted atomic.Bool
	calm   int

	// For a lane of the peer that waits: the queue pairs it joins, and its first number.
	src, dst, psn uint32
}

func newLane(mem []byte, l *link) *lane {
	return &lane{mem: mem, words: words(mem[:windowAt]), window: mem[windowAt:], link: l}
}

func (l *lane) load(word int) uint64     { return atomic.LoadUint64(&l.words[word]) }
func (l *lane) store(word int, v uint64) { atomic.StoreUint64(&l.words[word], v) }

// slot returns the words of a slot.
func (l *lane) slot(number uint64) []uint64 {
	at := ringAt/8 + int(number%ringSlots)*slotWords
	return l.words[at : at+slotWords : at+slotWords]
}

// grant returns the words of a grant.
func (l *lane) grant(i int) []uint64 {
	at := wordFirstGrant + i*grantWords
	return l.words[at : at+grantWords : at+grantWords]
}

// hasNext reports whether the next slot of a lane in which this end is the responder is filled.
func (l *lane) hasNext() bool { return atomic.LoadUint64(&l.slot(l.cursor)[0]) == l.cursor+1 }

// hasNews reports whether the peer has changed what this end has not looked at.
func (l *lane) hasNews() bool {
	if l.in {
		return l.hasNext()
	}
	return l.load(wordDone) != l.cursor || l.load(wordReceives) != l.receives ||
		l.load(wordState) != l.state || l.unfinished.Load()
}

// Flags of a slot.
const (
	slotFirst     = 1 << iota // it begins a message
	slotLast                  // it ends one
	slotInline                // the payload is in the slot
	slotSolicited             // SendSolicited
	slotPlaced                // the requester has written the payload where it belongs
)

// slot is a copy of a slot, or one to be published.
//
//	word 0  number + 1
//	word 1  opcode, flags from bit 8 on, immediate from bit 32 on
//	word 2  address of the first byte at the responder
//	word 3  key, bytes of payload from bit 32 on
//	word 4  position in the window     or the payload itself,
//	word 5  bytes of the message       from word 4 on
//	word 6  atomics: compare or add
//	word 7  atomics: swap
type slot struct {
	op      verbs.Opcode
	flags   uint8
	imm     uint32
	rkey    uint32
	n       uint32
	addr    uint64
	payload [4]uint64 // words 4 to 7
}

// publish writes the slot with a number, and lets the responder have it. The first word comes last.
// It is stored with sync/atomic, so all plain stores come before it: those of the slot, and those
// of its payload.
func (l *lane) publish(number uint64, s *slot) {
	w := l.slot(number)
	w[1] = uint64(s.op) | uint64(s.flags)<<8 | uint64(s.imm)<<32
	w[2] = s.addr
	w[3] = uint64(s.rkey) | uint64(s.n)<<32
	w[4], w[5], w[6], w[7] = s.payload[0], s.payload[1], s.payload[2], s.payload[3]
	atomic.StoreUint64(&w[0], number+1)
}

// take copies the next slot, which must be filled. The peer may change it meanwhile; the copy is
// read once, word by word, and checked afterwards.
func (l *lane) take(s *slot) {
	w := l.slot(l.cursor)
	head := atomic.LoadUint64(&w[1])
	s.op, s.flags, s.imm = verbs.Opcode(head&0xff), uint8(head>>8), uint32(head>>32)
	s.addr = atomic.LoadUint64(&w[2])
	size := atomic.LoadUint64(&w[3])
	s.rkey, s.n = uint32(size), uint32(size>>32)
	for i := range s.payload {
		s.payload[i] = atomic.LoadUint64(&w[4+i])
	}
}

// wellFormed reports whether the copy of a slot names bytes that exist. Everything else in it is
// checked like the request of any peer.
func (s *slot) wellFormed() bool {
	const whole = slotFirst | slotLast
	switch {
	case !s.op.Valid():
		return false
	case s.flags&slotPlaced != 0:
		return s.n == 0 && s.flags&(whole|slotInline) == whole && s.op == verbs.OpRDMAWriteWithImm
	case s.flags&slotInline != 0:
		return s.n <= inlineBytes && s.flags&whole == whole && s.op != verbs.OpRDMARead && !s.op.IsAtomic()
	case s.op.IsAtomic():
		return s.n == 8 && s.payload[0]%8 == 0 && s.payload[0] <= windowBytes-8
	}
	return s.n <= mostBytes && s.payload[0] <= windowBytes-uint64(s.n)
}

// total is the length of the message, bytes.
func (s *slot) total() uint64 {
	if s.flags&slotInline != 0 || s.op.IsAtomic() {
		return uint64(s.n)
	}
	return s.payload[1]
}
