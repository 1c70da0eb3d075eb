package ibverbx

import (
	"time"

	"ibverbx/internal/ring"
)

// ability is what a data rail has outstanding, and how fast it was seen to carry it. Rails have one
// with [ByAbility] alone.
//
// A rate is measured over a sample, in which the rail was busy with large fragments all the time:
// the bytes that were completed over the time that it took. A sample begins when the rail gets
// work, or in the middle of it. Between two samples the rail rests: reading the clock costs as much
// as a fragment does.
//
// Invariant: sizes has the length of each work request that is staged or on the NIC, oldest first,
// 0 for those that carry no fragment; load is their sum, with messageCost for each; large counts
// those of at least least bytes.
type ability struct {
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

// add counts a work request with a fragment of so many bytes; 0 is one without.
func (a *ability) add(size uint64, clock func() time.Time) {
	a.sizes.Push(uint32(size))
	a.load += size + messageCost
	if size < a.least {
		return
	}
	a.large++
	if a.large == 1 && (a.rest == 0 || a.idle >= forget) {
		a.begin(clock(), true)
	}
}

// begin begins a sample.
func (a *ability) begin(now time.Time, fresh bool) {
	a.every = max(a.every, 1)
	a.began, a.fresh, a.rest, a.moved, a.left = now, fresh, 0, 0, a.every
}

// done counts the oldest work request as complete, and reports whether the rail's rate is another
// one now.
func (a *ability) done(clock func() time.Time) (measured bool) {
	size := uint64(a.sizes.Pop())
	a.load -= size + messageCost
	if size < a.least {
		return false
	}
	a.large--
	if a.rest != 0 {
		if a.rest--; a.rest == 0 && a.large != 0 {
			a.begin(clock(), false)
		}
		return false
	}
	a.moved += size
	if a.left--; a.left > 0 && a.large != 0 {
		return false
	}
	return a.look(clock())
}

// look ends the sample if it has lasted long enough, or if there is nothing more to come: a short
// one counts only if all of its work lies in it.
func (a *ability) look(now time.Time) (measured bool) {
	took := now.Sub(a.began)
	switch {
	case took > 0 && (took >= sample || a.large == 0 && a.fresh):
	case a.large == 0:
		a.rest = restFragments
		return false
	default:
		a.every = min(2*a.every, maxEvery)
		a.left = a.every
		return false
	}
	if took > 4*sample {
		a.every = max(a.every/2, 1)
	}
	a.believe(float64(took) / float64(a.moved))
	a.idle, a.rest = 0, restFragments
	return true
}

// believe takes what a sample says a byte costs. A program that did not poll for a while makes a
// rail look slow: so a cost that grows is believed a little at a time, whatever the sample says.
// One that falls on a trial is believed at once.
func (a *ability) believe(seen float64) {
	if a.cost == 0 || a.idle >= forget && seen < a.cost {
		a.cost = seen
		return
	}
	a.cost += (min(seen, 2*a.cost) - a.cost) / 4
}

// fail counts the oldest work request as ended without success, or never begun: that tells nothing.
func (a *ability) fail() {
	size := uint64(a.sizes.Pop())
	a.load -= size + messageCost
	if size >= a.least {
		a.large--
		a.rest = restFragments
	}
}

// onTrial reports whether the rail is not known, or was slow and has been idle for long, and has
// what will tell.
func (a *ability) onTrial() bool {
	return a.cost == 0 && a.large >= trials || a.idle >= forget && a.large != 0
}

// finished is when the rail will have finished another size bytes, in nanoseconds from now. It is
// thought as fast as the fastest, at most, and until its own rate is known.
func (a *ability) finished(size uint64, fastest float64) float64 {
	cost := min(a.cost, slowest*fastest)
	if a.idle != 0 {
		cost /= 1 + float64(a.idle)/forget
	}
	return float64(a.load+size+messageCost) * max(cost, fastest)
}

// abandon forgets what is outstanding.
func (a *ability) abandon() { a.sizes, a.load, a.large = ring.FIFO[uint32]{}, 0, 0 }

// restart begins a connection, of which nothing is known.
func (a *ability) restart() { *a = ability{least: a.least} }

// check panics where the invariant of the ability of r, which may be nil, does not hold.
func (a *ability) check(r *rail) {
	if a == nil {
		return
	}
	if r.inUse == 0 && (a.load != 0 || a.large != 0) {
		broken("rail %d: nothing in use, ability counts a load of %d, %d large", r.index(), a.load, a.large)
	}
	if a.sizes.Len() != r.inUse || a.load < uint64(r.inUse)*messageCost || a.large < 0 || a.large > r.inUse {
		broken("rail %d: %d in use, ability counts %d, %d large, load %d", r.index(), r.inUse, a.sizes.Len(),
			a.large, a.load)
	}
}

// abilities is how the abilities of the data rails compare.
type abilities struct {
	clock func() time.Time
	// fastest is the lowest cost; 1 where none is known.
	fastest float64
	known   bool // one is
	similar bool // all are known, and near each other
}

// compare compares the abilities after one was measured.
func (s *railSet) compare() {
	c := s.abilities
	highest := 0.0
	c.fastest, c.known, c.similar = 1, false, true
	for _, rl := range s.data {
		if rl.down {
			continue
		}
		cost := rl.ability.cost
		if cost == 0 {
			c.similar = false
			continue
		}
		if !c.known || cost < c.fastest {
			c.fastest = cost
		}
		highest, c.known = max(highest, cost), true
	}
	c.similar = c.similar && highest <= similar*c.fastest
}

// pickAble chooses the data rail for the next fragment, of size bytes: the one that will have
// finished it first. It is nil if that is full: another one would take longer than it takes to
// wait. Rails that are alike take turns, and so do small fragments before anything is known.
func (s *railSet) pickAble(size uint64) *rail {
	c := s.abilities
	if c.similar || !c.known && size < s.data[0].ability.least {
		return s.pick()
	}
	s.lastFreed = nil
	var best *rail
	var soonest float64
	for _, rl := range s.data {
		if rl.down || rl.ability.onTrial() {
			continue
		}
		if at := rl.ability.finished(size, c.fastest); best == nil || at < soonest {
			best, soonest = rl, at
		}
	}
	if best == nil || !best.hasRoom() {
		return nil
	}
	for _, rl := range s.data {
		if a := rl.ability; rl != best && a.load == 0 && a.idle < slowest*forget {
			a.idle++
		}
	}
	return best
}
