package ability

import (
	"fmt"
	"time"

	"ibverbx/internal/ring"
)

// Rail is what a rail has outstanding, and how fast it was seen to carry it.
//
// A rate is measured over a sample, in which the rail was busy with large fragments all the time:
// the bytes that were completed over the time that it took. A sample begins when the rail gets
// work, or in the middle of it, and ends when the rail runs empty: the time until it gets more
// depends on the program. Between two samples the rail rests: reading the clock costs as much as a
// fragment does.
//
// Invariant: sizes has the length of each work request that the rail has, oldest first,
// 0 for those that carry no fragment; load is their sum, with messageCost for each; large counts
// those of at least least bytes.
type Rail struct {
	rails *Rails // those that it is compared with
	// out says that the rail is out of service: it gets nothing, and what is known of it does not
	// count.
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
	// messageCost is what a message costs beside its bytes, as bytes: small messages are shared by
	// number.
	messageCost = 4 << 10
	// sample is how long a rate is measured, at least, while there is more to come.
	sample = 50 * time.Microsecond
	// restFragments is how many large fragments lie between two samples, and maxEvery how many
	// between two looks at the clock in one.
	restFragments, maxEvery = 16, 64
	// similar is by how much rates may differ that are taken for the same. Measured ones of equal
	// rails do, and then turns are better: they are cheaper, and no worse.
	similar = 4.0 / 3
	// forget is after how many fragments of others a rail without work is thought twice as fast as
	// it was, after twice as many three times, and so on. So one that was slow is tried again, the
	// later the slower it was: what the trial costs is a small part of what was carried meanwhile.
	forget = 128
	// slowest is how many times slower than the fastest a rail is thought to be at most: what was
	// measured when the program stood still must not rule it out for ever.
	slowest = 100
	// trials is how many large fragments a rail has at a time while its rate is not known: what a
	// slow one was given it keeps.
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

// Done counts the oldest work request as complete.
func (r *Rail) Done() {
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

// Fail counts the oldest work request as ended without success, or never begun: that tells nothing.
func (r *Rail) Fail() {
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

// finished is when the rail will have finished another size bytes, in nanoseconds from now. It is
// thought as fast as the fastest, at most, and until its own rate is known.
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

// Rate is how many bytes the rail carries a second; 0 is not known.
func (r *Rail) Rate() uint64 {
	if r.cost == 0 {
		return 0
	}
	return uint64(1e9 / r.cost)
}

// Check returns an error where an invariant does not hold; outstanding is how many work requests
// the rail has.
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
