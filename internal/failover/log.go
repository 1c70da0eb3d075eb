package failover

import (
	"math/bits"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// Log lists the outstanding work requests of a rail, by ID, in wire order. Flush completions alone
// do not suffice: if a CQ dies there are none.
//
// Invariant: len(ids) is a power of two or zero; most are outstanding at a time, and there is room
// for as many behind those that are logged.
type Log struct {
	ids        []uint64
	mask       uint64 // len(ids)-1
	head, tail uint64
	most       int
	messages   uint64 // ever logged; each uses up a receive of the peer
}

// These stand for a work request that was acknowledged while an older one was not.
const (
	doneData    = 1
	doneMessage = 2
)

// Fit makes room for so many work requests at a time. The log is empty.
func (l *Log) Fit(most int) {
	l.most = most
	if len(l.ids) < most {
		l.ids = make([]uint64, 1<<bits.Len(uint(most-1)))
		l.mask = uint64(len(l.ids) - 1)
	}
	l.Clear()
}

// Push logs a work request.
func (l *Log) Push(id uint64) {
	l.ids[l.tail&l.mask] = id
	l.tail++
}

// PushMessage logs a work request that uses up a receive of the peer.
func (l *Log) PushMessage(id uint64) {
	l.Push(id)
	l.messages++
}

// Complete takes an acknowledged work request out of the log, and reports whether it was there. It
// usually is the oldest. The caller has seen that something is outstanding, so the log is not
// empty.
func (l *Log) Complete(id uint64) bool {
	if l.ids[l.head&l.mask] != id {
		return l.completeLate(id)
	}
	l.head++
	return true
}

// completeLate is Complete for acknowledgements out of order: then the log is longer than the
// outstanding work.
//
//go:noinline
func (l *Log) completeLate(id uint64) bool {
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

// trim removes the oldest work requests that are done.
func (l *Log) trim() {
	for l.head != l.tail && *l.at(l.head) <= doneMessage {
		l.head++
	}
}

// grow doubles the log.
func (l *Log) grow() {
	old := *l
	l.ids = make([]uint64, 2*len(old.ids))
	l.mask = uint64(len(l.ids) - 1)
	for i := old.head; i != old.tail; i++ {
		*l.at(i) = *old.at(i)
	}
}

func (l *Log) at(i uint64) *uint64 { return &l.ids[i&l.mask] }

// find returns where a work request is, or tail.
func (l *Log) find(id uint64) uint64 {
	i := l.head
	for i != l.tail && *l.at(i) != id {
		i++
	}
	return i
}

// Clear empties the log.
func (l *Log) Clear() { *l = Log{ids: l.ids, mask: l.mask, most: l.most} }

// Messages returns how many messages were ever logged. A message uses up a receive of the peer.
func (l *Log) Messages() uint64 { return l.messages }

// CountMessage counts the newest work request, which Push has logged, as a message.
func (l *Log) CountMessage() { l.messages++ }

// Pushed returns how many work requests were ever logged.
func (l *Log) Pushed() uint64 { return l.tail }

// Completed returns how many of them were acknowledged, from the oldest on.
func (l *Log) Completed() uint64 { return l.head }

// Has reports whether a work request is outstanding.
func (l *Log) Has(id uint64) bool { return l.find(id) != l.tail }

// Take empties the log. It returns the outstanding work requests, in order; the NIC never had the
// newest ones, as many as are staged. The caller adds the data to post them again, except for those
// that are EntryDone.
func (l *Log) Take(staged int) []Entry {
	entries := make([]Entry, 0, l.tail-l.head)
	for i := l.head; i != l.tail; i++ {
		e := Entry{ID: *l.at(i)}
		switch {
		case e.ID <= doneMessage:
			e.State = EntryDone
		case i >= l.tail-uint64(staged):
			e.State = EntryUnposted
		}
		entries = append(entries, e)
	}
	l.Clear()
	return entries
}

// Entry is a work request that was outstanding on a rail when that was lost, with everything needed
// to post it again on another one.
type Entry struct {
	ID     uint64
	Offset uint64 // where its fragment begins in the request
	Size   uint32 // bytes of the fragment
	Imm    uint32 // the immediate of a numbered message, before its bytes are swapped
	Read   bool   // an answer carries its data: it has not arrived because the peer has the request
	Atomic bool   // it must not be carried out twice
	State  EntryState
	Status verbs.Status // the status with which the NIC has given it back
}

// EntryState is the progress of a work request.
type EntryState uint8

const (
	// EntryOut means that it is on the NIC.
	EntryOut EntryState = iota
	// EntryUnposted means that it was staged when the rail was lost: the NIC never had it.
	EntryUnposted
	// EntryReturned means that the NIC has given it back without success.
	EntryReturned
	// EntryDone means that it was acknowledged.
	EntryDone
)

// IsMessage reports whether the work request uses up a receive of the peer.
func (e *Entry) IsMessage() bool { return wrid.Kind(e.ID) != wrid.Data && e.ID != doneData }

// isControl reports whether it is a control message.
func (e *Entry) isControl() bool { return wrid.Kind(e.ID) == wrid.Control }

// isImm reports whether it is the user's immediate behind a last fragment.
func (e *Entry) isImm() bool { return wrid.Kind(e.ID) == wrid.Imm }

// LosesRail reports whether an unsuccessful completion is the fault of the queue pair, its NIC or
// the path, and not of the request. A request that fails by its own fault would fail on the next
// rail too.
func LosesRail(s verbs.Status) bool {
	switch s {
	case verbs.StatusRetryExcErr, verbs.StatusWRFlushErr, verbs.StatusFatalErr, verbs.StatusRespTimeoutErr,
		verbs.StatusLocQPOpErr:
		return true
	}
	return false
}
