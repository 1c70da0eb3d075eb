package rc

import (
	"math"
	"time"
)

// window is the most packets that may be under way.
//
// Towards foreign ends it is the limit that the kernel's rdma_rxe sets itself, and all control of
// congestion is left to the rate limit: their acknowledgements are coalesced in ways that say
// little about the network.
//
// Between our own ends it follows the delay, as TCP Vegas and Swift do (Kumar et al., SIGCOMM
// 2020): it grows by a packet per round trip while the shortest round trip of the round is not much
// longer than the shortest one ever, and shrinks in proportion to the excess. A queue that builds
// up somewhere makes it yield before packets are dropped.
//
// A connection that comes to a path that others fill takes their queue for the length of the path,
// and would push them aside. So now and then each takes its window back to almost nothing for one
// round trip, in which its own queue drains: all of them see the path as it is (the slowdowns of
// LEDBAT++, draft-irtf-iccrg-ledbat-plus-plus). This costs no more than that round trip without a
// queue. Without it, the later one of two connections on a gigabit had 97 %.
//
// Loss alone means little on a network that corrupts or reorders packets. As in BBR v2
// (draft-cardwell-iccrg-bbr-congestion-control) it counts from 2 % on, as when a receive buffer or
// a switch overflows. It is averaged over packets, not counted by the round: a round of a small
// window has few packets, of which one in five could be lost for ever. If nothing comes back at
// all, the window collapses.
//
// Invariant: minWindow <= packets <= limit.
type window struct {
	packets   float64
	limit     float64
	slowStart bool // the window doubles each round

	base     int64 // the shortest round trip of the last baseRounds
	nextBase int64 // the shortest round trip since base was last renewed
	rounds   int   // rounds since then

	roundEnd int64   // when the present round ends
	roundMin int64   // its shortest round trip
	losses   int     // packets that were lost in it
	lossRate float64 // the share of packets that are lost, averaged

	slowdown int64   // when the present slowdown began; 0 is none
	before   float64 // the window before it
}

const (
	minWindow     = 2
	startWindow   = 16
	baseRounds    = 4096 // the path may change, so old round trips are forgotten
	slowdownEvery = 128  // rounds
	shrink        = 0.7  // the window after a round of loss, as in CUBIC (RFC 9438)
	tolerate      = 0.02 // the share of losses that does not count as congestion
	lossWeight    = 1. / 64
	maxShrink     = 0.5 // the most that delay takes in one round
	targetFixed   = int64(500 * time.Microsecond)
	targetShare   = 4 // the target is targetFixed and a part of base above it
	growPerRound  = 1 // packets
)

// start begins with a window of startWindow packets.
func (w *window) start(mtu, limit int) {
	packets := float64(limit) / float64(max(mtu, 1))
	*w = window{
		limit:   math.Max(math.Min(packets, maxTrack), minWindow),
		packets: startWindow, slowStart: true,
		base: math.MaxInt64, nextBase: math.MaxInt64, roundMin: math.MaxInt64,
	}
	w.packets = math.Min(w.packets, w.limit)
}

// size returns how many packets may be under way.
func (w *window) size(q *QP) int {
	if !q.ours {
		return foreignTrack
	}
	return int(w.packets)
}

// arrived notes that a packet has arrived; rtt is its round trip, or 0 if that is not known.
func (w *window) arrived(now, rtt int64) {
	w.lossRate -= w.lossRate * lossWeight
	if rtt > 0 {
		w.roundMin = min(w.roundMin, rtt)
		w.nextBase = min(w.nextBase, rtt)
		w.base = min(w.base, rtt)
	}
	if w.slowdown != 0 {
		// The slowdown ends with the first packet that left in it: no more than minWindow were
		// under way.
		if rtt > 0 && now-rtt >= w.slowdown || now-w.slowdown > 4*(w.roundEnd-w.slowdown) {
			w.packets, w.slowdown = w.before, 0
			w.beginRound(now)
		}
		return
	}
	if w.slowStart {
		w.packets = math.Min(w.packets+1, w.limit)
	}
	if now >= w.roundEnd {
		w.endRound(now)
	}
}

