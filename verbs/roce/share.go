package roce

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"ibverbx/verbs/roce/internal/wire"
)

// share divides the receive buffer of one peer NIC's socket among this NIC's queue pairs that write
// to it. Each has its own window, which knows nothing of the others; the windows of a thousand hold
// more packets than any buffer. So a queue pair sends while there is room for all, and those that
// find none take turns of turn packets each.
//
// Invariant: used is the sum of QP.underWay over the queue pairs, in bytes. The queue pairs that
// wait are waiting[head:]; while there are any, no other one begins to send.
type share struct {
	peer  netip.AddrPort
	users int
	// limit is how many bytes may be under way: half of this NIC's own buffer, to which the peer's
	// is assumed to be equal, or what the peer has granted, if that is less.
	limit     int
	budget    budget
	granted   bool  // the limit is the peer's
	grantedAt int64 // when the peer has confirmed that
	used      int
	waiting   []*QP
	head      int
	serving   bool
	// postponed is set while the share is in sender.postponed.
	postponed bool
	// from counts what comes from the peer.
	from arrivals
}

// budget is what losses leave of a share's limit. The window of a queue pair never shrinks below
// two packets, and the windows of many then hold more than a short queue on the way: only fewer
// turns at a time help.
//
// It starts with some turns and doubles each round trip, as windows do, until packets are lost. If
// nothing has come back before that, the queue pairs of all other NICs may have filled the queue:
// then it starts again with one packet.
type budget struct {
	bytes           int  // 0 while losses have taken nothing
	starts          bool // it still doubles
	arrived, missed int  // packets of the present round, or since the start
	stale           int  // bytes that were under way at the last cut, and do not count
	// whole is bytes in whole packets where a NIC has only a few: now rounded down and now up, so
	// that it is bytes on average; else 0. NICs with a part of nearly two packets would otherwise
	// send half of what those with two do. missing is the bytes that it was too little until now.
	whole, missing int
	// base is the shortest round trip there was, and shortest that of the present round; 0 while
	// there is none. If the path becomes longer, all losses count.
	base, shortest int64
}

const (
	// A round has so many packets: of fewer, one that is lost or not would decide.
	budgetRound = 512
	// tolerated is how many of them may be lost: 2 %, as in windows.
	tolerated = budgetRound / 50
	// heavy is how many are too many, however short the round trips are: 16 %. Behind a queue of 4
	// to 12 packets at 10 Gb/s, which round trips do not show, 64 queue pairs send up to a quarter
	// more packets again than with 8 %, and lose no bandwidth.
	heavy = 8 * tolerated
	// longer is by how much a queue lengthens every round trip, or half of the shortest one if that
	// is less.
	longer = int64(500 * time.Microsecond)
	// budgetGrows is how many packets a round adds that loses no more.
	budgetGrows = 2
	// leastBudget is two turns. A queue that holds less would be too short for one window.
	leastBudget = 2 * turn * 4096
	// startBudget is eight turns, so that a few queue pairs whose peers are dead keep none waiting.
	startBudget = 8 * turn * 4096
	// leastPart is the part of the limit that losses leave, if that is less: the peer has granted
	// each of several NICs only a part of its buffer, and together they have two turns.
	leastPart = 8
	// Of several NICs, each grows by least*least/left for so many packets that arrive, and
	// shrinks by a missedPart for each that is lost. Over three seconds, none of 20 NICs that fill
	// a gigabit has had more than twice the bandwidth of another; with twice the figure the losses
	// halve, and it takes longer.
	severalGrow = 320
	missedPart  = 16
	// mostMissing bounds, in packets, how long whole makes up for what has been.
	mostMissing = 4
)

// of returns what is left of a limit.
func (b *budget) of(limit int) int {
	if b.bytes == 0 {
		return limit
	}
	return min(limit, b.bytes)
}

// inPackets is of for several queue pairs.
func (b *budget) inPackets(limit int) int {
	if b.whole != 0 {
		return min(limit, b.whole)
	}
	return b.of(limit)
}

// round computes whole, as packets arrive.
func (b *budget) round(cost, arrived int) {
	if b.bytes == 0 {
		b.whole, b.missing = 0, 0
		return
	}
	if b.whole != 0 { // it has lasted for arrived of the packets that it lets under way
		b.missing += arrived * (b.bytes - b.whole) * cost / b.whole
		b.missing = min(max(b.missing, -mostMissing*cost), mostMissing*cost)
	}
	if b.whole = b.bytes / cost * cost; b.missing > 0 {
		b.whole += cost
	}
}

