package ibverbx

import "ibverbx/verbs"

// recovery is what a virtual queue pair that offers failover knows of a rail: what it has
// outstanding there, and, once the rail is lost, how far that is settled with the peer. The
// argument is in docs/FAILOVER.md.
type recovery struct {
	log   railLog
	acked uint16 // messages that used up a receive of the peer and were acknowledged, modulo 2^16

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

	peerDown    bool   // the peer has said that the rail is lost,
	peerArrived uint16 // and how many messages arrived there
}

// railStage is how far a rail that was lost is settled.
type railStage uint8

const (
	railLive    railStage = iota
	railDying             // its queue pair is in ERR, or closed; not all has come back
	railFlushed           // all has come back; the peer is told
	railSettled           // the peer has told, too: what was lost is known
)

// restart begins a connection.
func (v *recovery) restart() {
	*v = recovery{log: railLog{entries: v.log.entries}, tell: v.tell[:0]}
}

// arrived is how many messages of the peer have arrived, once all receives have come back.
func (v *recovery) arrived() uint16 { return v.posted - v.unanswered }

// complete takes the entry of an acknowledged work request out of the log, and reports whether
// there was one.
func (v *recovery) complete(id uint64) bool {
	l := &v.log
	e := l.find(id)
	if e == nil {
		return false
	}
	e.state = entryDone
	for l.head != l.tail {
		e := l.at(l.head)
		if e.state != entryDone {
			break
		}
		if e.isMessage() {
			v.acked++
		}
		l.head++
	}
	return true
}

// railLog lists what is outstanding on a rail, in the order in which it is or will be on the wire.
// Flush completions alone do not tell: where a CQ dies there are none.
//
// Invariant: tail-head <= len(entries), which is a power of two or zero; the entry at head is not
// done.
type railLog struct {
	entries    []logEntry
	head, tail uint64
}

// logEntry is a work request on a rail: what it takes to post it again on another one.
type logEntry struct {
	id     uint64
	offset uint64 // of the fragment in its request
	size   uint32 // bytes of the fragment
	// imm is the immediate of a numbered message before it is swapped, that of the last fragment
	// for the user's immediate behind it, and the status of an atomic that came back unsuccessful.
	imm   uint32
	state entryState
}

type entryState uint8

const (
	entryOut      entryState = iota // on the NIC
	entryUnposted                   // staged when the rail was lost: the NIC never had it
	entryReturned                   // the NIC has given it back without success
	entryDone                       // acknowledged
)

// isMessage reports whether the work request uses up a receive of the peer.
func (e *logEntry) isMessage() bool { return wridKind(e.id) != kindData }

func (l *railLog) at(i uint64) *logEntry { return &l.entries[i&uint64(len(l.entries)-1)] }

// push logs a work request.
func (l *railLog) push(id, offset uint64, size, imm uint32) {
	if l.tail-l.head == uint64(len(l.entries)) {
		l.grow()
	}
	*l.at(l.tail) = logEntry{id: id, offset: offset, size: size, imm: imm}
	l.tail++
}

// newest is the entry that was pushed last.
func (l *railLog) newest() *logEntry { return l.at(l.tail - 1) }

// find returns the entry of a work request that has not been acknowledged, or nil. It usually is
// the oldest.
func (l *railLog) find(id uint64) *logEntry {
	for i := l.head; i != l.tail; i++ {
		if e := l.at(i); e.id == id && e.state != entryDone {
			return e
		}
	}
	return nil
}

// grow doubles the log.
//
//go:noinline
func (l *railLog) grow() {
	old := *l
	l.entries = make([]logEntry, max(16, 2*len(old.entries)))
	for i := old.head; i != old.tail; i++ {
		*l.at(i) = *old.at(i)
	}
}

// unposted marks the newest n entries as never handed to the NIC.
func (l *railLog) unposted(n int) {
	for i := l.tail - uint64(n); i != l.tail; i++ {
		l.at(i).state = entryUnposted
	}
}

// clear forgets all.
func (l *railLog) clear() { l.head, l.tail = 0, 0 }

// losesRail reports whether an unsuccessful completion is the fault of the queue pair, its NIC or
// the path, and not of the request: what fails by its own fault would fail on the next rail, too.
func losesRail(s verbs.Status) bool {
	switch s {
	case verbs.StatusRetryExcErr, verbs.StatusWRFlushErr, verbs.StatusFatalErr, verbs.StatusRespTimeoutErr:
		return true
	}
	return false
}
