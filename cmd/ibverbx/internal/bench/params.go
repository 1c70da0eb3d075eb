package bench

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/debug"
	"ibverbx/internal/units"
)

// QP is the layer of virtual queue pairs. Those above it are in package layers too.
const QP = layers.QP

// Op is the operation measured.
type Op = layers.Op

// Wait is how an end waits for completions.
type Wait string

// The ways to wait.
const (
	Adaptive Wait = "adaptive" // poll, and sleep after a while without completions
	Poll     Wait = "poll"
	Events   Wait = "events" // sleep at once
)

// Params says what to measure. Fill it, call [Params.Complete], which completes the defaults, and
// hand it to [Run]. A field is the only declaration of a parameter: its name in JSON, its flag and
// its range. The command has the texts of the flags, by name.
type Params struct {
	Provider string `json:"provider" kong:"-"`
	// Layer is QP by default.
	Layer layers.Layer `json:"layer" default:"qp" group:"what" predictor:"layer"`
	// Op is the layer's first operation by default.
	Op            Op   `json:"op" group:"what" predictor:"op"`
	Mode          Mode `json:"mode" default:"bw" group:"what" predictor:"mode"`
	Bidirectional bool `json:"bidirectional" short:"b" group:"what"`
	// Sizes are by default those of the operation and mode.
	Sizes units.Range `json:"sizes" name:"size" aliases:"sizes" short:"s" sep:"none" xor:"sizes" group:"what"`
	// Schemes are by default all that the number of queue pairs allows.
	Schemes []Scheme `json:"schemes" name:"scheme" group:"what" predictor:"scheme"`
	// Iterations are the messages of a cell; with 0 Duration limits it.
	Iterations int     `json:"iterations,omitempty" name:"iters" range:"1.." short:"n" group:"how"`
	Duration   Seconds `json:"duration_seconds,omitempty" range:"1ns.." short:"D" group:"how"`
	// Samples is how many times each cell is measured, in turn with the others of its size;
	// default: 6, or 1 where there are too few iterations.
	Samples int `json:"samples" range:"1..1000" group:"how"`
	// TxDepth is the messages outstanding, NICs those of each end, QPs the queue pairs on each NIC.
	TxDepth int `json:"tx_depth" range:"1..65536" default:"128" short:"t" group:"how"`
	NICs    int `json:"nics" name:"nics" range:"1..32" group:"rails"`
	QPs     int `json:"qps" name:"qps" aliases:"qp" range:"1..128" default:"4" short:"q" group:"rails"`
	// A message of one queue pair carries at most 2 GiB.
	Fragment units.Size `json:"fragment_bytes" range:"1..2G" default:"512K" group:"rails"`
	// Balance is how each end shares fragments among its queue pairs.
	Balance ibverbx.Balance `json:"balance" default:"round-robin" group:"rails" predictor:"balance"`
	// Failover makes both ends continue without failed queue pairs, while others work.
	Failover bool `json:"failover,omitempty" group:"rails"`
	// Failback is as in [ibverbx.Config].
	Failback Seconds `json:"failback_seconds,omitempty" group:"rails"`
	// Depth is the fragments outstanding on a queue pair.
	Depth int `json:"depth" range:"1..8192" default:"128" group:"rails"`
	// Inline is the length, in bytes, up to which messages are sent or written inline; 0: none are.
	Inline int  `json:"inline_bytes,omitempty" name:"inline-size" range:"0..4096" short:"I" group:"how"`
	Verify bool `json:"verify" default:"true" negatable:"" group:"how"`
	Wait   Wait `json:"wait" kong:"-"`
	// Memory is the size of one direction's target.
	Memory units.Size `json:"memory_bytes" range:"1K..1G" default:"64M" group:"how"`
	// Speeds and Latencies have one value for all NICs of an end, or one for each.
	Speeds    []units.Rate `json:"nic_speed_bytes_per_second,omitempty" name:"nic-speed" group:"sim"`
	Latencies []Seconds    `json:"nic_latency_seconds,omitempty" name:"nic-latency" group:"sim"`
	Faults    []Fault      `json:"faults,omitempty" name:"fault" sep:"none" group:"sim" predictor:"fault"`
	Seed      uint64       `json:"seed" default:"1" group:"sim"`
	// Trace records the last steps of the queue pairs: [Report].Traces has them.
	Trace bool `json:"trace,omitempty" kong:"-"`
	// Interval is the interval of the time lines; 0 for none, or [AutoInterval].
	Interval Seconds `json:"-" group:"out"`

	// Conn has the connection settings of this process's queue pairs.
	Conn ibverbx.ConnConfig `json:"-" kong:"-"`
	// Watch shows the ends to ibverbx top; nil for none.
	Watch *debug.Server `json:"-" kong:"-"`
	// Shared makes two ends in this process use the same NICs, instead of half of them each.
	Shared bool `json:"-" kong:"-"`
}