// missed notes that a packet was lost.
func (w *window) missed() {
	w.losses++
	w.lossRate += (1 - w.lossRate) * lossWeight
}

// endRound adjusts the window to the losses and round trips of a round.
func (w *window) endRound(now int64) {
	if w.roundEnd == 0 || w.roundMin == math.MaxInt64 && w.losses == 0 {
		w.beginRound(now)
		return
	}
	target := w.base + w.base/targetShare + targetFixed
	switch {
	case w.losses != 0 && w.lossRate > tolerate:
		w.slowStart = false
		w.packets *= shrink
	case w.roundMin != math.MaxInt64 && w.roundMin > target:
		w.slowStart = false
		excess := float64(w.roundMin-target) / float64(w.roundMin)
		w.packets *= 1 - math.Min(excess, maxShrink)
	default:
		w.packets += growPerRound
	}
	w.packets = math.Max(math.Min(w.packets, w.limit), minWindow)
	w.beginRound(now)
	if w.rounds%slowdownEvery == 0 && !w.slowStart {
		w.before, w.packets, w.slowdown = w.packets, minWindow, now
	}
}

func (w *window) beginRound(now int64) {
	if w.rounds++; w.rounds == baseRounds {
		w.base, w.nextBase, w.rounds = w.nextBase, math.MaxInt64, 0
	}
	length := w.roundMin
	if length == math.MaxInt64 {
		length = min(w.base, int64(time.Millisecond))
	}
	w.roundEnd = now + length
	w.roundMin, w.losses = math.MaxInt64, 0
}

// collapse begins anew with the smallest window, when nothing came back.
func (w *window) collapse() {
	w.packets, w.slowStart = minWindow, true
	w.losses, w.slowdown = 0, 0
}

// limiter bounds the rate at which a QP sends: a bucket of tokens, bytes of payload.
type limiter struct {
	rate   float64 // bytes a second; 0 is no bound
	tokens float64 // may be negative: the last packet may take more than there was
	at     int64   // the time of tokens
	waits  bool    // a packet waits for tokens
}

// burst limits the tokens that a limiter gathers while nothing is to be sent, and lateBurst those
// while a packet waits for them, in the time that they last: on a busy host programs are called
// later than they asked to be, and would never make up for it. The window bounds what leaves at
// once, too.
const (
	burst     = int64(time.Millisecond)
	lateBurst = 50 * burst
)

func (l *limiter) start(rate float64, now int64) { *l = limiter{rate: rate, at: now} }

// allows reports whether the packet that is to be sent may leave.
func (l *limiter) allows(now int64) bool {
	if l.rate == 0 {
		return true
	}
	l.gather(now)
	l.waits = l.tokens < 0
	return !l.waits
}

// gather adds the tokens of the time since the last call.
func (l *limiter) gather(now int64) {
	if now <= l.at {
		return
	}
	most := burst
	if l.waits {
		most = lateBurst
	}
	l.tokens = math.Min(l.tokens+l.rate*float64(now-l.at)/1e9, l.rate*float64(most)/1e9)
	l.at = now
}

// packetsIn returns how many packets leave in a time, at least one.
func (l *limiter) packetsIn(time int64, mtu uint64) int {
	return max(int(l.rate*float64(time)/1e9/float64(mtu)), 1)
}

func (l *limiter) spend(n int) {
	if l.rate != 0 {
		l.tokens -= float64(n)
	}
}

// next returns the time at which a packet may leave that may not leave now; Never if it may.
func (l *limiter) next(now int64) int64 {
	if l.rate == 0 {
		return Never
	}
	if l.gather(now); l.tokens >= 0 {
		return Never
	}
	return now + int64(-l.tokens/l.rate*1e9) + 1
}
