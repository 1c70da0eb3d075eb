package main

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/alecthomas/kong"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/debug"
	"ibverbx/internal/collperf"
	"ibverbx/verbs"
)

// groups are the headings of perf's flags.
func groups() []kong.Group {
	return []kong.Group{
		{Key: "what", Title: "What to measure:"},
		{Key: "how", Title: "How long and how deep:"},
		{Key: "rails", Title: "NICs and queue pairs:"},
		{Key: "apart", Title: "Two processes:"},
		{Key: "sim", Title: "Simulation:"},
		{Key: "out", Title: "Output:"},
	}
}

type perfCmd struct {
	Host connectFlag `arg:"" optional:"" placeholder:"HOST" help:"As --connect: the host that listens."`

	// The order is that of the headings in --help.

	choiceFlags
	nicFlags
	connFlags
	meetFlags
	Params bench.Params `embed:""`
	PEs    int          `group:"what" name:"pes" range:"1..64" default:"4"`
	outFlags
	habits

	outcome outcome
}

// outcome records what a run has written so far.
type outcome struct {
	document bool // the JSON document
	table    bool
	warning  bool // of NICs that could not be opened
	note     string
}

// provider is the source of the NICs.
func (f *perfCmd) provider() string {
	if f.Provider == "" && !f.apart() {
		return softNICs
	}
	return f.asked()
}

// Run measures and prints. With --json there is a document however it ends.
func (f *perfCmd) Run(c *console, k *kong.Context) error {
	err := f.run(c, k)
	if err != nil {
		err = errors.Join(err, f.document(c, err))
	}
	return err
}

// document writes the JSON document of a run that measured nothing, unless it is written already.
func (f *perfCmd) document(c *console, err error) error {
	if !f.JSON || f.outcome.document {
		return nil
	}
	f.outcome.document = true
	report := bench.Report{Document: document(perfTool, f.outcome.note), Results: []bench.Result{}}
	report.End(time.Now(), err)
	return writeJSON(c.out, &report)
}

// perfTool is the tool's name in documents of perf.
const perfTool = "ibverbx perf"

// document begins a document.
func document(tool, note string) bench.Document {
	return bench.Document{Tool: tool, Version: version(), Note: note, Machine: bench.ThisMachine()}
}

func (f *perfCmd) run(c *console, k *kong.Context) error {
	if collperf.Op(f.Params.Op).Known() {
		return f.runCollective(c, k)
	}
	if given(k, "pes") {
		return usage("--pes goes with collective calls: --layer shmem --op all-reduce")
	}
	if err := f.meet(f.Host); err != nil {
		return err
	}
	if f.Listen.given {
		if err := checkListen(k); err != nil {
			return err
		}
	}
	provider := f.provider()
	if err := f.check(provider); err != nil {
		return err
	}
	p, err := f.params(k)
	if err != nil {
		return err
	}
	watch := debug.New(debug.Config{Name: perfTool})
	if l, err := watch.Listen(); err == nil { // otherwise ibverbx top does not see it
		p.Watch = watch
		defer func() { _ = l.Close() }()
	}
	if f.apart() {
		return f.runApart(c, p)
	}
	switch {
	case given(k, "timeout"):
		return usage("--timeout is how long the other process may take: it goes with --listen or --connect")
	case f.Port != 0:
		return usage("--port is where the two processes meet: it goes with --listen, --connect or HOST")
	case provider != softNICs && len(p.Speeds)+len(p.Latencies)+len(p.Faults) > 0:
		return usage("--nic-speed, --nic-latency and --fault are for software NICs: drop them, or "+
			"--provider %s", provider)
	case provider == softNICs && f.Device != "":
		return usage("--device chooses among real NICs, or those of roce: use --provider rdmacore or roce, " +
			"or --nics for a number of software NICs")
	case provider == softNICs && p.NICs == 0:
		p.NICs = 2
	}
	open := func(n int) (verbs.Provider, error) {
		return f.openHere(c, provider, 2*n, p.Conn, &f.outcome)
	}
	if p.NICs == 0 {
		if p.NICs, err = countNICs(open); err != nil {
			return err
		}
	}
	if err := p.Complete(); err != nil {
		return err
	}
	return f.show(c, func(o bench.Observer) (*bench.Report, error) { return bench.Run(c.ctx, p, open, o) })
}

// countNICs returns how many real NICs are chosen.
func countNICs(open bench.OpenFunc) (n int, err error) {
	provider, err := open(0)
	if err != nil {
		return 0, err
	}
	devices, err := provider.Devices()
	return len(devices), errors.Join(err, provider.Close())
}

// show measures and prints.
func (f *perfCmd) show(c *console, measure func(bench.Observer) (*bench.Report, error)) (err error) {
	var files [2]outFile
	for i, name := range []string{f.Plot, f.Trace} {
		if files[i], err = createFile([]string{"plot", "trace"}[i], name); err != nil {
			return err
		}
		defer func() { err = cmp.Or(err, files[i].close()) }()
	}
	table := newPerfTable(c.out, f.Verbose)
	table.unit = unitOf(f.ReportGbits)
	table.again, f.outcome.table = f.outcome.table, true
	if f.JSON || f.CSV {
		table.w = io.Discard
	}
	report, err := measure(table)
	if report == nil {
		return err
	}
	report.Version, report.Note = version(), f.outcome.note
	table.footer(report) // a figure that misses a limit does not make the run incomplete
	if missed := f.missed(report); missed != nil && err == nil {
		err = missed
		report.OK, report.Error = false, err.Error()
	}
	if f.JSON {
		f.outcome.document = true
		table.err = writeJSON(c.out, report)
	}
	if f.CSV {
		table.err = writeCSV(c.out, report)
	}
	for _, out := range files {
		err = cmp.Or(err, table.err, out.write(report, unitOf(f.ReportGbits), f.Verbose))
	}
	if f.Trace != "" && err == nil {
		table.traced(f.Trace, report)
	}
	return cmp.Or(err, table.err)
}

// writeJSON writes an indented document.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeCSV writes a row for each cell, with the keys and values of JSON; those of the spread and of
// the latency are on the same level.
func writeCSV(w io.Writer, r *bench.Report) error {
	keys := []string{"layer", "op", "mode", "size_bytes", "scheme", "rails", "outstanding", "messages",
		"bytes", "seconds", "gb_per_second", "messages_per_second", "percent", "min_ns", "mean_ns",
		"p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "max_ns", "verified_messages", "failed", "error"}
	out := csv.NewWriter(w)
	err := out.Write(keys)
	for i := range r.Results {
		res := &r.Results[i]
		values := map[string]json.RawMessage{}
		for _, part := range []any{res.Spread, res.Latency, res} {
			text, broken := json.Marshal(part)
			if err = errors.Join(err, broken); string(text) != "null" {
				err = errors.Join(err, json.Unmarshal(text, &values))
			}
		}
		row := make([]string, len(keys))
		for i, key := range keys {
			if json.Unmarshal(values[key], &row[i]) != nil {
				row[i] = string(values[key]) // no string
			}
		}
		err = errors.Join(err, out.Write(row))
	}
	out.Flush()
	return errors.Join(err, out.Error())
}
