package main

import (
	"errors"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/units"
)

// limits are what figures have to keep, or the exit code is 1.
type limits struct {
	MinBW  bandwidthFlag `group:"out" name:"min-bw" placeholder:"RATE"`
	MaxLat *units.Span   `group:"out" name:"max-lat" placeholder:"TIME"`
}

// bandwidthFlag is a bandwidth as it was given.
type bandwidthFlag struct {
	text string
	rate units.Rate
}

// UnmarshalText reads it.
func (f *bandwidthFlag) UnmarshalText(text []byte) error {
	f.text = string(text)
	if f.rate.UnmarshalText(text) != nil {
		return fmt.Errorf("bandwidth %q: want bits a second such as 90Gbit, or bytes such as 11GB/s", text)
	}
	return nil
}

// checkLimits says which limits make no sense for what is measured.
func (l *limits) checkLimits(p *bench.Params) error {
	switch {
	case l.MinBW.text != "" && p.Mode == bench.Latency:
		return &bench.UsageError{Reason: "--min-bw with --mode lat, which shows no bandwidth: use --max-lat"}
	case l.MinBW.text != "" && p.Op.Atomic():
		return &bench.UsageError{Reason: fmt.Sprintf("--min-bw: messages of --op %s have no bandwidth", p.Op)}
	case l.MaxLat != nil && p.Mode != bench.Latency:
		return &bench.UsageError{Reason: "--max-lat bounds the median of a latency: it goes with --mode lat"}
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
		if least := float64(l.MinBW.rate) / 1e9; res.GBPerSecond < least {
			missed = append(missed, fmt.Errorf("%s, %v: %.3g GB/s, less than --min-bw %s", res.Scheme,
				res.Size,
				res.GBPerSecond, l.MinBW.text))
		}
		if lat := res.Latency; l.MaxLat != nil && lat != nil && lat.P50 > int64(*l.MaxLat) {
			missed = append(missed, fmt.Errorf("%s, %v: a median of %v, more than --max-lat %v", res.Scheme,
				res.Size, time.Duration(lat.P50), time.Duration(*l.MaxLat)))
		}
	}
	return errors.Join(missed...)
}
