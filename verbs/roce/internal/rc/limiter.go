package rc

import (
	"math"
	"time"
)

// limiter bounds the rate at which a QP sends: a bucket of tokens, bytes of payload.
type limiter struct {
	rate   float64 // bytes a second; 0 is no bound
	tokens float64 // may be negative: the last packet may take more than is left
	at     int64   // the time of tokens
	waits  bool    // a packet waits for tokens
}

// burst limits the tokens that a limiter gathers while nothing is to be sent, and lateBurst those
// that it gathers while a packet waits, both as times. On a busy host programs are called later
// than they asked for, and without lateBurst would never catch up. The window also bounds the
// packets that leave at once.
const (
	burst     = int64(time.Millisecond)
	lateBurst = 50 * burst
)

func (l *limiter) start(rate float64, now int64) { *l = limiter{rate: rate, at: now} }

// allows reports whether the next packet may leave.
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

// next returns the time at which the waiting packet may leave; Never if it may leave now.
func (l *limiter) next(now int64) int64 {
	if l.rate == 0 {
		return Never
	}
	if l.gather(now); l.tokens >= 0 {
		return Never
	}
	return now + int64(-l.tokens/l.rate*1e9) + 1
}
