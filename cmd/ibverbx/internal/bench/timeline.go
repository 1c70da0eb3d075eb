package bench

import (
	"strconv"
	"time"

	"ibverbx"
)

// Timeline is the bandwidth of a cell over its time. The time is that of the timed rounds,
// one behind the other: it stands while messages are compared.
type Timeline struct {
	Interval Seconds `json:"interval_seconds"`
	// Length is that of the whole. The last interval has the rest: it is half as long as the others
	// at least, and half as long again at most.
	Length Seconds `json:"seconds"`
	// Total is the bandwidth in GB/s in each interval: of the messages whose sends were reported at
	// the ends that are in this process. Those of a round that failed are among them.
	Total []float64 `json:"gb_per_second"`
	// Rails is what each rail carried; none with a single queue pair. Fragments count as soon as
	// the rail has completed them, and again where they were sent again.
	Rails []RailLine `json:"rails,omitempty"`
	Marks []Mark     `json:"marks,omitempty"` // by time
	Dips  []Dip      `json:"dips,omitempty"`  // one for each fault that struck
}

// RailLine is what a rail carried over time.
type RailLine struct {
	Rail   int       `json:"rail"`
	Device string    `json:"device"` // at the end that is here, or at end a
	Role   RailRole  `json:"role,omitempty"`
	Total  []float64 `json:"gb_per_second"`
}

// RailRole is what a rail does beside carrying data.
type RailRole string

// The roles; empty is that of a data rail.
const (
	NotifyRail RailRole = "notify"
	SpareRail  RailRole = "spare" // carries no data, or stands in for one that does not
)

// Mark is an event on a time line.
type Mark struct {
	At   Seconds  `json:"seconds"`
	Kind MarkKind `json:"kind"`
	Text string   `json:"text"` // the fault, or what has happened
}

// MarkKind says what happened.
type MarkKind string

// The kinds of marks.
const (
	FaultStruck MarkKind = "struck"
	FaultEnded  MarkKind = "ended"
	RailsLost   MarkKind = "rails lost"
	RailsBack   MarkKind = "rails back"
)

const (
	// AutoInterval is a [Params.Interval] that follows from the speed, and grows with the time.
	AutoInterval Seconds = -1
	// LeastInterval is the shortest interval.
	LeastInterval = Seconds(time.Millisecond)
	// MostInterval is the longest one.
	MostInterval = Seconds(time.Hour)

	autoInterval = 10 * time.Millisecond // where messages come fast enough
	// autoMessages is how many messages an interval has at least: with fewer the line would show
	// single messages.
	autoMessages = 4
	// With more intervals than that pairs of them become one.
	autoIntervals = 400
	mostIntervals = 10000
	// looksPerInterval is how often in an interval the counters are read.
	looksPerInterval = 8
)

// recorder records the time line of a cell. It belongs to the goroutine that plays the rounds.
type recorder struct {
	watch    *stopwatch
	begun    time.Duration // by the watch
	interval time.Duration
	most     int // intervals
	due      time.Duration
	total    curve
	rails    []railCurve
	lost     uint64 // rails, when the counters were read last
	back     uint64 // likewise
	marks    []Mark
}

// curve is what was carried in each interval.
type curve struct {
	bytes []float64
	count uint64        // of bytes, when it was read last
	at    time.Duration // since the beginning, when it has moved last
}

type railCurve struct {
	curve
	device string
	role   RailRole
	frozen bool // what the rail completes from now on has failed
}

// tallied is what the counters of both ends say.
type tallied struct {
	total uint64      // bytes of messages reported
	lost  uint64      // rails, at the end that has lost more
	back  uint64      // likewise
	rails []railCurve // without a curve yet
}

func newRecorder(c *cell) *recorder {
	r := &recorder{watch: &c.pair.watch, begun: c.pair.watch.now(),
		interval: time.Duration(c.p.Interval), most: mostIntervals}
	if c.p.Interval == AutoInterval {
		r.interval, r.most = autoInterval, autoIntervals
		if c.pace > 0 {
			least := time.Duration(min(autoMessages/c.pace, 3600) * float64(time.Second))
			for r.interval < least {
				r.interval *= 2
			}
		}
	}
	counts := c.tallied()
	r.total.count, r.lost, r.back = counts.total, counts.lost, counts.back
	r.rails = counts.rails
	return r
}

// now is the time since the beginning.
func (r *recorder) now() time.Duration { return r.watch.now() - r.begun }

// mark records an event. Without a recorder nobody looks.
func (r *recorder) mark(kind MarkKind, text string) {
	if r != nil {
		r.marks = append(r.marks, Mark{Seconds(r.now()), kind, text})
	}
}

// look does what is due after posted messages of the round: it reads the counters, and puts faults
// in force.
func (c *cell) look(posted int) error {
	if r := c.recorder; r != nil && r.now() >= r.due {
		c.read()
	}
	return c.pair.faults.look(c.pair.sent+posted, c.recorder)
}

