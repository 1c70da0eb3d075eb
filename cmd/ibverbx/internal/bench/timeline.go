package bench

import (
	"strconv"
	"time"

	"ibverbx"
)

// Timeline is the bandwidth of a cell over its time. The time is that of the timed rounds, one
// after the other: the clock stops while messages are compared.
type Timeline struct {
	Interval Seconds `json:"interval_seconds"`
	// Length is the whole duration. The last interval has the rest: it is up to twice as long as
	// the others, and longer if a cell takes many times as long as its warm-up suggested.
	Length Seconds `json:"seconds"`
	// Total is the bandwidth in GB/s in each interval: of the messages whose sends were reported at
	// the ends in this process, those of a failed round included.
	Total []float64 `json:"gb_per_second"`
	// Rails is what each rail carried; none with a single queue pair. Fragments count as soon as
	// the rail has completed them, and again if they were sent again.
	Rails []RailLine `json:"rails,omitempty"`
	Marks []Mark     `json:"marks,omitempty"` // by time
}

// RailLine is what a rail carried over time.
type RailLine struct {
	Rail   int       `json:"rail"`
	Device string    `json:"device"` // at the end in this process, or at end a
	Total  []float64 `json:"gb_per_second"`
}

// Mark is an event on a time line.
type Mark struct {
	At   Seconds  `json:"seconds"`
	Kind MarkKind `json:"kind"`
	Text string   `json:"text"` // the fault or event
}

// MarkKind is the kind of an event.
type MarkKind string

// The kinds of marks.
const (
	FaultStruck MarkKind = "struck"
	FaultEnded  MarkKind = "ended"
	RailsLost   MarkKind = "rails lost"
	RailsBack   MarkKind = "rails back"
)

const (
	// AutoInterval derives [Params.Interval] from the speed and the length of the cell.
	AutoInterval Seconds = -1
	// LeastInterval is the shortest interval.
	LeastInterval = Seconds(time.Millisecond)
	// MostInterval is the longest one.
	MostInterval = Seconds(time.Hour)

	autoInterval = 10 * time.Millisecond // if messages come fast enough
	// autoMessages is the least number of messages in an interval: with fewer the line would show
	// single messages.
	autoMessages = 8
	// autoIntervals is the most intervals of a cell at the speed of its warm-up; none has more than
	// mostIntervals.
	autoIntervals = 400
	mostIntervals = 10000
	// looksPerInterval is how often in an interval the counters are read.
	looksPerInterval = 8
)

// interval returns the interval of the cell's time line, after the warm-up.
func (c *cell) interval() time.Duration {
	length := time.Duration(c.p.Duration)
	if c.p.Iterations > 0 {
		length = c.takes(c.p.Iterations)
	}
	if c.p.Interval == AutoInterval {
		return max(autoInterval, c.takes(autoMessages), length/autoIntervals)
	}
	return max(time.Duration(c.p.Interval), length/mostIntervals)
}

// takes returns how long n messages take at the pace of the last round.
func (c *cell) takes(n int) time.Duration {
	seconds := min(float64(n)/c.pace, time.Duration(MostInterval).Seconds())
	return time.Duration(seconds * float64(time.Second))
}

// recorder records the time line of a cell. It belongs to the goroutine that plays the rounds.
type recorder struct {
	watch    *stopwatch
	begun    time.Duration // by the watch
	interval time.Duration
	read     time.Duration // when the counters were read last
	last     tally         // their values then
	total    []float64     // bytes in each interval
	rails    [][]float64   // likewise
	marks    []Mark
}

// tally has the values of the ends' counters.
type tally struct {
	bytes uint64 // of messages reported
	lost  uint64 // rails, at the end that has lost more
	back  uint64 // likewise
	rails []railTally
}

type railTally struct {
	device string
	bytes  uint64 // completed
	down   bool   // the rail's completions have failed
}

func newRecorder(c *cell) *recorder {
	first := c.tally()
	return &recorder{watch: &c.pair.watch, begun: c.pair.watch.now(), interval: c.interval(), last: first,
		rails: make([][]float64, len(first.rails))}
}

// now returns the time since the beginning.
func (r *recorder) now() time.Duration { return r.watch.now() - r.begun }

// mark records an event. A nil recorder records nothing.
func (r *recorder) mark(kind MarkKind, text string) {
	if r != nil {
		r.marks = append(r.marks, Mark{Seconds(r.now()), kind, text})
	}
}

// look does what is due after posted messages of the round: it reads the counters, and injects
// faults.
func (c *cell) look(posted int) error {
	if r := c.recorder; r != nil && r.now() >= r.read+r.interval/looksPerInterval {
		r.note(c.tally())
	}
	return c.pair.faults.look(c.pair.sent+posted, c.recorder)
}

