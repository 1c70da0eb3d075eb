package ability

import (
	"fmt"
	"time"

	"ibverbx/internal/ring"
)

// Rail is one rail: what it has outstanding, and its measured speed.
//
// Speed is measured over a sample, in which the rail is always busy with large fragments: the bytes
// completed over the time that they took. A sample begins when the rail gets work, or in the middle
// of it, and ends at the latest when the rail runs empty, since the time until it gets more depends
// on the program. Between two samples the rail rests, because reading the clock costs as much as a
// fragment.
//
// Invariant: sizes has the length of each work request that the rail has, oldest first, 0 for those
// that carry no fragment; load is their sum, with messageCost for each; large counts those of at
// least least bytes.
type Rail struct {
	rails *Rails // the rails that it is compared with
	// out says that the rail is out of service: it gets nothing, and its cost does not count.
	out   bool
	sizes ring.FIFO[uint32]
	load  uint64
	large int
	least uint64 // length of a large fragment in bytes: largeFragment, or the fragment size if that is less

	cost float64 // nanoseconds a byte, the inverse of the rate; 0 while unknown
	idle uint32  // fragments given to other rails while this one was idle, since its last measurement

	rest  int       // large fragments to be completed before the next sample
	began time.Time // when the sample began
	moved uint64    // bytes that the sample has completed
	left  int       // large fragments to be completed before the clock is read
	every int       // large fragments between two readings
	// fresh says that the sample began with the work. In the middle of the work the next
	// completions may be from the same poll and say nothing about speed.
	fresh bool
}

const (
	// largeFragment is the least fragment that shows how fast a rail is, in bytes: in smaller ones
	// the cost of a message is a good part.
	largeFragment = 16 << 10
	// messageCost is the fixed cost of a message, in bytes. Because of it small messages are shared
	// by number.
	messageCost = 4 << 10
	// sample is the least length of a sample while there is more work.
	sample = 50 * time.Microsecond
	// restFragments is the number of large fragments between two samples, and maxEvery the most
	// between two looks at the clock within a sample.
	restFragments, maxEvery = 16, 64
	// similar is the ratio within which rates count as equal. Measured rates of equal rails differ
	// by as much, and taking turns is cheaper and no worse.
	similar = 4.0 / 3
	// forget is the number of other rails' fragments after which an idle rail is assumed to be
	// twice as fast as measured; after twice as many, three times as fast, and so on. So a slow
	// rail is tried again, later if it was slower, and a trial costs a small part of the traffic in
	// between.
	forget = 128
	// slowest bounds how many times slower than the fastest a rail is assumed to be: a measurement
	// made while the program stood still must not rule it out forever.
	slowest = 100
	// trials is the most large fragments outstanding on a rail whose rate is unknown, because a
	// slow rail keeps what it was given.
	trials = 2
)

// Add counts a work request with a fragment of size bytes; 0 means without a fragment.
func (r *Rail) Add(size uint64) {
	r.sizes.Push(uint32(size))
	r.load += size + messageCost
	if size < r.least {
		return
	}
	r.large++
	if r.large == 1 && (r.rest == 0 || r.idle >= forget) {
		r.begin(r.rails.clock(), true)
	}
}

// begin begins a sample.
func (r *Rail) begin(now time.Time, fresh bool) {
	r.every = max(r.every, 1)
	r.began, r.fresh, r.rest, r.moved, r.left = now, fresh, 0, 0, r.every
}

// End counts the oldest work request as complete. One that failed, or never began, says nothing
// about the rail.
func (r *Rail) End(success bool) {
	if success {
		r.done()
	} else {
		r.fail()
	}
}

func (r *Rail) done() {
	size := uint64(r.sizes.Pop())
	r.load -= size + messageCost
	if size < r.least {
		return
	}
	r.large--
	if r.rest != 0 {
		if r.rest--; r.rest == 0 && r.large != 0 {
			r.begin(r.rails.clock(), false)
		}
		return
	}
	r.moved += size
	if r.left--; r.left > 0 && r.large != 0 {
		return
	}
	r.look(r.rails.clock())
}

// look ends the sample if it has lasted long enough, or if there is no more work. A short sample
// counts only if it is fresh.
func (r *Rail) look(now time.Time) {
	took := now.Sub(r.began)
	switch {
	case took > 0 && (took >= sample || r.large == 0 && r.fresh):
	case r.large == 0:
		r.rest = restFragments
		return
	default:
		r.every = min(2*r.every, maxEvery)
		r.left = r.every
		return
	}
	if took > 4*sample {
		r.every = max(r.every/2, 1)
	}
	r.updateCost(float64(took) / float64(r.moved))
	r.idle, r.rest = 0, restFragments
	r.rails.compare()
}

// updateCost updates the cost from that of a sample. If a program does not poll for a while, a rail
// looks slow, so the cost grows only a little at a time. A lower cost from a trial counts at
// once.
func (r *Rail) updateCost(seen float64) {
	if r.cost == 0 || r.idle >= forget && seen < r.cost {
		r.cost = seen
		return
	}
	r.cost += (min(seen, 2*r.cost) - r.cost) / 4
}

func (r *Rail) fail() {
	size := uint64(r.sizes.Pop())
	r.load -= size + messageCost
	if size >= r.least {
		r.large--
		r.rest = restFragments
	}
}

// onTrial reports whether the rail has enough work to be measured, and its speed is unknown or was
// measured long ago.
func (r *Rail) onTrial() bool {
	return r.cost == 0 && r.large >= trials || r.idle >= forget && r.large != 0
}

// finished returns the time, in nanoseconds from now, at which the rail will have finished another
// size bytes. The rail is assumed to be no faster than the fastest, and as fast as that until its
// own rate is known.
func (r *Rail) finished(size uint64, fastest float64) float64 {
	cost := r.cost
	if cost > slowest*fastest { // Go's min and max also check for NaN
		cost = slowest * fastest
	}
	if r.idle != 0 {
		cost /= 1 + float64(r.idle)/forget
	}
	if cost < fastest {
		cost = fastest
	}
	return float64(int64(r.load+size+messageCost)) * cost
}

// TakeOut takes the rail out of service, and drops what it has outstanding.
func (r *Rail) TakeOut() {
	r.out = true
	r.abandon()
	r.rails.compare()
}

// Return puts the rail back into service, with its speed unknown.
func (r *Rail) Return() {
	r.restart()
	r.rails.compare()
}

// Rate returns the rail's speed in bytes a second; 0 if it is unknown.
func (r *Rail) Rate() uint64 {
	if r.cost == 0 {
		return 0
	}
	return uint64(1e9 / r.cost)
}

// Check returns an error if an invariant does not hold; outstanding is the number of the rail's
// work requests.
func (r *Rail) Check(outstanding int) error {
	if outstanding == 0 && (r.load != 0 || r.large != 0) {
		return fmt.Errorf("nothing in use, ability counts a load of %d, %d large", r.load, r.large)
	}
	if r.sizes.Len() != outstanding || r.load < uint64(outstanding)*messageCost || r.large < 0 ||
		r.large > outstanding {
		return fmt.Errorf("%d in use, ability counts %d, %d large, load %d", outstanding, r.sizes.Len(),
			r.large, r.load)
	}
	return nil
}

func (r *Rail) abandon() { r.sizes, r.load, r.large = ring.FIFO[uint32]{}, 0, 0 }

func (r *Rail) restart() { *r = Rail{rails: r.rails, least: r.least} }
