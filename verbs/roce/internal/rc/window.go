package rc

import (
	"math"
	"time"
)

// window limits the packets under way between two ends of this package.
//
// It follows the delay, as TCP Vegas and Swift do (Kumar et al., SIGCOMM 2020): it grows by a
// packet per round trip while the shortest round trip of the round is not much longer than the
// path, and shrinks in proportion to the excess. A queue that builds up somewhere makes it yield
// before packets are dropped.
//
// A new connection on a path that others fill mistakes their queue for the length of the path, and
// would push them aside. So from time to time each shrinks its window to almost nothing for one
// round trip, in which its own queue drains, so all of them see the path as it is (the slowdowns of
// LEDBAT++, draft-irtf-iccrg-ledbat-plus-plus). This costs no more than that round trip without a
// queue. Without it, the later of two connections on a gigabit had 97 %.
//
// A delay that stays even though the window shrinks is another flow's queue, or a longer path. TCP,
// which fills every queue, would leave nothing to a window that keeps yielding. So when the window
// has shrunk to almost nothing and a slowdown still finds the delay, the window competes (see
// rival), until a slowdown finds the queue gone. Copa and Nimbus change their mode for the same
// reason (Arun and Balakrishnan, NSDI 2018; Goyal et al., SIGCOMM 2022). If the path is longer, the
// window learns it after some seconds, when it drops the old, short round trips.
//
// Loss alone means little on a network that corrupts or reorders packets. As in BBR v2
// (draft-cardwell-iccrg-bbr-congestion-control) it counts from 2 % on, as when a receive buffer or
// a switch overflows. It is averaged over packets, not counted by the round: a round of a small
// window has few packets, of which one in five could be lost forever. A queue that is too short to
// show in the delay shows in the time of its losses: they come when the round trips are longest. If
// nothing comes back at all, the window collapses.
//
// Invariant: minWindow <= packets <= limit.
type window struct {
	packets   float64
	limit     float64
	threshold float64 // of the slow start
	slowStart bool    // the window doubles each round, up to the threshold

	path      path
	rounds    int     // since the last slowdown
	long      int     // rounds in a row that were longer than the target
	longSince int64   // when the first of them ended
	lossRate  float64 // the share of lost packets, averaged
	recovery  seq     // numbers before it were sent before the last cut

	roundEnd int64 // when the present round ends
	roundMin int64 // its shortest round trip
	losses   int   // packets that were lost in it
	last     int64 // the last round trip
	longest  int64 // the longest one since the last slowdown

	slowdown slowdown
	rival    rival
	marks    marks
}

const (
	minWindow   = 2
	startWindow = 16
	shrink      = 0.7  // the window after a round of loss, as in CUBIC (RFC 9438)
	tolerate    = 0.02 // the share of losses that does not count as congestion
	lossWeight  = 1. / 64
	// noLoss counts as no losses at all. A smaller share would become subnormal, which costs the
	// processor 40 ns a packet: 8 % of the sender's time at a path MTU of 1024.
	noLoss       = 1e-9
	maxShrink    = 0.5 // the largest cut for delay in one round
	growPerRound = 1   // packets
)

// start begins with a window of startWindow packets.
func (w *window) start(mtu, limit int) {
	packets := float64(limit) / float64(max(mtu, 1))
	*w = window{
		limit:     math.Max(math.Min(packets, maxTrack), minWindow),
		slowStart: true, roundMin: math.MaxInt64,
	}
	w.packets, w.threshold = math.Min(startWindow, w.limit), math.Inf(1)
	w.path.start()
	w.marks.start()
}

// arrived records that n packets have arrived that left together; rtt is their round trip, or 0 if
// that is not known. flying packets are still under way.
func (w *window) arrived(now, rtt int64, flying, n int) {
	for range n {
		w.arrivedOne(now, rtt, flying)
		if w.isSettled(rtt) {
			return
		}
	}
}

// isSettled reports whether one more packet with a round trip would change nothing.
func (w *window) isSettled(rtt int64) bool {
	return w.lossRate == 0 && w.roundMin <= rtt && w.slowdown.began == 0 && !w.slowStart
}

func (w *window) arrivedOne(now, rtt int64, flying int) {
	if w.lossRate -= w.lossRate * lossWeight; w.lossRate < noLoss {
		w.lossRate = 0
	}
	if rtt > 0 {
		w.roundMin = min(w.roundMin, rtt)
		w.last, w.longest = rtt, max(w.longest, rtt)
		w.path.add(now, rtt)
	}
	if w.slowdown.began != 0 {
		if w.slowdown.arrived(now, rtt, w.roundEnd) {
			w.endSlowdown(now)
		}
		return
	}
	switch {
	case w.rival.waits:
		// A missing packet holds up those behind it. When it arrives, no burst may follow.
		w.packets = math.Max(math.Min(w.threshold, float64(flying+2)), minWindow)
	case w.slowStart:
		w.packets = math.Min(w.packets+1, w.limit)
		w.slowStart = w.packets < w.threshold
	}
	if now >= w.roundEnd {
		w.endRound(now)
	}
}

// passed records that everything before una has arrived.
func (w *window) passed(now int64, una seq) {
	if w.rival.waits && una >= w.recovery && w.slowdown.began == 0 {
		w.packets = w.threshold
		w.beginSlowdown(now)
	}
}

// missed records that the packet with a number was lost; next is the first that was never sent.
func (w *window) missed(s, next seq) {
	w.losses++
	w.lossRate += (1 - w.lossRate) * lossWeight
	if s < w.recovery || !w.rival.competes && !w.inShortQueue() {
		return
	}
	w.recovery, w.slowStart = next, false
	switch {
	case w.rival.competes:
		w.yield()
	case w.slowdown.began != 0:
		w.slowdown.before = math.Max(w.slowdown.before*shrink, minWindow)
	default:
		w.packets = math.Max(w.packets*shrink, minWindow)
	}
}

