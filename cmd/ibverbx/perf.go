package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/cmd/ibverbx/internal/units"
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

	Layer         string       `group:"what" default:"qp" placeholder:"NAME" predictor:"layer"`
	Op            string       `group:"what" placeholder:"OP" predictor:"op"`
	Mode          string       `group:"what" default:"bw" placeholder:"bw|lat|rate" predictor:"mode"`
	Kind          string       `group:"what" placeholder:"KIND" predictor:"kind"`
	Endpoints     *int         `group:"what" placeholder:"N"`
	Bidirectional bool         `group:"what" short:"b"`
	Size          []units.Size `group:"what" short:"s" sep:"none" placeholder:"SIZE"`
	Sizes         units.Range  `group:"what" placeholder:"LIST" sep:"none"`
	All           bool         `group:"what" short:"a"`
	Scheme        []string     `group:"what" placeholder:"NAME" predictor:"scheme"`

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

	Provider string     `group:"rails" placeholder:"NAME" predictor:"provider"`
	Device   string     `group:"rails" short:"d" aliases:"ib-dev" placeholder:"LIST"`
	Library  string     `group:"rails" placeholder:"PATH" predictor:"file"`
	NICs     *int       `group:"rails" name:"nics" placeholder:"N"`
	QPs      int        `group:"rails" name:"qps" aliases:"qp" short:"q" default:"4" placeholder:"N"`
	Fragment units.Size `group:"rails" default:"512K" placeholder:"SIZE"`
	Depth    int        `group:"rails" default:"128" placeholder:"N"`
	connFlags

	Listen  listenFlag  `group:"apart" placeholder:"[ADDR]"`
	Keep    bool        `group:"apart"`
	Connect connectFlag `group:"apart" placeholder:"HOST[:PORT]"`
	Port    *int        `group:"apart" short:"p" placeholder:"N"`
	Timeout units.Span  `group:"apart" default:"30s" placeholder:"TIME"`

	NICSpeed   []units.Rate  `group:"sim" name:"nic-speed" placeholder:"RATE"`
	NICLatency []units.Span  `group:"sim" name:"nic-latency" placeholder:"TIME"`
	Fault      []bench.Fault `group:"sim" sep:"none" placeholder:"KIND[@KEY=VALUE,..]" predictor:"fault"`
	Seed       uint64        `group:"sim" default:"1" placeholder:"N"`

	JSON        bool   `group:"out" name:"json"`
	Verbose     bool   `group:"out" short:"v"`
	Unit        string `group:"out" placeholder:"NAME" predictor:"unit"`
	ReportGbits bool   `group:"out" name:"report-gbits" aliases:"report_gbits"`
	limits

	habits

	printed bool // the JSON document
	shown   bool // a table
	warned  bool // of NICs that could not be opened
}

