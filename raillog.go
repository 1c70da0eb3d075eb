package ibverbx

import (
	"math/bits"

	"ibverbx/internal/wrid"
)

// railLog lists what is outstanding on a rail, by work-request id, in the order in which it is or
// will be on the wire. Flush completions alone do not tell: where a CQ dies there are none.
//
// Invariant: len(ids) is a power of two or zero; most are outstanding at a time, and there is room
// for as many behind those that are logged.
type railLog struct {
	ids        []uint64
	mask       uint64 // len(ids)-1
	head, tail uint64
	most       int
	messages   uint64 // that were ever logged and use up a receive of the peer
}

// What stands for a work request that was acknowledged while an older one was not.
const (
	doneData    = 1
	doneMessage = 2
)

// fit makes room for so many work requests at a time. The log is empty.
func (l *railLog) fit(most int) {
	l.most = most
	if len(l.ids) < most {
		l.ids = make([]uint64, 1<<bits.Len(uint(most-1)))
		l.mask = uint64(len(l.ids) - 1)
	}
	l.clear()
}

// push logs a work request.
func (l *railLog) push(id uint64) {
	l.ids[l.tail&l.mask] = id
	l.tail++
}

// pushMessage logs a work request that uses up a receive of the peer.
func (l *railLog) pushMessage(id uint64) {
	l.push(id)
	l.messages++
}

// complete takes an acknowledged work request out of the log, and reports whether it was there. It
// usually is the oldest. The caller has seen that something is outstanding, so the log is not
// empty.
func (l *railLog) complete(id uint64) bool {
	if l.ids[l.head&l.mask] != id {
		return l.completeLate(id)
	}
	l.head++
	return true
}

// completeLate is complete where not all is acknowledged in order: then the log is longer than what
// is outstanding.
//
//go:noinline
func (l *railLog) completeLate(id uint64) bool {
	l.trim()
	i := l.find(id)
	if i == l.tail {
		return false
	}
	*l.at(i) = doneData
	if wrid.Kind(id) != wrid.Data {
		*l.at(i) = doneMessage
	}
	l.trim()
	if l.tail-l.head+uint64(l.most) > uint64(len(l.ids)) {
		l.grow()
	}
	return true
}

// trim takes the oldest out that are done.
func (l *railLog) trim() {
	for l.head != l.tail && *l.at(l.head) <= doneMessage {
		l.head++
	}
}

// grow doubles the log.
func (l *railLog) grow() {
	old := *l
	l.ids = make([]uint64, 2*len(old.ids))
	l.mask = uint64(len(l.ids) - 1)
	for i := old.head; i != old.tail; i++ {
		*l.at(i) = *old.at(i)
	}
}

func (l *railLog) at(i uint64) *uint64 { return &l.ids[i&l.mask] }

// find returns where a work request is, or tail.
func (l *railLog) find(id uint64) uint64 {
	i := l.head
	for i != l.tail && *l.at(i) != id {
		i++
	}
	return i
}

// clear forgets all.
func (l *railLog) clear() { *l = railLog{ids: l.ids, mask: l.mask, most: l.most} }
