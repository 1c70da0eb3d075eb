package main

import (
	"fmt"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
)

// subjectFlags say what is measured.
type subjectFlags struct {
	Layer         string       `group:"what" default:"qp" placeholder:"NAME" predictor:"layer"`
	Op            string       `group:"what" placeholder:"OP" predictor:"op"`
	Mode          string       `group:"what" default:"bw" placeholder:"bw|lat" predictor:"mode"`
	Bidirectional bool         `group:"what" short:"b"`
	Size          []units.Size `group:"what" short:"s" sep:"none" placeholder:"SIZE"`
	Sizes         units.Range  `group:"what" placeholder:"LIST" sep:"none"`
	All           bool         `group:"what" short:"a"`
	Scheme        []string     `group:"what" placeholder:"NAME" predictor:"scheme"`
}

// effortFlags say how long and how deep it is measured.
type effortFlags struct {
	Iters    *int        `group:"how" short:"n" placeholder:"N"`
	Duration *units.Span `group:"how" short:"D" placeholder:"TIME"`
	Samples  *int        `group:"how" placeholder:"N"`
	Endless  bool        `group:"how" name:"run-infinitely" aliases:"run_infinitely"`
	TxDepth  int         `group:"how" short:"t" default:"128" placeholder:"N"`
	Inline   int         `group:"how" name:"inline-size" aliases:"inline_size" short:"I" placeholder:"N"`
	Events   bool        `group:"how" short:"e"`
	BusyPoll bool        `group:"how"`
	NoVerify bool        `group:"how"`
	Memory   units.Size  `group:"how" default:"64M" placeholder:"SIZE"`
}

// nicFlags choose the NICs of this process.
type nicFlags struct {
	Provider string     `group:"rails" placeholder:"NAME" predictor:"provider"`
	Device   string     `group:"rails" short:"d" aliases:"ib-dev" placeholder:"LIST"`
	Library  string     `group:"rails" placeholder:"PATH" predictor:"file"`
	UDPPort  *int       `group:"rails" name:"udp-port" placeholder:"N"`
	Rate     units.Rate `group:"rails" name:"rate-limit" aliases:"rate_limit" placeholder:"RATE"`
}

// railFlags choose the NICs of this process and the queue pairs on them.
type railFlags struct {
	nicFlags
	NICs     *int            `group:"rails" name:"nics" placeholder:"N"`
	QPs      int             `group:"rails" name:"qps" aliases:"qp" short:"q" default:"4" placeholder:"N"`
	Fragment units.Size      `group:"rails" default:"512K" placeholder:"SIZE"`
	Balance  ibverbx.Balance `group:"rails" default:"round-robin" placeholder:"NAME" predictor:"balance"`
	Failover bool            `group:"rails"`
	Failback *units.Span     `group:"rails" placeholder:"TIME"`
	Depth    int             `group:"rails" default:"128" placeholder:"N"`
	connFlags
}

// meetFlags say where two processes meet.
type meetFlags struct {
	Listen  listenFlag  `group:"apart" placeholder:"[ADDR]"`
	Connect connectFlag `group:"apart" placeholder:"HOST[:PORT]"`
	Port    *int        `group:"apart" short:"p" placeholder:"N"`
	Timeout units.Span  `group:"apart" default:"30s" placeholder:"TIME"`
}

// simFlags are of software NICs.
type simFlags struct {
	NICSpeed   []units.Rate  `group:"sim" name:"nic-speed" placeholder:"RATE"`
	NICLatency []units.Span  `group:"sim" name:"nic-latency" placeholder:"TIME"`
	Fault      []bench.Fault `group:"sim" sep:"none" placeholder:"KIND[@KEY=VALUE,..]" predictor:"fault"`
	Seed       uint64        `group:"sim" default:"1" placeholder:"N"`
}

// outFlags say what is written, and which figures are a failure.
type outFlags struct {
	JSON        bool        `group:"out" name:"json"`
	Verbose     bool        `group:"out" short:"v"`
	Interval    *units.Span `group:"out" placeholder:"TIME"`
	Plot        string      `group:"out" placeholder:"FILE" predictor:"file"`
	ReportGbits bool        `group:"out" name:"report-gbits" aliases:"report_gbits"`
	limits
}

