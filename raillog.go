package ibverbx

import "math/bits"

// railLog lists what is outstanding on a rail, by work-request id, in the order in which it is or
// will be on the wire. Flush completions alone do not tell: where a CQ dies there are none.
//
// Invariant: tail-head <= len(ids), which is a power of two or zero; holes counts those that are
// done and not the oldest.
type railLog struct {
	ids        []uint64
	head, tail uint64
	holes      int
	messages   uint16 // that were ever logged and use up a receive of the peer, modulo 2^16
}

// What stands for a work request that was acknowledged while an older one was not.
const (
	doneData    = 1
	doneMessage = 2
)

// fit makes room for so many work requests. The log is empty.
func (l *railLog) fit(n int) {
	if len(l.ids) < n {
		l.ids = make([]uint64, 1<<bits.Len(uint(n-1)))
	}
	l.clear()
}

// push logs a work request.
func (l *railLog) push(id uint64) {
	if l.tail-l.head == uint64(len(l.ids)) {
		l.grow() // there are holes
	}
	l.ids[l.tail&uint64(len(l.ids)-1)] = id
	l.tail++
}

// grow doubles the log.
//
//go:noinline
func (l *railLog) grow() {
	old := *l
	l.ids = make([]uint64, max(16, 2*len(old.ids)))
	for i := old.head; i != old.tail; i++ {
		*l.at(i) = *old.at(i)
	}
}

// pushMessage logs a work request that uses up a receive of the peer.
func (l *railLog) pushMessage(id uint64) {
	l.push(id)
	l.messages++
}

// complete takes an acknowledged work request out of the log, and reports whether it was there. It
// usually is the oldest.
func (l *railLog) complete(id uint64) bool {
	if l.holes != 0 || l.head == l.tail || l.ids[l.head&uint64(len(l.ids)-1)] != id {
		return l.completeLate(id)
	}
	l.head++
	return true
}

// completeLate is complete where not all is acknowledged in order.
//
//go:noinline
func (l *railLog) completeLate(id uint64) bool {
	i := l.find(id)
	if i == l.tail {
		return false
	}
	*l.at(i) = doneData
	if wridKind(id) != kindData {
		*l.at(i) = doneMessage
	}
	l.holes++
	for l.head != l.tail && *l.at(l.head) <= doneMessage {
		l.head++
		l.holes--
	}
	return true
}

func (l *railLog) at(i uint64) *uint64 { return &l.ids[i&uint64(len(l.ids)-1)] }

// find returns where a work request is, or tail.
func (l *railLog) find(id uint64) uint64 {
	i := l.head
	for i != l.tail && *l.at(i) != id {
		i++
	}
	return i
}

// clear forgets all.
func (l *railLog) clear() { *l = railLog{ids: l.ids} }