// note records the present values of the counters.
func (r *recorder) note(n tally) {
	now := r.now()
	if now <= r.read {
		return // no time has passed: the next reading gets the difference
	}
	r.total = r.spread(r.total, now, n.bytes-r.last.bytes)
	for i := range n.rails {
		rail, before := &n.rails[i], r.last.rails[i].bytes
		if rail.down {
			continue
		}
		rail.bytes = max(rail.bytes, before) // it falls while a short fragment is outstanding
		r.rails[i] = r.spread(r.rails[i], now, rail.bytes-before)
	}
	if n.lost > r.last.lost {
		r.mark(RailsLost, strconv.FormatUint(n.lost-r.last.lost, 10))
	}
	if n.back > r.last.back {
		r.mark(RailsBack, strconv.FormatUint(n.back-r.last.back, 10))
	}
	r.read, r.last = now, n
}

// spread adds bytes to a line, evenly over the time since the counters were read last.
func (r *recorder) spread(line []float64, now time.Duration, bytes uint64) []float64 {
	if bytes == 0 {
		return line
	}
	for at := r.read; at < now; {
		i, end := int(at/r.interval), now
		if i = min(i, mostIntervals-1); i < mostIntervals-1 {
			end = min(time.Duration(i+1)*r.interval, now)
		}
		for i >= len(line) {
			line = append(line, 0)
		}
		line[i] += float64(bytes) * float64(end-at) / float64(now-r.read)
		at = end
	}
	return line
}

// Took returns the length of interval i.
func (t *Timeline) Took(i int) time.Duration {
	if i == len(t.Total)-1 {
		return time.Duration(t.Length - Seconds(i)*t.Interval)
	}
	return time.Duration(t.Interval)
}

// bandwidths converts a line of bytes in each interval to GB/s.
func (t *Timeline) bandwidths(line []float64) []float64 {
	list := make([]float64, len(t.Total))
	for i, bytes := range line {
		list[min(i, len(list)-1)] += bytes
	}
	for i := range list {
		list[i] /= t.Took(i).Seconds() * 1e9
	}
	return list
}

// timeline returns the recorded time line.
func (r *recorder) timeline() *Timeline {
	length := r.now()
	if length <= 0 {
		return nil
	}
	t := &Timeline{Interval: Seconds(r.interval), Length: Seconds(length), Marks: r.marks}
	t.Total = make([]float64, min(max(1, length/r.interval), mostIntervals))
	t.Total = t.bandwidths(r.total)
	for i, line := range r.rails {
		if len(line) > 0 {
			t.Rails = append(t.Rails, RailLine{i, r.last.rails[i].device, t.bandwidths(line)})
		}
	}
	return t
}

// tally reads the counters of the ends that are here.
func (c *cell) tally() (n tally) {
	for i, q := range c.pair.queuePairs() {
		if !c.sends(i) {
			continue
		}
		n.bytes += q.Succeeded * uint64(c.size)
		stats := q.VQP.Stats()
		n.lost, n.back = max(n.lost, stats.RailsLost), max(n.back, stats.RailsBack)
		if len(stats.Rails) == 1 {
			continue // its rail tracks nothing
		}
		for k := range stats.Rails {
			rail := &stats.Rails[k]
			if len(n.rails) <= k {
				n.rails = append(n.rails, railTally{device: rail.Device})
			}
			n.rails[k].bytes += c.completed(rail)
			n.rails[k].down = n.rails[k].down || rail.Down || q.VQP.Err() != nil
		}
	}
	return n
}

// completed returns how many bytes a rail has sent, or read, and completed. Outstanding fragments
// have one size, except for the last of each message.
func (c *cell) completed(rail *ibverbx.RailStats) uint64 {
	fragment := uint64(min(c.size, int(c.p.Fragment)))
	return rail.Bytes - min(rail.Bytes, uint64(rail.Outstanding)*fragment)
}

// stopwatch measures the time of a column: it runs while a timed round is played, and stops while
// messages are compared and other columns are measured.
type stopwatch struct {
	elapsed time.Duration // until it was stopped last
	started time.Time     // zero while it is stopped
}

// start starts it.
func (w *stopwatch) start() { w.started = time.Now() }

// stop stops it.
func (w *stopwatch) stop() { w.elapsed, w.started = w.now(), time.Time{} }

// now returns the elapsed time.
func (w *stopwatch) now() time.Duration {
	if w.started.IsZero() {
		return w.elapsed
	}
	return w.elapsed + time.Since(w.started)
}
