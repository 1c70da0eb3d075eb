// Package flow counts the places that messages take at their receiver. Both ends of a connection
// keep one [Ledger] each; what a place is (a receive buffer, a promise to keep a message) and how
// grants travel is the business of the layer that uses it.
//
// # The protocol
//
// Each end has a fixed number of places and announces it when it connects. Each message takes one
// of them. The sender counts its room, the places of the peer that it may still fill, and sends
// nothing without. The receiver grants a place again once it no longer needs the message's memory.
// A grant is a number carried by any message that is sent anyway; if there is none, the receiver
// sends a message for it alone, which itself takes no place.
//
// For each direction, every place is at each moment exactly one of these:
//
//	room             the sender may fill it
//	on its way       a message that has not arrived fills it
//	held             a message that has arrived, and is still needed, fills it
//	due              free, and not granted yet
//	granted          free, in a grant that has not arrived
//
// The receiver counts the places that are due, and those that are open, the sum of room, messages
// in flight and grants in flight: a grant that leaves adds to open, a message that arrives
// subtracts from it. So it detects a peer that sends without a place: open is zero when the message
// arrives. The sender detects a peer that grants places that it does not have: room would exceed
// the number announced.
//
// # Why it cannot deadlock
//
// A message for a grant alone is sent when half of the places are due, so that one message serves
// many places, and also when any place is due while open is zero. Assume that a sender has no room
// and nothing is in flight in either direction. Then open is zero, and no place is due, or a grant
// would be sent. So the receiver holds all places, and its program has not used the messages.
// Making a sender wait for that is the purpose of flow control; it never waits for anything else.
//
// The rule relies on two promises of the layer that uses it. It always sends a message that only
// grants in the end, which waits for no place, nor for a message that does. And it calls
// [Ledger.MustGrant] after each message that arrives and each place that becomes free, since either
// can make it true.
package flow

import (
	"fmt"
	"math"
)

// Ledger is one end's account of both directions of a connection.
//
// Invariant: 0 <= room <= most; open and due are not negative, and open+due <= places: messages
// that have arrived and are still needed hold the rest.
type Ledger struct {
	room int // places of the peer that this end may fill
	most int // places that the peer has: room never exceeds it

	open   int // places of this end that were granted and are not filled by an arrived message yet
	due    int // places of this end that are free, and not granted yet
	places int // places that this end has
}

// New returns the ledger of an end that has places places. It may send once it knows the peer's:
// see [Ledger.Connect].
func New(places int) Ledger { return Ledger{open: places, places: places} }

// Connect sets the number of places that the peer has announced.
func (l *Ledger) Connect(most int) { l.room, l.most = most, most }

// The direction in which this end sends.

// Room returns how many messages this end may send now.
func (l *Ledger) Room() int { return l.room }

// Most returns how many places the peer has.
func (l *Ledger) Most() int { return l.most }

// Sent subtracts the places of n messages, Room at most, that were sent.
func (l *Ledger) Sent(n int) { l.room -= n }

// Regain adds n places that the peer has granted. It reports false, and adds nothing, if the peer
// does not have so many.
func (l *Ledger) Regain(n uint16) (ok bool) {
	if int(n) > l.most-l.room {
		return false
	}
	l.room += int(n)
	return true
}

// The direction in which this end receives.

// Arrive counts a message that has arrived. It reports false, and counts nothing, if the peer had
// no place for it.
func (l *Ledger) Arrive() (ok bool) {
	if l.open == 0 {
		return false
	}
	l.open--
	return true
}

// Free makes n places due, whose messages are no longer needed.
func (l *Ledger) Free(n int) { l.due += n }

// Due returns how many places are free and not granted yet.
func (l *Ledger) Due() int { return l.due }

// Open returns how many places were granted and not used by a message yet.
func (l *Ledger) Open() int { return l.open }

// PeerWaits reports whether the peer has no room once everything in flight has arrived: it waits
// for the next grant.
func (l *Ledger) PeerWaits() bool { return l.open == 0 }

// MustGrant reports whether to send a message for a grant alone, because there may be no other: see
// the package comment.
func (l *Ledger) MustGrant() bool { return l.due != 0 && (2*l.due >= l.places || l.open == 0) }

// Grant returns the number that the next message to the peer carries: all places that are due, or
// as many as fit its two bytes. extra are places that become free with that message. Nothing
// changes until the message has gone out: see [Ledger.Granted].
func (l *Ledger) Grant(extra int) uint16 { return uint16(min(l.due+extra, math.MaxUint16)) }

// Granted counts n places as granted, because the message that carries them has gone out.
func (l *Ledger) Granted(n uint16) {
	l.open += int(n)
	l.due -= int(n)
}

// Check returns how the invariant is broken; nil while it holds.
func (l *Ledger) Check() error {
	if l.room < 0 || l.room > l.most || l.open < 0 || l.due < 0 || l.open+l.due > l.places {
		return fmt.Errorf("flow: room for %d of %d messages; %d places open and %d due of %d",
			l.room, l.most, l.open, l.due, l.places)
	}
	return nil
}
