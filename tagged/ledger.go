package tagged

import (
	"fmt"
	"math"
)

// ledger counts the places that eager fragments and announcements take: those that the peer has for
// messages of this end, and those that this end has for the peer's. A message takes a place when it
// is sent, and its receiver gives the place back when the message needs no memory any more; one
// whose sender waits to hear of the match keeps it until the notice has gone out, so that notices
// are bounded, too.
//
// Invariant: 0 <= room <= most; open and owed are not negative, and open+owed <= keeps: the rest is
// taken.
type ledger struct {
	room, most int // places that the peer has left, and has in all

	open  int // places of this end that the peer knows to be free
	owed  int // places that are free, and the peer is to be told
	keeps int // places in all
}

// admits reports whether the peer has a place for a message.
func (l *ledger) admits() bool { return l.room != 0 }

// sent takes in that n messages were sent that take places.
func (l *ledger) sent(n int) { l.room -= n }

// returned takes in that the peer has given places back, and says if there cannot be so many.
func (l *ledger) returned(n uint16) error {
	if l.room += int(n); l.room > l.most {
		return fmt.Errorf("a window of %d messages: %d were announced", l.room, l.most)
	}
	return nil
}

// arrived takes in that a message has come that takes a place, and reports whether there was one.
func (l *ledger) arrived() bool {
	if l.open == 0 {
		return false
	}
	l.open--
	return true
}

// consumed takes in that n messages need no memory any more.
func (l *ledger) consumed(n int) { l.owed += n }

// offer is how many places the next message to the peer gives back, if that frees some more itself.
func (l *ledger) offer(more int) uint16 { return uint16(min(l.owed+more, math.MaxUint16)) }

// gave takes in that a message that gives n places back has gone out.
func (l *ledger) gave(n uint16) {
	l.open += int(n)
	l.owed -= int(n)
}

// due reports whether places have to be given back by a message of their own: a half of them, so
// that the cost is shared; or any at all when the peer may have none left.
func (l *ledger) due() bool { return l.owed != 0 && (2*l.owed >= l.keeps || l.open == 0) }
