package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/alecthomas/kong"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/internal/units"
)

// choiceFlags choose among values of a parameter; see [bench.Params] for all others.
type choiceFlags struct {
	All      bool `group:"what" short:"a" xor:"sizes"`
	Events   bool `group:"how" short:"e" xor:"wait"`
	BusyPoll bool `group:"how" xor:"wait"`
}

// outFlags choose the output, and the figures that count as a failure.
type outFlags struct {
	JSON        bool   `group:"out" name:"json" xor:"document"`
	CSV         bool   `group:"out" name:"csv" xor:"document"`
	Verbose     bool   `group:"out" short:"v"`
	Plot        string `group:"out" placeholder:"FILE" predictor:"file"`
	Trace       string `group:"out" placeholder:"FILE" predictor:"file"`
	ReportGbits bool   `group:"out" name:"report-gbits"`
	limits
}

// params turns the flags into parameters.
func (f *perfCmd) params(k *kong.Context) (*bench.Params, error) {
	p := f.Params
	p.Provider, p.Shared = f.provider(), f.provider() != softNICs
	p.Trace = f.Trace != ""
	if err := checkGiven(k); err != nil {
		return nil, err
	}
	for _, file := range []string{"plot", "trace"} {
		if times(k, file) > 1 {
			return nil, usage("--%s is given more than once: there is one file", file)
		}
	}
	if given(k, "failback") && p.Failback == 0 {
		p.Failback = -1 // where 0 is the default
	}
	switch {
	case f.Plot != "" && given(k, "interval") && p.Interval == 0:
		return nil, usage("--plot with --interval 0, which asks for no time line: drop one of them")
	case p.Interval != 0 && f.Plot == "" && !f.JSON:
		return nil, usage("--interval %v: the time line goes into --plot or --json, give one", p.Interval)
	case !given(k, "interval") && f.Plot != "":
		p.Interval = bench.AutoInterval
	}
	switch {
	case f.Events:
		p.Wait = bench.Events
	case f.BusyPoll:
		p.Wait = bench.Poll
	}
	p.Conn = f.conn(k)
	if len(p.Faults) > 0 {
		p.Conn.Patience = ibverbx.PatienceShort // notice the faults soon
	}
	var err error
	if f.All {
		p.Sizes, err = units.ParseRange("2..8M") // as in perftest
	}
	return &p, cmp.Or(err, f.checkLimits(&p))
}

// checkGiven compares the values on the command line with the range of each flag: a 0 there does
// not mean the default.
func checkGiven(k *kong.Context) error {
	for _, el := range k.Path {
		if el.Flag == nil || el.Flag.Tag.Get("range") == "" {
			continue
		}
		if err := bench.CheckRange(el.Flag.Name, el.Flag.Target, el.Flag.Tag.Get("range")); err != nil {
			return err
		}
	}
	return nil
}

// limits are thresholds for figures; the exit code is 1 if one misses them.
type limits struct {
	MinBW  units.Rate     `group:"out" name:"min-bw"`
	MaxLat *units.Seconds `group:"out" name:"max-lat"`
}

// checkLimits refuses limits that make no sense for the measurement.
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

// missed returns which figures miss the limits.
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
