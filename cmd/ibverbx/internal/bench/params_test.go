package bench

import (
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/units"
)

// Short names of package layers'.
const (
	Write    = layers.Write
	WriteImm = layers.WriteImm
	Read     = layers.Read
	Send     = layers.Send
	FetchAdd = layers.FetchAdd
	CmpSwap  = layers.CmpSwap
)

var ErrVerify, ErrStalled, errFailed = layers.ErrVerify, layers.ErrStalled, layers.ErrRequests

// params are valid ones that run in no time.
func params(change ...func(*Params)) *Params {
	p := &Params{
		Provider: "soft", Op: Write, Mode: Bandwidth, Iterations: 40, TxDepth: 16, NICs: 2, QPs: 2, Depth: 16,
		Fragment: 16 << 10, Memory: 256 << 10, Verify: true, Seed: 1, Sizes: []units.Size{64, 40000},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Params)
		want   string // in the error; empty for none
	}{
		{"fine", func(*Params) {}, ""},
		{"spray with one queue pair", func(p *Params) { p.NICs, p.QPs, p.Schemes = 1, 1, []Scheme{Spray} },
			"--scheme spray needs at least two queue pairs: use --qps 2 or --nics 2, or --scheme single"},
		{"one queue pair", func(p *Params) { p.NICs, p.QPs = 1, 1 }, ""},
		{"unknown scheme", func(p *Params) { p.Schemes = []Scheme{"sprayed"} }, "have single, spray, dqplb"},
		{"scheme twice", func(p *Params) { p.Schemes = []Scheme{Spray, Spray} }, "given twice"},
		{"unknown op", func(p *Params) { p.Op = "swap" }, "has write, write-imm"},
		{"unknown mode", func(p *Params) { p.Mode = "fast" }, "have bw and lat"},
		{"latency both ways", func(p *Params) { p.Mode, p.Bidirectional = Latency, true },
			"drop -b, or use --mode bw"},
		{"atomic of other size", func(p *Params) { p.Op = FetchAdd }, "works on 8 bytes, not 64 B"},
		{"atomic", func(p *Params) { p.Op, p.Sizes = CmpSwap, nil }, ""},
		{"no bytes", func(p *Params) { p.Sizes = []units.Size{0} }, "use --size 1 or more"},
		{"too many bytes", func(p *Params) { p.Sizes = []units.Size{2 << 30} }, "at most 1 GiB"},
		{"iterations and duration", func(p *Params) { p.Duration = Seconds(time.Second) },
			"give one of them"},
		{"negative iterations", func(p *Params) { p.Iterations = -1 }, "at least 1"},
		{"negative duration", func(p *Params) { p.Iterations, p.Duration = 0, -1 }, "must be at least 1ns"},
		{"tx depth", func(p *Params) { p.TxDepth = 0 }, "--tx-depth 0"},
		{"depth", func(p *Params) { p.Depth = 1 << 20 }, "--depth 1048576"},
		{"queue pairs", func(p *Params) { p.QPs = 0 }, "--qps 0"},
		{"queue pairs that overflow", func(p *Params) { p.NICs, p.QPs = 4, 1<<62+1 }, "must be 1 to 128"},
		{"NICs", func(p *Params) { p.NICs = 33 }, "--nics 33: must be 1 to 32"},
		{"rails", func(p *Params) { p.QPs = 100 }, "at most 128"},
		{"fragment", func(p *Params) { p.Fragment = 4 << 30 }, "must be 1 B to 2 GiB"},
		{"memory", func(p *Params) { p.Memory = 1 }, "--memory 1 B"},
		{"speeds", func(p *Params) { p.Speeds = make([]units.Rate, 3) },
			"--nic-speed lists 3 values for 2 NICs"},
		{"latencies", func(p *Params) { p.Latencies = make([]Seconds, 3) }, "--nic-latency lists 3 values"},
		{"fault on a NIC that is not there", func(p *Params) { p.Faults = faults(t, "nic-down@nic=2,msg=1") },
			"an end has 2 NICs"},
		{"fault on a rail that is not there",
			func(p *Params) { p.Faults = faults(t, "kill-qp@rail=4,msg=1") }, "has 4 rails"},
		{"fault that comes too late", func(p *Params) { p.Faults = faults(t, "kill-qp") },
			"ends at 80: use msg=20"},
		{"fault in the last size", func(p *Params) { p.Faults = faults(t, "kill-qp@msg=79") }, ""},
		{"failover of one queue pair", func(p *Params) { p.Failover, p.Schemes = true, []Scheme{Single} },
			"--failover needs several queue pairs"},
		{"failover of a layer", func(p *Params) { p.Failover, p.Layer, p.Op = true, "transport", "" },
			"--failover is of virtual queue pairs"},
		{"unknown layer", func(p *Params) { p.Layer = "moon" },
			`--layer "moon": have qp, transport, tagged, shmem`},
		{"op of another layer", func(p *Params) { p.Layer, p.Op = layers.Transport, "send" },
			`--op "send": --layer transport has am, put, get, fetch-add`},
		{"long message", func(p *Params) { p.Layer, p.Op = layers.Transport, "am" },
			"--op am takes at most 4 KiB"},
		{"bandwidth of a series", func(p *Params) { p.Layer, p.Op = layers.SHMEM, "put-signal" },
			"use --mode lat, or --op put"},
		{"window of a layer", func(p *Params) { p.Layer, p.Op, p.TxDepth = layers.Tagged, "", 5000 },
			"through a layer at most 4096"},
		{"events of a layer", func(p *Params) { p.Layer, p.Op, p.Wait = layers.Tagged, "", Events },
			"--events is of virtual queue pairs"},
		{"faults of a layer", func(p *Params) {
			p.Layer, p.Op, p.Faults = layers.Tagged, "send", faults(t, "slow@msg=1")
		}, "use --layer qp, or drop --fault"},
		{"layer", func(p *Params) { p.Layer, p.Op, p.Sizes = layers.Transport, "", nil }, ""},
		{"interval", func(p *Params) { p.Interval = LeastInterval }, ""},
		{"interval of latencies", func(p *Params) { p.Mode, p.Interval = Latency, AutoInterval },
			"--interval and --plot show bandwidth over time"},
		{"short interval", func(p *Params) { p.Interval = LeastInterval - 1 }, "must be 1ms to 1h0m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := params(tt.change).Complete()
			if tt.want == "" {
				if err != nil {
					t.Errorf("error %v, want none", err)
				}
				return
			}
			var usage *UsageError
			if !errors.As(err, &usage) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want a UsageError with %q", err, tt.want)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	sizes := func(change func(*Params)) int {
		p := params(func(p *Params) { p.Sizes, p.Iterations = nil, 0 }, change)
		if err := p.Complete(); err != nil {
			t.Fatal(err)
		}
		return len(p.Sizes)
	}
	for name, tt := range map[string]struct {
		change func(*Params)
		want   int
	}{
		"bandwidth": {func(*Params) {}, 6},
		"latency":   {func(p *Params) { p.Mode = Latency }, 6},
		"atomics":   {func(p *Params) { p.Op = FetchAdd }, 1},
		"faults":    {func(p *Params) { p.Faults = faults(t, "kill-qp") }, 1},
	} {
		if got := sizes(tt.change); got != tt.want {
			t.Errorf("%s: %d sizes, want %d", name, got, tt.want)
		}
	}
}

