package failover

import (
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

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