// Help is shown below the flags.
func (perfCmd) Help() string {
	return `Examples:
  ibverbx perf                                      write bandwidth, 4 KiB to 16 MiB, one queue pair and eight
  ibverbx perf --op send -s 64K -t 32               one size of another operation
  ibverbx perf --op write-imm --mode lat            latency, half a ping-pong
  ibverbx perf -s 1M --nic-speed 5Gbit,20Gbit --depth 4 -v
                                                    NICs of different speed, and what each rail carried
  ibverbx perf --fault nic-down@nic=1,msg=500       what an application sees when a NIC fails
  ibverbx perf --fault link-flap@for=30ms -s 1M     a failure that the NICs survive
  ibverbx perf --provider rdmacore -d mlx5_0        over a real NIC, both ends in this process
  ibverbx perf --layer transport --op am --mode lat active messages, beside a send through one queue pair
  ibverbx perf --layer transport --op put --kind zcopy -s 1M
                                                    puts from registered memory, beside copy()
  ibverbx perf --layer transport --mode rate --endpoints 32
                                                    what a message costs over 32 endpoints of one worker
  ibverbx perf --layer tagged --mode rate -s 8      tag-matched messages

The layers above queue pairs, and their operations:
` + layerHelp() + `
--mode lat takes half of a round trip where the target sees the message and answers (am, put-poll, put-signal,
send, send-sync), else the time from the call to the completion, which of a put of shmem is a Quiet. --mode bw
and rate start messages until the layer has no resources left, which --tx-depth allows, and end when all have
completed and come. Active messages are copied by the handler to where they are compared; fetch-and-adds must
bring each value of the counter once. Latencies and rates stand beside those of the same messages through one
queue pair without the layer, bandwidths beside copy(), several endpoints beside one of them; between two
processes they stand alone, and --layer shmem is measured in one process only. --tx-depth then counts on each
endpoint.

Two processes, on two hosts or one, over real NICs:
  ibverbx perf --listen -d mlx5_0,mlx5_1            on the one host: waits, measures once, exits
  ibverbx perf --listen --keep                      likewise, and stays for the next
  ibverbx perf host1 -d mlx5_0,mlx5_1 --op write-imm -b
                                                    on the other: decides what is measured
Each end chooses its own NICs, their connection (--gid-index to --outs), --timeout and output; all else is for
the connecting end. Both print the figures, which the connecting end takes. The connecting end exits
with 1 when either fails or goes.

A listening end serves its clients one after another, since two at a time would disturb each other's figures;
those that wait are told so. When one breaks off, it says why and serves the next. It exits with the first
that is measured, and with 1 if that showed a failure of its own NICs or data; with --keep it stays until
Ctrl-C. With --json it writes a document for each client. For traffic from several hosts at the same time
start a listening end for each, on ports of their own.

Any host that reaches a listening end may make it measure: then that uses up to 4 GiB of memory, most of it
pinned, and its NICs. Listen where you trust who can connect, as in --listen=10.0.0.1.

Flags have the letters of perftest, where it has them. Unlike there, --iters and --tx-depth count messages
over all queue pairs together, and --qps counts the queue pairs on each NIC.

A cell is measured several times (--samples), in turn with the others of its size and with copy(). A figure
is the median of its samples, and ± says how far off the median of many more could be, with 95 % confidence.
With more than 20 % the figure is marked ~: it is noise, and less than that between two such figures says
nothing.

Exit codes: 0 when all went well, also where a fault of --fault made requests fail, every promise was kept,
and the run went on; 1 when anything else failed, a figure missed --min-bw or --max-lat, a promise was broken
(a completion missing, twice or out of order, data not there), or the run could not go on; 2 when the flags
make no sense; 130 after Ctrl-C.

The report of a failure says what each end saw and what became of all that was accepted. Then both ends are
reset and connected anew with new cards, and the column goes on: its figures, marked *, are of what came
through. Links and NICs that come back are waited for. Without those that do not, both ends are closed and
made anew on as many NICs as both have left; with none left the
column ends. So it does after more than ` + strconv.Itoa(bench.MaxSetbacks) + ` failures at one size.

Faults strike end a, the initiator, but fail-recv end b, the target; end= is a or b where a fault may strike
either. They strike when end a has posted msg= messages of a column [100], all its sizes counted and no
warm-up. A column is measured in rounds, and errors number the messages of the round that failed, from 0. nic=
and rail= count from 0 [any, but where a number is named], count= is how many requests are struck [1], all for
ever, for= a duration. In brackets is what holds when a key is not given:
` + bench.FaultHelp()
}

// layerHelp lists the operations of the layers.
func layerHelp() string {
	var b strings.Builder
	for _, s := range layers.Shapes() {
		kinds := ""
		for i, k := range s.Kinds {
			if kinds += ", "; i == 0 {
				kinds = "; "
			}
			kinds += string(k)
		}
		fmt.Fprintf(&b, "  %-10s %-10s %s%s\n", s.Layer, s.Op, s.Name, kinds)
	}
	return b.String()
}