// marked records that the network has marked packets; all before una have arrived, and next is the
// first that was never sent.
func (w *window) marked(una, next seq) {
	if una < w.recovery {
		return // they were sent before the window was cut
	}
	w.recovery, w.slowStart = next, false
	switch {
	case w.rival.competes:
		w.yield()
	case w.slowdown.began != 0:
		w.slowdown.before = w.marks.cut(w.slowdown.before)
	default:
		w.packets = w.marks.cut(w.packets)
	}
}

// yield shrinks a window that competes, which then slows down once its losses are repaired.
func (w *window) yield() {
	w.rival.waits = true
	if w.slowdown.began != 0 {
		w.slowdown.before = w.rival.cut(w.slowdown.before)
	} else {
		w.packets = math.Max(w.rival.cut(w.packets), minWindow)
		w.threshold = w.packets
	}
}

// inShortQueue reports whether a packet was lost because a queue shorter than the target was full:
// the last round trip was nearly the longest.
func (w *window) inShortQueue() bool {
	base := w.path.base
	return w.longest < w.path.target() && w.longest > base+base/8 && w.last > base+(w.longest-base)/2
}

// endRound adjusts the window to the losses and round trips of a round.
func (w *window) endRound(now int64) {
	if w.roundEnd == 0 || w.roundMin == math.MaxInt64 && w.losses == 0 {
		w.beginRound(now)
		return
	}
	w.rounds++
	began := w.slowStart
	slow := w.rounds >= slowdownEvery && !w.slowStart
	if w.rival.competes {
		slow = w.compete(now) || slow
	} else {
		slow = w.follow(now) || slow
	}
	if began && !w.slowStart {
		w.rounds = max(w.rounds, slowdownEvery-slowdownFirst)
	}
	w.packets = math.Max(math.Min(w.packets, w.limit), minWindow)
	if slow && !w.rival.waits {
		w.beginSlowdown(now)
	} else {
		w.beginRound(now)
	}
}

// follow adjusts the window to the delay. It returns true if another flow seems to cause the delay.
func (w *window) follow(now int64) bool {
	if w.roundMin <= w.path.target() {
		w.long = 0
	}
	switch {
	case w.losses != 0 && w.lossRate > tolerate:
		w.slowStart = false
		w.packets *= shrink
	case w.roundMin != math.MaxInt64 && w.roundMin > w.path.target():
		if w.long++; w.long == 1 {
			w.rival.before, w.longSince = w.packets, now
		}
		w.slowStart = false
		excess := float64(w.roundMin-w.path.target()) / float64(w.roundMin)
		w.packets *= 1 - math.Min(excess, maxShrink)
	default:
		w.packets = w.marks.grow(w.packets, growPerRound)
	}
	return w.isHelpless(now)
}

// isHelpless reports whether the window has shrunk to almost nothing, yet the delay stays.
func (w *window) isHelpless(now int64) bool {
	return w.packets <= lowWindow && w.long >= longRounds && now-w.longSince >= longTime
}

// compete adjusts the window to the time since the last loss. It returns true if the round trip has
// fallen as when others slow down.
func (w *window) compete(now int64) bool {
	last := w.rival.round
	w.rival.round = w.roundMin
	switch {
	case w.roundMin == math.MaxInt64 || w.rival.waits:
	case last != math.MaxInt64 && w.roundMin < last*dip/10:
		return true
	case !w.slowStart:
		w.packets = w.rival.grow(now, w.packets)
	case w.roundMin > w.rival.found+w.rival.found/8+targetFixed:
		w.slowStart = false
	}
	return false
}

func (w *window) beginRound(now int64) {
	length := w.roundMin
	if length == math.MaxInt64 {
		length = min(w.path.base, int64(time.Millisecond))
	}
	w.roundEnd = now + length
	w.roundMin, w.losses = math.MaxInt64, 0
}

// beginSlowdown shrinks the window to almost nothing.
func (w *window) beginSlowdown(now int64) {
	w.slowdown = slowdown{began: now, before: w.packets, round: w.roundMin, shortest: math.MaxInt64}
	w.beginRound(now)
	w.packets, w.rounds, w.rival.waits = minWindow, 0, false
	w.rival.round = math.MaxInt64
}

// endSlowdown restores the window, and chooses its rule by what the slowdown has found.
func (w *window) endSlowdown(now int64) {
	found, before := w.slowdown.shortest, w.slowdown.before
	w.slowdown.began, w.longest = 0, 0
	switch {
	case found <= w.path.empty(): // even if the path has turned out to be longer
		if w.rival.competes {
			before = math.Max(before*(1-w.slowdown.queued()), minWindow)
		}
		w.rival.competes, w.rival.waits, w.long = false, false, 0
	case w.rival.competes:
		// The queue has room for what it held before; the window regains the rest round by round.
		w.slowStart, w.threshold = true, before
		before = math.Max(before*w.slowdown.queued(), minWindow)
	case found != math.MaxInt64 && before <= lowWindow && w.isHelpless(now):
		before = math.Max(before, w.rival.before)
		w.slowStart, w.threshold = true, math.Inf(1)
		w.rival = rival{competes: true, found: found, round: math.MaxInt64}
	}
	w.packets = before
	w.beginRound(now)
}

// collapse restarts with the smallest window, when nothing came back.
func (w *window) collapse(next seq) {
	w.packets, w.slowStart, w.threshold = minWindow, true, math.Inf(1)
	w.losses, w.slowdown.began, w.rival.waits, w.recovery = 0, 0, false, next
}
