package rc

import (
	"math"
	"time"
)

// path is the length of the path: the shortest round trip of the last seconds. The path may change,
// so older ones are dropped, as in BBR (draft-cardwell-iccrg-bbr-congestion-control).
type path struct {
	base  int64 // the shortest one since the renewal before the last
	next  int64 // the shortest one since the last renewal
	renew int64 // the time of the next renewal
}

const (
	renewPath   = 10 * int64(time.Second)
	targetFixed = int64(500 * time.Microsecond)
	targetShare = 4 // the target is targetFixed and a part of the path above it
)

func (p *path) start() { *p = path{base: math.MaxInt64, next: math.MaxInt64} }

// add records a round trip.
func (p *path) add(now, rtt int64) {
	if now >= p.renew {
		if p.next != math.MaxInt64 {
			p.base = p.next
		}
		p.next, p.renew = math.MaxInt64, now+renewPath
	}
	p.next = min(p.next, rtt)
	p.base = min(p.base, rtt)
}

// target is the longest round trip that a window that follows the delay allows.
func (p *path) target() int64 { return targetOf(p.base) }

func targetOf(base int64) int64 { return base + base/targetShare + targetFixed }

// empty is the longest round trip without a flow that fills the queue.
func (p *path) empty() int64 { return p.base + (p.target()-p.base)/2 }

// slowdown is a time in which almost nothing is under way. It ends when some packets that left
// during it have been answered, or after some time.
type slowdown struct {
	began    int64   // 0 is none
	before   float64 // the window before it
	round    int64   // the round trip before it
	answered int     // packets that left in it
	shortest int64   // their shortest round trip
}

const (
	slowdownEvery = 128 // rounds
	slowdownFirst = 4   // rounds after the slow start: a newcomer takes others' queue for the path
	// slowdownPackets is more than one, so that slowdowns that begin within a round trip overlap.
	slowdownPackets = 4
	// A slowdown begins early if a window of at most lowWindow packets could not shorten longRounds
	// rounds.
	longRounds = 16
	longTime   = 50 * int64(time.Millisecond)
	lowWindow  = 4
)

// queued is the share of packets that waited in a queue, of those under way before the slowdown.
func (s *slowdown) queued() float64 {
	if s.round == math.MaxInt64 {
		return 0
	}
	return max(1-float64(s.shortest)/float64(s.round), 0)
}

// arrived records that a packet has arrived. It returns true if the slowdown is over. roundEnd is
// the expected end of its first round trip.
func (s *slowdown) arrived(now, rtt, roundEnd int64) bool {
	if rtt > 0 && now-rtt >= s.began {
		s.shortest = min(s.shortest, rtt)
		s.answered++
	}
	return s.answered >= slowdownPackets || now-s.began > 4*(roundEnd-s.began)
}
