package bench

import "slices"

// Dip is what a fault did to the bandwidth of a cell, from when it struck until the next one did.
// Bandwidths are in GB/s; all times are those of the time line.
type Dip struct {
	Fault  string  `json:"fault"`
	Struck Seconds `json:"struck_seconds"`
	Before float64 `json:"before_gb_per_second"` // median of the intervals before; 0: there were none
	Lowest float64 `json:"lowest_gb_per_second"` // of the dip, or where there is none since it struck
	// LowestAt is when the interval with the lowest bandwidth began.
	LowestAt Seconds `json:"lowest_at_seconds"`
	// Below is how long the bandwidth was below 90 % of before: from the first interval of which
	// that is true, to the first of three that it is not true of. It is 0 where it never was.
	Below Seconds `json:"below_90_percent_seconds"`
	// Back says that it was back then, and not below until the end.
	Back  bool    `json:"back"`
	After float64 `json:"after_gb_per_second"` // median of the last intervals
	// Settled is how long after the strike the bandwidth was at 90 % of After, for three intervals.
	Settled Seconds `json:"settled_seconds"`
}

const (
	backFraction  = 0.9 // of before: what lies below is a dip
	backIntervals = 3   // so many in a row are back: one may be chance
	// steadyIntervals is from how many intervals at most the level before and after is taken.
	steadyIntervals = 20
	// afterPart of the intervals behind the fault say what the level after it is.
	afterPart = 3
)

// findDips describes what each fault that has struck did.
func (t *Timeline) findDips() {
	var struck []Mark
	for _, m := range t.Marks {
		if m.Kind == FaultStruck {
			struck = append(struck, m)
		}
	}
	whole := len(t.Total) // intervals; the last one may be too short to count
	if whole > 0 && t.Length < Seconds(whole)*t.Interval {
		whole--
	}
	for i, m := range struck {
		first, end := t.At(m.At), whole
		if i+1 < len(struck) {
			end = min(end, t.At(struck[i+1].At))
		}
		begin := 0
		if i > 0 {
			begin = t.At(struck[i-1].At) + 1
		}
		if first < end {
			t.Dips = append(t.Dips, t.dip(m, begin, first, end))
		}
	}
}

// dip describes what a fault did that struck in interval first. The one before struck before
// interval begin, and the next one does in interval end.
func (t *Timeline) dip(m Mark, begin, first, end int) Dip {
	d := Dip{Fault: m.Text, Struck: m.At}
	if before := t.Total[min(begin, first):first]; len(before) > 0 {
		d.Before = median(before[max(0, len(before)-steadyIntervals):])
	}
	after := t.Total[first+(end-first)*(afterPart-1)/afterPart : end]
	d.After = median(after[max(0, len(after)-steadyIntervals):])
	settled := t.steady(first, end, backFraction*d.After)
	d.Settled = max(0, Seconds(settled)*t.Interval-d.Struck)
	low := func(v float64) bool { return v < backFraction*d.Before }
	from := first + slices.IndexFunc(t.Total[first:end], low)
	if from < first {
		d.Back = true
		t.findLowest(&d, first, end)
		return d
	}
	to := t.steady(from, end, backFraction*d.Before)
	d.Back, d.Below = to < end, Seconds(to-from)*t.Interval
	if !d.Back {
		to = min(max(settled, from+1), end)
	}
	t.findLowest(&d, from, to)
	return d
}

// steady is the first of three intervals in a row that reach a bandwidth, or end.
func (t *Timeline) steady(from, end int, least float64) int {
	row := 0
	for i := from; i < end; i++ {
		if row++; t.Total[i] < least {
			row = 0
		}
		if row == backIntervals {
			return i - backIntervals + 1
		}
	}
	return end
}

// findLowest finds the lowest bandwidth of some intervals, of which there is one at least.
func (t *Timeline) findLowest(d *Dip, first, end int) {
	d.Lowest, d.LowestAt = t.Total[first], Seconds(first)*t.Interval
	for i := first; i < end; i++ {
		if t.Total[i] < d.Lowest {
			d.Lowest, d.LowestAt = t.Total[i], Seconds(i)*t.Interval
		}
	}
}