// params turns the flags into what to measure.
func (f *perfCmd) params() (p *bench.Params, err error) {
	p = &bench.Params{
		Provider: f.provider(), Layer: layers.Layer(f.Layer), Op: bench.Op(f.Op), Mode: bench.Mode(f.Mode),
		Bidirectional: f.Bidirectional,
		TxDepth:       f.TxDepth, Inline: f.Inline, Endless: f.Endless, QPs: f.QPs,
		Shared:   f.provider() != softNICs,
		Fragment: f.Fragment, Balance: f.Balance, Failover: f.Failover, Depth: f.Depth,
		Verify: !f.NoVerify, Memory: f.Memory,
		Speeds: f.NICSpeed, Faults: f.Fault, Seed: f.Seed,
	}
	for _, l := range f.NICLatency {
		p.Latencies = append(p.Latencies, bench.Seconds(l))
	}
	if err = f.counts(p); err != nil {
		return nil, err
	}
	if d := f.Failback; d != nil {
		if p.Failback = bench.Seconds(*d); *d == 0 {
			p.Failback = -1 // where 0 is the default
		}
	}
	if p.Interval, err = f.interval(p); err != nil {
		return nil, err
	}
	if d := f.Duration; d != nil {
		if p.Duration = bench.Seconds(*d); *d == 0 {
			return nil, &bench.UsageError{Reason: "--duration 0s: must be positive"}
		}
	}
	if f.Endless && f.JSON {
		return nil, &bench.UsageError{Reason: "--run-infinitely with --json, which writes its document at " +
			"the end: use --duration"}
	}
	if err = f.checkConnection(); err != nil {
		return nil, err
	}
	if err = f.checkLimits(p); err != nil {
		return nil, err
	}
	if p.Conn, err = f.conn(); err != nil {
		return nil, err
	}
	if p.Wait, err = f.wait(); err != nil {
		return nil, err
	}
	if p.Sizes, err = f.sizes(); err != nil {
		return nil, err
	}
	p.Schemes, err = f.schemes()
	return p, err
}

// counts fills in the numbers whose default in Params is 0, and refuses a 0 that was given.
func (f *perfCmd) counts(p *bench.Params) error {
	for _, n := range []struct {
		name  string
		given *int
		to    *int
	}{{"iters", f.Iters, &p.Iterations}, {"samples", f.Samples, &p.Samples}, {"nics", f.NICs, &p.NICs}} {
		if n.given == nil {
			continue
		}
		if *n.to = *n.given; *n.given == 0 {
			return &bench.UsageError{Reason: "--" + n.name + " 0: must be at least 1"}
		}
	}
	if f.Fragment == 0 {
		return &bench.UsageError{Reason: "--fragment 0: must be at least 1 byte"}
	}
	return nil
}

// interval is that of the time lines; 0 for none.
func (f *perfCmd) interval(p *bench.Params) (bench.Seconds, error) {
	switch {
	case f.Plot != "" && f.Interval != nil && *f.Interval == 0:
		return 0, &bench.UsageError{Reason: "--plot with --interval 0, which asks for no time line: drop " +
			"one of them"}
	case f.Interval != nil:
		return bench.Seconds(*f.Interval), nil
	case f.Plot != "" || len(p.Faults) > 0 && p.Timed():
		return bench.AutoInterval, nil
	}
	return 0, nil
}

// wait is how the ends wait; empty is the default.
func (f *effortFlags) wait() (bench.Wait, error) {
	switch {
	case f.Events && f.BusyPoll:
		return "", &bench.UsageError{Reason: "--events and --busy-poll exclude each other: give one of " +
			"them, or neither"}
	case f.Events:
		return bench.Events, nil
	case f.BusyPoll:
		return bench.Poll, nil
	}
	return "", nil
}

// sizes are the message sizes; none is the default.
func (f *subjectFlags) sizes() (sizes []units.Size, err error) {
	given := 0
	for _, is := range []bool{len(f.Size) > 0, len(f.Sizes) > 0, f.All} {
		if is {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, &bench.UsageError{Reason: "--size, --sizes and --all exclude each other: give one of " +
			"them"}
	case len(f.Size) > 1:
		return nil, &bench.UsageError{Reason: "--size is given several times: use --sizes with a list, " +
			"such as --sizes 4K,64K"}
	case f.All && bench.Op(f.Op).Atomic():
		return nil, &bench.UsageError{Reason: fmt.Sprintf("--op %s works on 8 bytes only: drop --all", f.Op)}
	case f.All:
		for z := units.Size(2); z <= 8<<20; z *= 2 {
			sizes = append(sizes, z)
		}
		return sizes, nil
	case len(f.Size) == 1:
		return f.Size, nil
	}
	return f.Sizes, nil
}

// schemes are the columns; none is the default.
func (f *subjectFlags) schemes() (schemes []bench.Scheme, err error) {
	for _, s := range f.Scheme {
		if s == "all" {
			if len(f.Scheme) > 1 {
				return nil, &bench.UsageError{Reason: "--scheme all stands alone"}
			}
			break
		}
		schemes = append(schemes, bench.Scheme(s))
	}
	return schemes, nil
}