// read reads the counters.
func (c *cell) read() {
	r, counts := c.recorder, c.tallied()
	now := r.now()
	r.due = now + r.interval/looksPerInterval
	r.total.move(now, r.interval, counts.total)
	for i := range counts.rails {
		n, line := &counts.rails[i], &r.rails[i]
		switch {
		case n.frozen:
		case line.frozen: // it is back: what it had is not its work any more
			line.count, line.at = n.count, now
		default:
			line.move(now, r.interval, n.count)
		}
		line.frozen = n.frozen
	}
	if counts.lost > r.lost {
		r.mark(RailsLost, strconv.FormatUint(counts.lost-r.lost, 10))
		r.lost = counts.lost
	}
	if counts.back > r.back {
		r.mark(RailsBack, strconv.FormatUint(counts.back-r.back, 10))
		r.back = counts.back
	}
	for now/r.interval >= time.Duration(r.most) {
		r.interval *= 2
		r.total.halve()
		for i := range r.rails {
			r.rails[i].halve()
		}
	}
}

// move records that the counter has come to count. What was added is spread over the time since the
// last change, or over an interval where that is shorter: messages that come one at a time make an
// even line, and a standstill still shows.
func (c *curve) move(now, interval time.Duration, count uint64) {
	if count <= c.count {
		return
	}
	bytes, from := float64(count-c.count), max(c.at, now-interval)
	c.count, c.at = count, now
	for int(now/interval) >= len(c.bytes) {
		c.bytes = append(c.bytes, 0)
	}
	if now <= from {
		c.bytes[now/interval] += bytes
		return
	}
	for at := from; at < now; {
		i := at / interval
		end := min((i+1)*interval, now)
		c.bytes[i] += bytes * float64(end-at) / float64(now-from)
		at = end
	}
}

// halve makes one interval of each two.
func (c *curve) halve() {
	for i, b := range c.bytes {
		if i%2 == 0 {
			c.bytes[i/2] = b
		} else {
			c.bytes[i/2] += b
		}
	}
	c.bytes = c.bytes[:(len(c.bytes)+1)/2]
}

// Took is how long interval i is.
func (t *Timeline) Took(i int) time.Duration {
	if i == len(t.Total)-1 {
		return time.Duration(t.Length) - time.Duration(i)*time.Duration(t.Interval)
	}
	return time.Duration(t.Interval)
}

// At is the interval in which something happened.
func (t *Timeline) At(at Seconds) int { return min(int(at/t.Interval), len(t.Total)-1) }

// bandwidths are the GB/s of a curve in each interval.
func (t *Timeline) bandwidths(c *curve) []float64 {
	list := make([]float64, len(t.Total))
	for i, bytes := range c.bytes {
		list[min(i, len(list)-1)] += bytes
	}
	for i := range list {
		list[i] /= t.Took(i).Seconds() * 1e9
	}
	return list
}

// timeline is what was recorded.
func (r *recorder) timeline() *Timeline {
	length := r.now()
	if length <= 0 {
		return nil
	}
	t := &Timeline{Interval: Seconds(r.interval), Length: Seconds(length), Marks: r.marks}
	t.Total = make([]float64, max(1, (length+r.interval/2)/r.interval))
	t.Total = t.bandwidths(&r.total)
	for i := range r.rails {
		if line := &r.rails[i]; len(r.rails) > 1 && len(line.bytes) > 0 {
			t.Rails = append(t.Rails, RailLine{Rail: i, Device: line.device, Role: line.role,
				Total: t.bandwidths(&line.curve)})
		}
	}
	t.findDips()
	return t
}

// tallied reads the counters of the ends that are here.
func (c *cell) tallied() (n tallied) {
	for i, q := range c.pair.queuePairs() {
		if q == nil || !c.sends(i) {
			continue
		}
		n.total += q.Succeeded * uint64(c.size)
		stats := q.VQP.Stats()
		n.lost, n.back = max(n.lost, stats.RailsLost), max(n.back, stats.RailsBack)
		single := len(stats.Rails) == 1 // its rail tracks nothing
		for k := range stats.Rails {
			rail := &stats.Rails[k]
			if len(n.rails) <= k {
				n.rails = append(n.rails, railCurve{device: rail.Device, role: roleOf(rail)})
			}
			if !single {
				n.rails[k].count += c.completed(rail)
			}
			n.rails[k].frozen = n.rails[k].frozen || rail.Down || q.VQP.Err() != nil
		}
	}
	return n
}

func roleOf(rail *ibverbx.RailStats) RailRole {
	switch {
	case rail.Notify:
		return NotifyRail
	case rail.Spare:
		return SpareRail
	}
	return ""
}

// completed is how many bytes a rail has sent, or read, and completed. What is outstanding are
// fragments of one size, but for the last of each message.
func (c *cell) completed(rail *ibverbx.RailStats) uint64 {
	fragment := uint64(min(c.size, int(c.p.Fragment)))
	return rail.Bytes - min(rail.Bytes, uint64(rail.Outstanding)*fragment)
}

// stopwatch measures the time of a column: it runs while a timed round is played, and stands while
// messages are compared and other columns are measured.
type stopwatch struct {
	elapsed time.Duration // until it was stopped last
	started time.Time     // zero while it stands
}

// start lets it run.
func (w *stopwatch) start() { w.started = time.Now() }

// stop lets it stand.
func (w *stopwatch) stop() { w.elapsed, w.started = w.now(), time.Time{} }

// now is what it shows.
func (w *stopwatch) now() time.Duration {
	if w.started.IsZero() {
		return w.elapsed
	}
	return w.elapsed + time.Since(w.started)
}