// params turns the flags into what to measure.
func (f *perfCmd) params() (p *bench.Params, err error) {
	p = &bench.Params{
		Provider: f.provider(), Layer: layers.Layer(f.Layer), Op: bench.Op(f.Op), Mode: bench.Mode(f.Mode),
		Bidirectional: f.Bidirectional,
		Kind:          layers.Kind(f.Kind),
		TxDepth:       f.TxDepth, Inline: f.Inline, Endless: f.Endless, QPs: f.QPs,
		Shared:   f.provider() != softNICs,
		Fragment: f.Fragment, Depth: f.Depth, Verify: !f.NoVerify, Memory: f.Memory,
		Speeds: f.NICSpeed, Faults: f.Fault, Seed: f.Seed,
	}
	for _, l := range f.NICLatency {
		p.Latencies = append(p.Latencies, bench.Seconds(l))
	}
	if err = f.counts(p); err != nil {
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
	if err = f.habits.check(); err != nil {
		return nil, err
	}
	if err = f.limits.check(p); err != nil {
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

// counts fills in the numbers of which 0 is the default there: here it makes no sense.
func (f *perfCmd) counts(p *bench.Params) error {
	for _, n := range []struct {
		name  string
		given *int
		to    *int
	}{{"iters", f.Iters, &p.Iterations}, {"samples", f.Samples, &p.Samples}, {"nics", f.NICs, &p.NICs},
		{"endpoints", f.Endpoints, &p.Endpoints}} {
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

// wait is how the ends wait; empty is the default.
func (f *perfCmd) wait() (bench.Wait, error) {
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
func (f *perfCmd) sizes() (sizes []units.Size, err error) {
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
func (f *perfCmd) schemes() (schemes []bench.Scheme, err error) {
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

// provider is the source of the NICs.
func (f *perfCmd) provider() string {
	switch {
	case f.Provider != "":
		return f.Provider
	case f.apart():
		return realNICs
	}
	return softNICs
}

// Run measures and prints. With --json there is a document however it ends.
func (f *perfCmd) Run(c *console, k *kong.Context) error {
	err := f.run(c, k)
	if err == nil {
		return nil
	}
	return errors.Join(err, f.document(c, err))
}

// document writes the JSON document of a run that came to nothing, unless there is one.
func (f *perfCmd) document(c *console, err error) error {
	if !f.JSON || f.printed {
		return nil
	}
	f.printed = true
	return writeJSON(c.out, &bench.Report{
		Tool: "ibverbx perf", Version: version(), Machine: bench.ThisMachine(), Results: []bench.Result{},
		Interrupted: errors.Is(err, bench.ErrInterrupted), Error: err.Error(),
	})
}

func (f *perfCmd) run(c *console, k *kong.Context) error {
	if err := f.meeting(); err != nil {
		return err
	}
	if f.apart() {
		return f.runApart(c, k)
	}
	if f.Keep {
		return errKeep
	}
	if given(k, "timeout") {
		return &bench.UsageError{Reason: "--timeout is how long the other process may take: it goes with " +
			"--listen or --connect"}
	}
	provider := f.provider()
	if err := checkNICFlags(provider, f.Device, f.Library); err != nil {
		return err
	}
	p, err := f.params()
	if err != nil {
		return err
	}
	if _, err := f.unit(); err != nil {
		return err
	}
	switch {
	case provider != softNICs && len(p.Speeds)+len(p.Latencies)+len(p.Faults) > 0:
		return &bench.UsageError{Reason: "--nic-speed, --nic-latency and --fault are for software NICs: " +
			"drop them, or --provider " + provider}
	case provider == softNICs && f.Device != "":
		return &bench.UsageError{Reason: "--device chooses among real NICs: use --provider rdmacore, or " +
			"--nics for a number of software NICs"}
	case provider == softNICs && p.NICs == 0:
		p.NICs = 2
	case p.NICs == 0:
		if p.NICs, err = f.countNICs(); err != nil {
			return err
		}
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if p.Conn.Port != 0 || p.Conn.GIDIndex != 0 { // before anything is printed
		checked, err := f.open(c, provider, 2*p.NICs, p.Conn)
		if err != nil {
			return err
		}
		if err := checked.Close(); err != nil {
			return err
		}
	}
	open := func(nics int) (verbs.Provider, error) {
		return f.open(c, provider, 2*nics, p.Conn)
	}
	return f.show(c, func(o bench.Observer) (*bench.Report, error) { return bench.Run(c.ctx, p, open, o) })
}

// open opens a provider whose NICs have what the flags name.
func (f *perfCmd) open(c *console, provider string, nics int, conn ibverbx.ConnConfig) (verbs.Provider,
	error) {
	p, err := openProvider(provider, nicOptions{count: nics, filter: f.Device, library: f.Library})
	if err != nil {
		return nil, err
	}
	if without := unopened(p); without != nil && !f.warned {
		f.warned = true
		c.complain("ibverbx: %s; going on without it\n", reason(without))
	}
	devices, err := p.Devices()
	if err == nil {
		err = checkPorts(conn, devices)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// countNICs is how many real NICs are chosen.
func (f *perfCmd) countNICs() (n int, err error) {
	p, err := openProvider(f.provider(), nicOptions{filter: f.Device, library: f.Library})
	if err != nil {
		return 0, err
	}
	devices, err := p.Devices()
	if err == nil && len(devices) == 0 {
		err = fmt.Errorf("provider %s has no devices", p.Name())
	}
	if closing := p.Close(); err == nil {
		err = closing
	}
	return len(devices), err
}

// show measures and prints.
func (f *perfCmd) show(c *console, measure func(bench.Observer) (*bench.Report, error)) (err error) {
	var o bench.Observer = silent{}
	var table *perfTable
	finish := func() {}
	if !f.JSON {
		table = newPerfTable(c.out, f.Verbose)
		table.again, f.shown = f.shown, true
		if table.unit, err = f.unit(); err != nil {
			return err
		}
		if c.width > 0 {
			table.width = c.width
		}
		o = table
		if c.errTTY {
			progress := newProgress(c.err, table)
			finish = progress.close
			o = progress
		}
	}
	report, err := measure(o)
	finish()
	if report == nil {
		return err
	}
	report.Version = version()
	if table != nil {
		table.footer(report) // of the run, which a figure that misses a limit does not cut short
	}
	if missed := f.missed(report); missed != nil && err == nil {
		err = missed
		report.OK, report.Error = false, err.Error()
	}
	if f.JSON {
		f.printed = true
		if err := writeJSON(c.out, report); err != nil {
			return err
		}
	} else if err == nil {
		err = table.err
	}
	return err
}

// silent observes nothing.
type silent struct{}

func (silent) Start(*bench.Params, *bench.Peer) {}
func (silent) Cell(int, int)                    {}
func (silent) Row([]bench.Result)               {}

// writeJSON writes a document for machines that people can read.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