// fullSample is the least number of messages of a counted sample, as a multiple of those
// outstanding: with fewer, the beginning and end of the stream would dominate.
const fullSample = 4

// UsageError is a combination of parameters that cannot be measured.
type UsageError struct{ Reason string }

// Error returns what is wrong and what would work.
func (e *UsageError) Error() string { return e.Reason }

func usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// These limits are not in the ranges.
const (
	maxSize     = 1 << 30 // of a message
	maxFailback = Seconds(time.Hour)
	// maxLayerWindow is the messages outstanding through a layer.
	maxLayerWindow = 4096
	// shmemMemory is the largest target of one direction in a symmetric heap. A column has two
	// heaps.
	shmemMemory = 16 << 20
)

// These are defaults of the parameters.
const (
	defaultSamples = leastSamples
	defaultFault   = 1 << 20                   // message size of a run with faults, or a trace
	defaultOne     = Seconds(time.Second)      // of a cell in a run of one size
	defaultSeveral = Seconds(time.Second / 10) // in a run of several
	defaultLong    = "4K..4M/4"                // sizes of --mode bw: every NIC carries these in one message
	defaultSeries  = "8,64,512,4K,32K,256K"    // of --mode lat
	defaultShort   = "8,64,512,4K"             // of operations without long messages
)

