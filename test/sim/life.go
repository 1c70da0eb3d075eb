package sim

import (
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// wireLife is a queue pair from one reset to the next, and its traffic in that time. A rail that
// comes back begins another life.
type wireLife struct {
	q    *wire
	back bool // the rail comes back in the middle of a session
	// to is the queue pair that it was connected to. The two packet numbers are the first of each
	// direction: they identify the life of that queue pair.
	to               *wire
	sendPSN, recvPSN uint32
	began            bool // it can send
	with             *wireLife
	over             bool // it was reset or destroyed
	ill              bool // something was not successful

	out []*part // posted parts, in order; nil for one of no request
	// takers are the places of the messages that take a receive of the peer; -1 if the arrival of
	// the message alone does not count: a last fragment that the user's immediate follows.
	takers    []int
	arrivedTo int // all before this place has arrived, as the peer's library has seen

	recvsOut int   // receives posted
	took     []int // which of them have taken a message, in the order in which the library saw that
	known    int   // how many of the mate's are in arrivedTo
}

// revive begins another life of a queue pair.
func (q *wire) revive() {
	if q.wireLife != nil {
		q.over = true
	}
	open := q.end.state == connected || q.end.state == draining
	q.wireLife, q.userImm = &wireLife{q: q, back: open}, userImm{}
	q.lives = append(q.lives, q.wireLife)
}

// inSession reports whether the library changes a queue pair while requests may be outstanding.
func (q *wire) inSession() bool {
	e := q.end
	return (e.state == connected || e.state == draining) && !e.leaving && !e.single && e.conn.failover
}

// mayRevive checks that a queue pair that is reset in the middle of a session holds nothing any
// more.
func (q *wire) mayRevive() {
	e := q.end
	if !q.inSession() {
		return
	}
	for _, p := range q.recvs {
		if p.rcv != nil {
			e.w.Broken(lab.Ownership, "%v resets %v, which holds %v", e, q, p.rcv)
		}
	}
	if len(q.sends) != 0 {
		e.w.Broken(lab.Ownership, "%v resets %v, which holds %d requests", e, q, len(q.sends))
	}
}

// meet records how a queue pair is connected.
func (q *wire) meet(attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	if mask&verbs.QPAttrDestQPNum != 0 {
		for _, m := range q.end.peer.wires {
			if m.Num() == attr.DestQPNum && q.end.w.gids[attr.AH.DGID] == m.NIC {
				q.to, q.pair = m, m
			}
		}
	}
	if mask&verbs.QPAttrRQPSN != 0 {
		q.recvPSN = attr.RQPSN
	}
	if mask&verbs.QPAttrSQPSN == 0 {
		return
	}
	if q.back && q.began && !lab.PSNsApart(attr.SQPSN, q.psn, 1<<20) {
		q.end.w.Broken(ruleWire, "%v: %v comes back with the packet number %d after %d", q.end, q, attr.SQPSN,
			q.psn)
	}
	q.sendPSN, q.wireLife.began = attr.SQPSN, true
}

// mate returns the life at the other end; nil if there is none yet.
func (l *wireLife) mate() *wireLife {
	if l.with != nil || l.to == nil || !l.began {
		return l.with
	}
	for _, m := range l.to.lives {
		if m.began && m.to == l.q && m.recvPSN == l.sendPSN && m.sendPSN == l.recvPSN {
			l.with, m.with = m, l
		}
	}
	return l.with
}

// dead reports whether the queue pair takes no more packets and sends none, in this life.
func (l *wireLife) dead() bool {
	if l.over {
		return true
	}
	switch l.q.State() {
	case verbs.StateRTR, verbs.StateRTS, verbs.StateSQD:
		return false
	}
	return true
}

// held returns how many of the queue pair's requests have not come back in this life.
func (l *wireLife) held(of []posted) int {
	if l.over {
		return 0
	}
	return len(of)
}

func (l *wireLife) sendsHeld() int { return l.held(l.q.sends) }

func (l *wireLife) recvsHeld() int { return l.held(l.q.recvs) }

// settled reports whether the fate of everything that went out is known: the queue pair is dead and
// all its requests have come back, at both ends.
func (l *wireLife) settled() bool {
	m := l.mate()
	return l.dead() && l.sendsHeld() == 0 && (m == nil || m.dead() && m.recvsHeld() == 0)
}

// arrived returns the place before which everything has arrived, as the peer's library has seen.
func (l *wireLife) arrived() int {
	if m := l.mate(); m != nil {
		for ; l.known < len(m.took) && m.took[l.known] < len(l.takers); l.known++ {
			l.arrivedTo = max(l.arrivedTo, l.takers[m.took[l.known]]+1)
		}
	}
	return l.arrivedTo
}

// hasAtomics reports whether atomics that went out may still be carried out.
func (l *wireLife) hasAtomics() bool {
	return !l.dead() && slices.ContainsFunc(l.out, func(p *part) bool {
		return p != nil && p.op.IsAtomic() && p.state == partOnNIC
	})
}
