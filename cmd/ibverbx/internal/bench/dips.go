package bench

import "slices"

// Dip is what a fault did to the bandwidth of a cell, from when it struck until the next one did.
// Bandwidths are in GB/s.
type Dip struct {
	Fault  string  `json:"fault"`
	Struck Seconds `json:"struck_seconds"`           // in the time of the line
	Before float64 `json:"before_gb_per_second"`     // median of the intervals before; 0: there were none
	Lowest float64 `json:"lowest_gb_per_second"`     // of an interval
	Below  Seconds `json:"below_90_percent_seconds"` // of the intervals with less than 90 % of Before
	After  float64 `json:"after_gb_per_second"`      // median of the last third of the intervals
}

// findDips describes what each fault that has struck did.
func (t *Timeline) findDips() {
	var struck []Mark
	for _, m := range t.Marks {
		if m.Kind == FaultStruck {
			struck = append(struck, m)
		}
	}
	begin := 0
	for i, m := range struck {
		first, end := t.At(m.At), len(t.Total)
		if i+1 < len(struck) {
			end = t.At(struck[i+1].At)
		}
		if first == end {
			continue // the next one struck at once
		}
		since := t.Total[first:end]
		d := Dip{Fault: m.Text, Struck: m.At, Lowest: slices.Min(since),
			After: median(since[2*len(since)/3:])}
		if before := t.Total[begin:first]; len(before) > 0 {
			d.Before = median(before)
		}
		for i, v := range since {
			if v < 0.9*d.Before {
				d.Below += Seconds(t.Took(first + i))
			}
		}
		t.Dips = append(t.Dips, d)
		begin = first + 1
	}
}