func faults(t *testing.T, texts ...string) (list []Fault) {
	t.Helper()
	for _, text := range texts {
		f, err := ParseFault(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, f)
	}
	return list
}

func TestParseFault(t *testing.T) {
	f, err := ParseFault("link-flap@nic=1,end=b,msg=7,for=3ms")
	if err != nil || f.Kind != "link-flap" || f.NIC != 1 || f.End != "b" || f.Message != 7 ||
		f.For != 3*time.Millisecond {
		t.Errorf("got %+v, %v", f, err)
	}
	f, err = ParseFault("slow@at=70ms,by=3")
	if err != nil || f.At != 70*time.Millisecond || f.By != 3 || f.For != 0 {
		t.Errorf("got %+v, %v", f, err)
	}
	for text, want := range map[string]string{
		"explode":               "have kill-qp",
		"nic-down@rail=1":       "understands nic, end, for, msg, at",
		"nic-down@nic":          "want a number",
		"nic-down@nic=-1":       "want a number",
		"nic-down@end=c":        "want a, the initiator, or b",
		"link-flap@for=3":       "want a duration",
		"kill-qp@rail=1,rail=2": "rail is given twice",
		"kill-qp@":              "understands rail, end, msg, at",
		"kill-qp@rail=1,":       "understands rail, end, msg, at",
		"kill-qp@for=10ms":      "understands rail, end, msg, at",
		"slow@by=1":             "want a number, 2 to 1000",
		"slow@at=0s":            "want a duration",
		"kill-qp@at=5ms,msg=7":  "msg and at exclude each other",
	} {
		if _, err := ParseFault(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseFault(%q): error %v, want one with %q", text, err, want)
		}
	}
}
