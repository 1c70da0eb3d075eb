package main

import (
	"errors"
	"fmt"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/units"
)

// limits are what figures have to keep, or the exit code is 1.
type limits struct {
	MinBW  units.Rate     `group:"out" name:"min-bw"`
	MaxLat *units.Seconds `group:"out" name:"max-lat"`
}

// checkLimits says which limits make no sense for what is measured.
func (l *limits) checkLimits(p *bench.Params) error {
	switch {
	case l.MinBW != 0 && p.Mode.Series():
		return usage("--min-bw with --mode %s, which shows no bandwidth: use --max-lat", p.Mode)
	case l.MinBW != 0 && p.Op.Atomic():
		return usage("--min-bw: messages of --op %s have no bandwidth", p.Op)
	case l.MaxLat != nil && !p.Mode.Series():
		return usage("--max-lat bounds the median of a latency: it goes with --mode lat")
	}
	return nil
}

// missed says which figures do not keep the limits.
func (l *limits) missed(r *bench.Report) error {
	var missed []error
	for i := range r.Results {
		res := &r.Results[i]
		if res.Messages == 0 {
			continue
		}
		if rate := units.Rate(res.GBPerSecond * 1e9); rate < l.MinBW {
			missed = append(missed, fmt.Errorf("%s, %v: %v, less than --min-bw %v", res.Scheme, res.Size,
				rate, l.MinBW))
		}
		if lat := res.Latency; l.MaxLat != nil && lat != nil && lat.P50 > int64(*l.MaxLat) {
			missed = append(missed, fmt.Errorf("%s, %v: a median of %v, more than --max-lat %v", res.Scheme,
				res.Size, units.Seconds(lat.P50), *l.MaxLat))
		}
	}
	return errors.Join(missed...)
}