// add records that packets of some cost have arrived, and that some were lost; used bytes of the
// limit are under way.
func (b *budget) add(limit, used, cost, arrived, missed int) {
	least := min(max(limit/leastPart, cost), leastBudget)
	if least > cost {
		b.whole = 0
	}
	switch {
	case b.stale > 0:
		b.stale -= (arrived + missed) * cost
	case b.starts && b.start(limit, cost, arrived, missed):
	case least < leastBudget:
		b.addSeveral(limit, least, arrived, missed)
		if least == cost {
			b.round(cost, arrived)
		}
	default:
		b.addOne(limit, used, cost, arrived, missed)
	}
}

// start is add at the start. It returns false if the start is over.
func (b *budget) start(limit, cost, arrived, missed int) bool {
	b.arrived, b.missed = b.arrived+arrived, b.missed+missed
	switch {
	case b.missed <= 1+b.arrived*tolerated/budgetRound:
		if b.bytes += arrived * cost; b.bytes >= limit {
			*b = budget{base: b.base}
		}
	case b.arrived == 0:
		b.bytes, b.missed = cost, 0
	default:
		*b = budget{bytes: b.bytes, base: b.base}
		return false
	}
	return true
}

// took records a round trip.
func (b *budget) took(rtt int64) {
	if b.base == 0 || rtt < b.base {
		b.base = rtt
	}
	if b.shortest == 0 || rtt < b.shortest {
		b.shortest = rtt
	}
}

// addOne is add for the only NIC that sends to the peer. A queue that is full delays each packet; a
// network that loses packets at random does not, and would lose as many of a smaller budget.
func (b *budget) addOne(limit, used, cost, arrived, missed int) {
	b.arrived, b.missed = b.arrived+arrived, b.missed+missed
	isRound := b.arrived+b.missed >= budgetRound
	isQueue := b.shortest > b.base+min(b.base/2, longer)
	left := b.of(limit)
	switch {
	case b.missed > heavy || isRound && isQueue && b.missed > tolerated:
		// What nobody has used does not count.
		b.bytes = max(max(min(left, used), left/2)*7/10, min(left, leastBudget))
		b.stale = used
	case !isRound:
		return
	case b.bytes != 0:
		if b.bytes += budgetGrows * cost; b.bytes >= limit {
			b.bytes = 0
		}
	}
	b.arrived, b.missed, b.shortest = 0, 0, 0
}

// addSeveral is add for one of several NICs. They share the queue, and none sends much: whether one
// loses two packets or three in a round is chance. Each packet counts: all lose the same part of
// theirs, so the one that has more shrinks more and grows less, until all have as much.
func (b *budget) addSeveral(limit, least, arrived, missed int) {
	left := b.of(limit)
	switch {
	case b.bytes == 0 && missed == 0:
		return
	case b.bytes < limit:
		left += arrived * least * least / (severalGrow * left)
	}
	left = max(left-missed*left/missedPart, min(left, least))
	if left >= limit && left >= leastBudget {
		left = 0
	}
	b.bytes = left
}

const (
	// turn is how many packets a queue pair that had to wait sends at a time: about the longest
	// burst.
	turn = 16
	// leastCost is the room that a short packet takes in a receive buffer, where the kernel keeps
	// some hundred bytes beside it.
	leastCost = 1024
	// leastGrant is the least that a peer leaves to the queue pairs of a NIC, bytes.
	leastGrant = 8 << 10
	// A grant that no answer has confirmed for so long does not count any more.
	grantLasts = int64(time.Second)
)

// takeShare returns the share of the queue pairs towards a peer, for one more.
func (d *Device) takeShare(peer netip.AddrPort) *share {
	s := d.shares[peer]
	if s == nil {
		if d.shares == nil {
			d.shares = map[netip.AddrPort]*share{}
		}
		d.crowd.own = max(d.link.Stats().RecvBuffer/2, turn*4096)
		d.divide()
		s = &share{peer: peer, limit: d.crowd.own, budget: budget{bytes: startBudget, starts: true}}
		d.shares[peer] = s
	}
	s.users++
	return s
}

// grant takes what an answer to a queue pair grants, in credits of 1 KiB.
//
// NICs that begin at once send more than the peer's buffer holds, until it has counted them and
// grants each its part. That is the cut for what is under way, until it fits into the part. If its
// losses shrank the budget as well, those NICs that lost most would have an eighth of their part,
// and grow back slowly while the others, which lose nothing any more, keep all of theirs.
func (s *share) grant(q *QP, now int64, syndrome wire.Syndrome) {
	own := q.dev.crowd.own
	switch {
	case syndrome.Value() < wire.AckCredits(own>>10).Value():
		s.limit, s.granted, s.grantedAt = max(wire.Credits(syndrome.Value())<<10, leastGrant), true, now
		if s.used > s.limit && !s.isAlone(q) {
			s.budget.stale = s.used
		}
	case s.granted:
		s.limit, s.granted = own, false
	}
}