// Complete fills in the defaults and returns, as a [*UsageError], what is not possible.
func (p *Params) Complete() error {
	p.fillDefaults()
	for _, check := range []func() error{p.checkRanges, p.checkNumbers, p.checkSchemes, p.checkOp,
		p.checkFaults, p.checkSizes, p.checkNICs, p.checkInterval} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// Layered reports whether a layer above virtual queue pairs is measured.
func (p *Params) Layered() bool { return p.Layer != QP && p.Layer != "" }

// Shape returns the measured operation, or the zero value if there is no such operation.
func (p *Params) Shape() layers.Shape {
	s, _ := layers.Find(cmp.Or(p.Layer, QP), p.Op)
	return s
}

func (p *Params) fillDefaults() {
	p.Layer = cmp.Or(p.Layer, QP)
	p.Op = cmp.Or(p.Op, p.Shape().Op)
	p.Wait = cmp.Or(p.Wait, Adaptive)
	if p.Layer == layers.SHMEM {
		p.Memory = min(p.Memory, shmemMemory)
	}
	if len(p.Sizes) == 0 {
		p.Sizes = p.defaultSizes()
	}
	if p.Iterations == 0 && p.Duration == 0 {
		p.Duration = defaultSeveral
		if len(p.Sizes) == 1 {
			p.Duration = defaultOne
		}
	}
	if p.Samples == 0 {
		p.Samples = defaultSamples
		if p.Iterations > 0 && p.Iterations < fullSample*p.TxDepth*p.Samples {
			p.Samples = 1
		}
	}
	if len(p.Schemes) == 0 {
		p.Schemes = Schemes()
		if p.rails() == 1 {
			p.Schemes = []Scheme{Single}
		}
	}
}

func (p *Params) defaultSizes() units.Range {
	text := defaultLong
	switch {
	case p.Op.Atomic():
		return units.Range{8}
	case len(p.Faults) > 0, p.Trace:
		return units.Range{defaultFault}
	case p.Shape().Longest > 0:
		text = defaultShort
	case p.Mode.Series():
		text = defaultSeries
	}
	list, err := units.ParseRange(text)
	if err != nil {
		panic(err)
	}
	return list
}

// Soft is the name of the provider of software NICs.
const Soft = "soft"

// unknownSpeed reports whether the NICs' speed is unknown: they may be slow, so nothing large is
// sent before it was measured.
func (p *Params) unknownSpeed() bool { return p.Provider != Soft }

// Answered reports whether the target answers each message with one of its own.
func (p *Params) Answered() bool { return p.Mode.Series() && p.Shape().Seen }

// reads reports whether bytes travel from the target to the initiator.
func (p *Params) reads() bool { return p.Shape().Reads }

// rails returns how many queue pairs a scheme other than single has.
func (p *Params) rails() int { return p.NICs * p.QPs }

// checkRanges compares the parameters that are numbers with their ranges. If JSON omits 0, a 0
// means that the parameter is not set.
func (p *Params) checkRanges() error {
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		limits, ok := f.Tag.Lookup("range")
		if !ok || v.Field(i).IsZero() && strings.Contains(f.Tag.Get("json"), "omitempty") {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		name = strings.NewReplacer("_bytes", "", "_seconds", "", "_", "-").Replace(name)
		name = cmp.Or(f.Tag.Get("name"), name)
		if err := CheckRange(name, v.Field(i), limits); err != nil {
			return err
		}
	}
	return nil
}

// CheckRange compares the value of a flag, which is a number, with a range: LEAST..MOST, both
// written as on the command line, or LEAST.. without an upper limit.
func CheckRange(flag string, value reflect.Value, limits string) error {
	low, high, _ := strings.Cut(limits, "..")
	number := func(v reflect.Value) int64 { return v.Convert(reflect.TypeFor[int64]()).Int() }
	least := readNumber(value.Type(), low)
	if high == "" {
		if number(value) < number(least) {
			return usage("--%s %v: must be at least %v", flag, value, least)
		}
		return nil
	}
	if most := readNumber(value.Type(), high); number(value) < number(least) || number(value) > number(most) {
		return usage("--%s %v: must be %v to %v", flag, value, least, most)
	}
	return nil
}

// readNumber reads a number of a type from the tag of a field.
func readNumber(of reflect.Type, text string) reflect.Value {
	v := reflect.New(of)
	var err error
	if t, ok := v.Interface().(encoding.TextUnmarshaler); ok {
		err = t.UnmarshalText([]byte(text))
	} else {
		_, err = fmt.Sscan(text, v.Interface())
	}
	if err != nil {
		panic(err) // the tag is wrong
	}
	return v.Elem()
}

func (p *Params) checkNumbers() error {
	switch {
	case p.Iterations > 0 && p.Duration != 0:
		return usage("--iters and --duration together: give one of them")
	case p.rails() > ibverbx.MaxRails:
		return usage("--nics %d with --qps %d makes %d queue pairs: a virtual queue pair has at most %d",
			p.NICs, p.QPs, p.rails(), ibverbx.MaxRails)
	case p.Iterations > 0 && p.Iterations < p.Samples:
		return usage("--iters %d makes no --samples %d: give more messages, or fewer samples", p.Iterations,
			p.Samples)
	case p.Inline > 0 && (p.Layered() || p.reads() || p.Op.Atomic()):
		return usage("--inline-size is of what is sent or written through --layer qp: drop it, or use --op " +
			"write, write-imm or send")
	}
	return nil
}

func (p *Params) checkSchemes() error {
	if p.Failback != 0 && !p.Failover {
		return usage("--failback goes with --failover: what has not been lost cannot come back")
	}
	if p.Failback > maxFailback {
		return usage("--failback %v: must be at most %v, or 0 for never", p.Failback, maxFailback)
	}
	if p.Trace && p.Layered() {
		return usage("--trace with --layer %s: layers keep their queue pairs to themselves", p.Layer)
	}
	if p.Failover && p.Layered() {
		return usage("--failover is of virtual queue pairs: use --layer qp, or drop it")
	}
	if p.Failover && p.Op.Atomic() {
		return usage("--failover repeats no --op %s: an atomic whose answer is lost with its queue pair "+
			"ends with an error: use an operation that moves bytes", p.Op)
	}
	if p.Failover && slices.Equal(p.Schemes, []Scheme{Single}) {
		return usage("--failover needs several queue pairs, one of which goes on for another: use --qps 2 " +
			"or --nics 2, and --scheme spray or dqplb")
	}
	for i, s := range p.Schemes {
		switch {
		case !slices.Contains(Schemes(), s):
			return usage("--scheme %.20q: have %s", s, strings.Join(words(Schemes()), ", "))
		case slices.Contains(p.Schemes[:i], s):
			return usage("--scheme %s is given twice", s)
		case s != Single && p.rails() < 2:
			return usage("--scheme %s needs at least two queue pairs: use --qps 2 or --nics 2, or --scheme "+
				"single", s)
		}
	}
	return nil
}

func (p *Params) checkOp() error {
	shape, err := layers.Find(p.Layer, p.Op)
	switch {
	case err != nil:
		return &UsageError{err.Error()}
	case !slices.Contains(Modes(), p.Mode):
		return usage("--mode %.20q: have %s", p.Mode, strings.Join(words(Modes()), " and "))
	case p.Mode.Series() && p.Bidirectional:
		return usage("--mode %s with --bidirectional: it measures one message at a time; drop -b, or use "+
			"--mode bw", p.Mode)
	case shape.LatencyOnly && !p.Mode.Series():
		return usage("--op %s is one message at a time: use --mode lat, or --op put", p.Op)
	case p.Layered() && p.TxDepth > maxLayerWindow:
		return usage("--tx-depth %d: through a layer at most %d", p.TxDepth, maxLayerWindow)
	case p.Layered() && p.Wait == Events:
		return usage("--events is of virtual queue pairs: use --layer qp, or drop it")
	}
	return nil
}

func (p *Params) checkSizes() error {
	longest := units.Size(p.Shape().Longest)
	if p.Trace && len(p.Sizes) > 1 {
		return usage("--trace with %d sizes: it keeps the last steps, which are those of the last size: "+
			"give one (--size)", len(p.Sizes))
	}
	for _, z := range p.Sizes {
		switch {
		case p.Op.Atomic() && z != 8:
			return usage("--op %s works on 8 bytes, not %v: drop --size, or use --size 8", p.Op, z)
		case z == 0:
			return usage("--size 0: a message of no bytes cannot be measured; use --size 1 or more")
		case longest > 0 && z > longest:
			return usage("--size %v: --op %s takes at most %v; use --op put", z, p.Op, longest)
		case z > maxSize:
			return usage("--size %v: at most 1 GiB, for it has to fit into memory several times", z)
		}
	}
	return nil
}

func (p *Params) checkNICs() error {
	for flag, n := range map[string]int{"--nic-speed": len(p.Speeds), "--nic-latency": len(p.Latencies)} {
		if n > 1 && n != p.NICs {
			return usage("%s lists %d values for %d NICs an end: give one for all, or %d", flag, n, p.NICs,
				p.NICs)
		}
	}
	return nil
}

func (p *Params) checkFaults() error {
	if p.Layered() && len(p.Faults) > 0 {
		return usage("--fault shows what virtual queue pairs make of a failure: use --layer qp, or drop " +
			"--fault")
	}
	for i := range p.Faults {
		if err := p.Faults[i].check(p); err != nil {
			return err
		}
	}
	return nil
}

// Timed reports whether bandwidth over time is useful: for operations that move bytes, many
// messages at a time, through queue pairs.
func (p *Params) Timed() bool {
	return !p.Layered() && !p.Mode.Series() && !p.Op.Atomic()
}

func (p *Params) checkInterval() error {
	switch {
	case p.Interval == 0:
	case !p.Timed():
		return usage("--interval and --plot show bandwidth over time: use --layer qp with --mode bw and an " +
			"operation that moves bytes, or drop them")
	case p.Interval != AutoInterval && (p.Interval < LeastInterval || p.Interval > MostInterval):
		return usage("--interval %v: must be %v to %v, or 0 for no time line", p.Interval, LeastInterval,
			MostInterval)
	}
	return nil
}

// config returns the configuration of a virtual queue pair for a column.
func (p *Params) config(s Scheme) ibverbx.Config {
	cfg := ibverbx.Config{Balance: p.Balance, Failover: p.Failover, Failback: time.Duration(p.Failback),
		FragmentSize: uint32(p.Fragment), MaxMsgCntPerQP: p.Depth, QPsPerDevice: p.QPs, MaxInline: p.Inline,
		Conn: p.Conn, Scheme: ibverbx.DQPLB, Trace: p.Trace}
	switch s {
	case Single:
		cfg.QPsPerDevice = 1
	case Spray:
		cfg.Scheme = ibverbx.Spray
	}
	return cfg
}
