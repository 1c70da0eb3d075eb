// Package ability measures the speed of rails, and predicts which of several will finish a fragment
// first. A rail is anything that carries one work request after the other: the package knows no
// queue pair, and no clock but the one that it is given.
//
// The caller reports each work request of a rail when it is staged ([Rail.Add]) and when it ends
// ([Rail.End]), in order. It asks [Rails.Alike] and [Rails.Soonest] where the next fragment goes,
// and reports the choice with [Rails.Passed]. Nothing here calls the caller, except to read the
// clock.
//
// A Rails is owned by one goroutine at a time.
package ability

import "time"

// Rails holds several rails that share fragments, and how they compare.
type Rails struct {
	clock func() time.Time
	rails []Rail
	least uint64 // length of the fragments that show how fast a rail is, in bytes
	// fastest is the lowest cost; 1 if none is known.
	fastest float64
	known   bool // some cost is known
	alike   bool // all costs are known, and similar
}

// NewRails makes n rails of unknown speed, whose fragments have at most fragment bytes.
func NewRails(n int, fragment uint64, clock func() time.Time) *Rails {
	s := &Rails{clock: clock, rails: make([]Rail, n), least: min(largeFragment, fragment)}
	for i := range s.rails {
		s.rails[i] = Rail{rails: s, least: s.least}
	}
	s.compare()
	return s
}

// Rail returns a rail by its index.
func (s *Rails) Rail(i int) *Rail { return &s.rails[i] }

// compare compares the rails after the cost of one has changed.
func (s *Rails) compare() {
	highest := 0.0
	s.fastest, s.known, s.alike = 1, false, true
	for i := range s.rails {
		r := &s.rails[i]
		if r.out {
			continue
		}
		if r.cost == 0 {
			s.alike = false
			continue
		}
		if !s.known || r.cost < s.fastest {
			s.fastest = r.cost
		}
		highest, s.known = max(highest, r.cost), true
	}
	s.alike = s.alike && highest <= similar*s.fastest
}

// Alike reports whether the rails may take turns at fragments of size bytes: they are equally fast,
// or no speed is known and so small a fragment would not show one.
func (s *Rails) Alike(size uint64) bool { return s.alike || !s.known && size < s.least }

// Soonest returns the rail that will finish another fragment of size bytes first; -1 if all are on
// trial. If that rail is full, let the fragment wait: any other rail would take longer.
func (s *Rails) Soonest(size uint64) int {
	best, soonest, fastest := -1, 0.0, s.fastest
	for i := range s.rails {
		r := &s.rails[i]
		if r.out || r.onTrial() {
			continue
		}
		if at := r.finished(size, fastest); best < 0 || at < soonest {
			best, soonest = i, at
		}
	}
	return best
}

// Passed counts a fragment that was given to one rail against all others, which it has passed over.
func (s *Rails) Passed(given int) {
	for i := range s.rails {
		if r := &s.rails[i]; i != given && r.load == 0 && r.idle < slowest*forget {
			r.idle++
		}
	}
}

// Abandon drops what the rails have outstanding.
func (s *Rails) Abandon() {
	for i := range s.rails {
		s.rails[i].abandon()
	}
}

// Restart begins a connection: all rails are in service, and their speeds unknown.
func (s *Rails) Restart() {
	for i := range s.rails {
		s.rails[i].restart()
	}
	s.compare()
}