// leave takes a queue pair out of the share.
func (s *share) leave(q *QP) {
	s.used -= q.underWay
	q.underWay, q.left = 0, 0
	if q.waits {
		q.waits = false
		s.waiting = append(s.waiting[:s.head], slices.DeleteFunc(s.waiting[s.head:],
			func(w *QP) bool { return w == q })...)
	}
	if s.users--; s.users == 0 {
		delete(q.dev.shares, s.peer)
		q.dev.departed(s)
	}
	s.serve()
}

// room is how many packets a queue pair may put under way. While it is alone that is any number, or
// twice the limit if the peer has granted that, or what losses leave of it. While nothing is under
// way it is at least one: a budget of one packet is less than one of a queue pair with a longer
// path MTU, and no answer would ever make room for that.
func (s *share) room(q *QP) int {
	room := math.MaxInt
	switch {
	case !s.isAlone(q):
		room = (s.budget.inPackets(s.limit) - s.used) / q.cost
	case s.granted:
		room = (s.budget.of(2*s.limit) - s.used) / q.cost
	}
	if s.used == 0 {
		room = max(room, 1)
	}
	return room
}

// turnOf is how many packets a queue pair puts under way in its turn, or in the rest of it: at most
// half of what all may, so that one whose peer does not answer does not keep the others waiting.
func (s *share) turnOf(q *QP) int {
	most := turn
	if q.left > 0 {
		most = q.left
	}
	return max(min(most, s.budget.of(s.limit)/q.cost/2), 1)
}

// isAlone reports whether no other queue pair has anything under way, or waits.
func (s *share) isAlone(q *QP) bool {
	waiting := len(s.waiting) - s.head
	return s.used == q.underWay && (waiting == 0 || waiting == 1 && q.waits)
}

// note updates how much a queue pair has under way.
func (s *share) note(q *QP) {
	if s.granted && q.dev.now()-s.grantedAt > grantLasts {
		s.limit, s.granted = q.dev.crowd.own, false
	}
	if o := q.engine.TakeOutcome(); o.Arrived+o.Missed != 0 {
		if o.RoundTrip != 0 {
			s.budget.took(o.RoundTrip)
		}
		if s.limit >= leastPart*leastBudget {
			o.Missed += o.Stuck // of several NICs, one that was marked would grow back slowly
		}
		if s.isAlone(q) && s.budget.bytes == 0 && !q.engine.IsShrunk() {
			o.Missed = 0 // its window shrinks, and losses have taken nothing from the budget
		}
		s.budget.add(s.limit, s.used, q.cost, o.Arrived, o.Missed)
	}
	now := q.engine.UnderWay() * q.cost
	s.used += now - q.underWay
	q.underWay = now
}

// wait makes a queue pair wait for its turn. One that has not finished its last turn goes first.
func (s *share) wait(q *QP) {
	switch {
	case q.waits:
		return
	case q.left == 0:
		s.waiting = append(s.waiting, q)
	case s.head != 0:
		s.head--
		s.waiting[s.head] = q
	default:
		s.waiting = slices.Insert(s.waiting, 0, q)
	}
	q.waits = true
}

// next removes and returns the queue pair whose turn it is.
func (s *share) next() *QP {
	q := s.waiting[s.head]
	s.waiting[s.head] = nil
	if s.head++; s.head == len(s.waiting) {
		s.waiting, s.head = s.waiting[:0], 0
	} else if s.head > 64 && s.head > len(s.waiting)/2 {
		n := copy(s.waiting, s.waiting[s.head:])
		clear(s.waiting[n:])
		s.waiting, s.head = s.waiting[:n], 0
	}
	q.waits = false
	return q
}

// serve lets the waiting queue pairs send while there is room for a turn and the socket takes
// packets. While the socket is full they keep their places here: if all moved to sender.waiting,
// the first to leave that would find nobody waiting here, and take all the room.
func (s *share) serve() {
	if s.serving {
		return
	}
	s.serving = true
	for s.head != len(s.waiting) {
		q := s.waiting[s.head]
		most := s.turnOf(q)
		if s.room(q) < most {
			break
		}
		if sender := &q.dev.sender; sender.isClogged() {
			sender.postpone(s)
			break
		}
		before := q.underWay
		s.next().left = 0
		q.transmitUpTo(most)
		if !q.waits { // its window, or what it has to send, is smaller than the turn
			q.left = most - (q.underWay-before)/q.cost
		}
	}
	s.serving = false
}
