package ability

import (
	"fmt"
	"time"

	"ibverbx/internal/ring"
)

// Rail is one rail: what it has outstanding, and its measured speed.
//
// A speed is measured over a sample, in which the rail was busy with large fragments all the time:
// the bytes that were completed over the time that they took. A sample begins when the rail gets
// work, or in the middle of it, and ends when the rail runs empty: the time until it gets more
// depends on the program. Between two samples the rail rests: reading the clock costs as much as a
// fragment does.
//
// Invariant: sizes has the length of each work request that the rail has, oldest first, 0 for those
// that carry no fragment; load is their sum, with messageCost for each; large counts those of at
// least least bytes.
type Rail struct {
	rails *Rails // those that it is compared with
	// out says that the rail is out of service: it gets nothing, and its cost does not count.
	out   bool
	sizes ring.FIFO[uint32]
	load  uint64
	large int
	least uint64 // largeFragment, or as large as fragments are

	cost float64 // nanoseconds a byte, the inverse of the rate; 0 is not known yet
	idle uint32  // fragments that others were given while the rail had none, since it was measured

	rest  int       // large fragments to be completed before the next sample
	began time.Time // the sample
	moved uint64    // bytes that it has completed
	left  int       // large fragments to be completed before the clock is read
	every int       // so many at a time
	// fresh says that the sample began with the work, and not in its middle: there the next
	// completions may be those of the same poll, which tell nothing.
	fresh bool
}

const (
	// largeFragment is the least fragment that tells how fast a rail is, in bytes, where fragments
	// may be as large: of smaller ones the cost of a message is a good part.
	largeFragment = 16 << 10
	// messageCost is the cost of a message beside its bytes, in bytes: it makes small messages be
	// shared by number.
	messageCost = 4 << 10
	// sample is the least time that a rate is measured while there is more to come.
	sample = 50 * time.Microsecond
	// restFragments is the number of large fragments between two samples, and maxEvery the most
	// between two looks at the clock within a sample.
	restFragments, maxEvery = 16, 64
	// similar is the ratio within which rates count as equal. Measured rates of equal rails differ
	// by that much, and taking turns is then cheaper and no worse.
	similar = 4.0 / 3
	// forget is the number of other rails' fragments after which an idle rail is assumed to be
	// twice as fast as measured; after twice as many three times as fast, and so on. So a slow rail
	// is tried again, the later the slower it was, and a trial costs a small part of what was
	// carried meanwhile.
	forget = 128
	// slowest is the most times that a rail is assumed to be slower than the fastest: a measurement
	// made while the program stood still must not rule it out for ever.
	slowest = 100
	// trials is the most large fragments at a time on a rail whose rate is unknown: a slow rail
	// keeps what it was given.
	trials = 2
)

// Add counts a work request with a fragment of so many bytes; 0 is one without.
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

// End counts the oldest work request as complete. One that ended without success, or never began,
// tells nothing of the rail.
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

// look ends the sample if it has lasted long enough, or if there is nothing more to come: a short
// one counts only if all of its work lies in it.
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
	r.believe(float64(took) / float64(r.moved))
	r.idle, r.rest = 0, restFragments
	r.rails.compare()
}

// believe takes what a sample says a byte costs. A program that did not poll for a while makes a
// rail look slow: so a cost that grows is believed a little at a time, whatever the sample says.
// One that falls on a trial is believed at once.
func (r *Rail) believe(seen float64) {
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

// onTrial reports whether the rail is not known, or was slow and has been idle for long, and has
// what will tell.
func (r *Rail) onTrial() bool {
	return r.cost == 0 && r.large >= trials || r.idle >= forget && r.large != 0
}

// finished returns the time, in nanoseconds from now, at which the rail will have finished another
// size bytes. The rail is assumed to be no faster than the fastest, and as fast as that until its
// own rate is known.
func (r *Rail) finished(size uint64, fastest float64) float64 {
	cost := r.cost
	if cost > slowest*fastest { // min and max of the language ask about NaN as well
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

// TakeOut ends the service of the rail, and forgets what it has outstanding.
func (r *Rail) TakeOut() {
	r.out = true
	r.abandon()
	r.rails.compare()
}

// Return puts the rail back into service. Nothing is known of it.
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
