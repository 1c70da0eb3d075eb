package ibverbx

import (
	"time"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// recovery is what a virtual queue pair that offers failover knows of a rail beside its log: once
// it is lost, how far that is settled with the peer. The argument is in docs/FAILOVER.md.
type recovery struct {
	// entries is what was outstanding when the rail was lost, in order. acked counts the messages
	// before them that were acknowledged, modulo 2^16. find looks first at hint.
	entries []lostEntry
	acked   uint64
	hint    int

	stage railStage
	cause error // why the rail was lost
	held  int   // sends that the NIC of a lost rail has not given back
	// silent says that its CQ has died: nothing will come back.
	silent bool
	// emptied says that receives of the user came back without a message, to be posted elsewhere.
	emptied bool
	// posted counts the receives that were posted on this connection, unanswered those of them that
	// came back without a message; modulo 2^16.
	posted, unanswered uint16

	controls int      // control messages that the NIC holds
	tell     []uint32 // control messages to be sent over this rail
	words    []uint64 // the places of the latest control messages among all messages of the rail

	peerDown    bool   // the peer has said that the rail is lost,
	peerArrived uint16 // and how many messages arrived there

	// Of coming back: see failback.go.
	epoch  uint8                   // of the rail's connection; it wraps
	setup  [setupSteps]connectStep // how the queue pair was connected
	limit  int                     // rail.limit in full service
	grow   uint64                  // where the log must have come to for more; 0 when in full service
	pauses int                     // how often it has waited since it last proved itself
	due    time.Time               // when the leader asks for it; zero is not known yet
	ownPSN uint16                  // with which this end would connect; 0 is not drawn yet
}

// railStage is how far a rail that was lost is settled.
type railStage uint8

const (
	railLive    railStage = iota
	railDying             // its queue pair is in ERR, or closed; not all has come back
	railFlushed           // all has come back; the peer is told
	railSettled           // the peer has told, too: what was lost is known
	railReady             // its queue pair is connected anew, and waits for the leader
	railProbing           // its queue pair is connected anew, and GO is out
)

// The steps in which a queue pair is connected.
const (
	stepInit = iota
	stepRTR
	stepRTS
	setupSteps
)

// restart begins a connection.
func (v *recovery) restart() {
	*v = recovery{entries: v.entries[:0], tell: v.tell[:0], words: v.words[:0]}
}

// note keeps how the queue pair was connected.
func (v *recovery) note(attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	if mask&verbs.QPAttrState == 0 {
		return
	}
	switch attr.State {
	case verbs.StateInit:
		v.setup[stepInit] = connectStep{*attr, mask}
	case verbs.StateRTR:
		v.setup[stepRTR] = connectStep{*attr, mask}
	case verbs.StateRTS:
		v.setup[stepRTS] = connectStep{*attr, mask}
	}
}

// noteWord keeps the place of a control message, for recovery.covered; old ones are forgotten.
func (v *recovery) noteWord(place uint64) {
	const kept = 64
	if len(v.words) == kept {
		v.words = append(v.words[:0], v.words[1:]...)
	}
	v.words = append(v.words, place)
}

// arrived is how many messages of the peer have arrived, once all receives have come back.
func (v *recovery) arrived() uint16 { return v.posted - v.unanswered }

// lostEntry is a work request on a rail that is lost: what it takes to post it again on another
// one.
type lostEntry struct {
	id     uint64
	offset uint64 // of the fragment in its request
	size   uint32 // bytes of the fragment
	imm    uint32 // of a numbered message, before it is swapped
	state  entryState
	status verbs.Status // with which the NIC has given it back
}

type entryState uint8

const (
	entryOut      entryState = iota // on the NIC
	entryUnposted                   // staged when the rail was lost: the NIC never had it
	entryReturned                   // the NIC has given it back without success
	entryDone                       // acknowledged
)

// isMessage reports whether the work request uses up a receive of the peer.
func (e *lostEntry) isMessage() bool { return wrid.Kind(e.id) != wrid.Data && e.id != doneData }

// isControl reports whether it is a control message.
func (e *lostEntry) isControl() bool { return wrid.Kind(e.id) == wrid.Control }

// find returns the entry of a work request that the NIC holds, or nil. They come back in order, or
// nearly.
func (v *recovery) find(id uint64) *lostEntry {
	for i := range v.entries {
		at := v.hint + i
		if at >= len(v.entries) {
			at -= len(v.entries)
		}
		if e := &v.entries[at]; e.id == id && e.state == entryOut {
			v.hint = at + 1
			return e
		}
	}
	return nil
}

// losesRail reports whether an unsuccessful completion is the fault of the queue pair, its NIC or
// the path, and not of the request: what fails by its own fault would fail on the next rail, too.
func losesRail(s verbs.Status) bool {
	switch s {
	case verbs.StatusRetryExcErr, verbs.StatusWRFlushErr, verbs.StatusFatalErr, verbs.StatusRespTimeoutErr,
		verbs.StatusLocQPOpErr:
		return true
	}
	return false
}
