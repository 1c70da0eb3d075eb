package failover

import (
	"fmt"
	"slices"
	"time"
)

// Role is what a rail carries.
type Role uint8

const (
	// Data is the role of rails that carry data and control messages.
	Data Role = iota
	// Sends is the role of rails that carry SENDs.
	Sends
	// Notifications is the role of rails that carry the notifications of Spray.
	Notifications
	// Roles is the number of roles.
	Roles
)

// Stage is the progress of a lost rail towards agreement and return.
type Stage uint8

const (
	// StageLive is the stage of a rail in service.
	StageLive Stage = iota
	// StageDying means that its queue pair is in ERR, or closed, and not everything has come back.
	StageDying
	// StageFlushed means that everything has come back, and DOWN reports the arrivals.
	StageFlushed
	// StageSettled means that the peer has reported as well: the lost work is known.
	StageSettled
	// StageReady means that the follower has reconnected its queue pair, and waits for GO.
	StageReady
	// StageProbing means that the leader has reconnected its queue pair, and sends GO.
	StageProbing
)

// Rail is an end's state of one rail beside its log.
//
// Invariant: held is the number of entries that are EntryOut while the rail is dying, or 0
// after NothingReturns; otherwise 0.
type Rail struct {
	index int
	role  Role
	stage Stage
	epoch uint8 // counts the connections of the rail; only its low bits travel
	cause error // why the rail was lost
	gone  bool  // it never comes back

	// entries is the work that was outstanding when the rail was lost, in order. acked counts the
	// acknowledged messages before them. find looks first at hint.
	entries []Entry
	acked   uint64
	hint    int
	held    int // sends that the NIC has not given back

	// posted counts the receives that were posted on this connection, unanswered those of them that
	// came back without a message. Both are modulo 2^16.
	posted, unanswered uint16

	queue    []uint32 // control messages to be posted on this rail
	controls int      // control messages that the NIC holds
	places   []uint64 // the places of the latest control messages among all messages of the rail

	peerDown    bool   // the peer has reported that the rail is lost,
	peerArrived uint16 // and how many messages have arrived there

	liveSince time.Time // when it last came back; zero for never
	pauses    int       // how often it has waited since it last proved itself
	due       time.Time // when the leader asks for it; zero before its pause has begun
	psn       uint16    // the PSN with which this end would connect it, or has; 0 before one is drawn
}

// Stage returns the stage of the rail.
func (r *Rail) Stage() Stage { return r.stage }

// Works reports whether the rail carries work, or waits for its peer to carry some.
func (r *Rail) Works() bool { return r.stage == StageLive || r.stage >= StageReady }

// Posted counts receives that were posted on the rail.
func (r *Rail) Posted(n int) { r.posted += uint16(n) }

// Unanswered counts receives that came back without a message.
func (r *Rail) Unanswered(n int) { r.unanswered += uint16(n) }

// AllReturned reports whether the NIC of a dying rail has given back all sends.
func (r *Rail) AllReturned() bool { return r.held == 0 }

// NothingReturns gives up the sends that the NIC of a dying rail holds: its CQ has died, and its
// queue pair is destroyed.
func (r *Rail) NothingReturns() { r.held = 0 }

// GiveUp records that the rail never comes back.
func (r *Rail) GiveUp() { r.gone = true }

// GivenUp reports whether the rail never comes back.
func (r *Rail) GivenUp() bool { return r.gone }

// Proved records that the rail carries its full share again: the next pause is short.
func (r *Rail) Proved() { r.pauses = 0 }

// restart begins a connection, with a fresh state.
func (r *Rail) restart() { *r = Rail{index: r.index, role: r.role} }

// arrived returns how many messages of the peer have arrived, once all receives have come back.
func (r *Rail) arrived() uint16 { return r.posted - r.unanswered }

// Outstanding reports whether the NIC of a dying rail holds a work request.
func (r *Rail) Outstanding(id uint64) bool { return r.find(id) != nil }

// find returns the entry of a work request that the NIC holds, or nil. They come back in order, or
// nearly.
func (r *Rail) find(id uint64) *Entry {
	for i := range r.entries {
		at := r.hint + i
		if at >= len(r.entries) {
			at -= len(r.entries)
		}
		if e := &r.entries[at]; e.ID == id && e.State == EntryOut {
			r.hint = at
			return e
		}
	}
	return nil
}

// covered returns up to which entry of the log everything has arrived at the peer: the messages
// that it has counted, and the work posted ahead of them. immDue says whether a user's immediate
// had to follow.
//
// An acknowledged message may be missing after all, if its completion was lost with the peer's CQ.
// It cannot be sent again, since its request may be over.
func (r *Rail) covered(immDue bool) (end int, err error) {
	messages, lost := int16(r.peerArrived-uint16(r.acked)), 0
	for ; messages < 0; messages++ {
		if !slices.Contains(r.places, r.acked+uint64(messages)) {
			lost++ // a control lost with the CQ has also travelled on other rails
		}
	}
	if lost > 1 || lost == 1 && !r.announces(-1, immDue) {
		return 0, errLostThere(lost)
	}
	for i := 0; messages > 0; i++ {
		if i == len(r.entries) {
			return 0, fmt.Errorf("it counts %d messages more than were sent on a rail that is lost",
				messages)
		}
		if e := &r.entries[i]; e.IsMessage() && e.State != EntryUnposted {
			messages--
			end = i + 1
		}
	}
	for i := end; i < len(r.entries); i++ {
		e := &r.entries[i]
		if e.State == EntryDone && e.IsMessage() && !e.isControl() && !r.announces(i, immDue) {
			return 0, errLostThere(1)
		}
	}
	return end, nil
}

// errLostThere returns the error of a connection whose peer has lost messages with a CQ.
func errLostThere(messages int) error {
	return fmt.Errorf("messages that its NIC had acknowledged are lost there: %d", messages)
}

// announces reports whether entry i, or with i = -1 the work acknowledged before the first entry,
// is a last fragment whose immediate has not arrived: the peer counts the two together.
func (r *Rail) announces(i int, immDue bool) bool {
	for i++; i < len(r.entries); i++ {
		if e := &r.entries[i]; e.IsMessage() && !e.isControl() {
			return e.isImm() && e.State != EntryDone
		}
	}
	return immDue
}
