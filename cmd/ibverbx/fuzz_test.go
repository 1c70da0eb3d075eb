package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/alecthomas/kong"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
)

// FuzzAddress reads addresses of --listen and --connect. What comes of one has a host and a port,
// and reads as the same; --connect takes it just when it says where to.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{
		"", "host1", "host1:7000", ":7000", "10.0.0.1", "fe80::1%eth0", "[::1]", "[::1]:7000", "::1", "18515",
		"host:", "host:70000",
		"[host]", "[", "a:b:c", ":0", "host:0",
		"::1%a:5", "host:+5", "host:007", " host", "[::1%]:5", "99999999999999999999", "host:http",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var to connectFlag
		toErr := to.UnmarshalText([]byte(text))
		address, err := parseAddress(text)
		if err != nil {
			if toErr == nil || to != "" || !strings.Contains(err.Error(), strconv.Quote(text)) {
				t.Fatalf("%q: %v, and %v", text, err, toErr)
			}
			return
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatalf("%q is %q: %v", text, address, err)
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			t.Fatalf("%q is %q: %v", text, address, err)
		}
		if !strings.Contains(text, host) || port != defaultPort && !strings.HasSuffix(text, ":"+port) {
			t.Fatalf("%q is %q", text, address)
		}
		if again, err := parseAddress(address); err != nil || again != address {
			t.Fatalf("%q is %q, which is %q, %v", text, address, again, err)
		}
		n, _ := strconv.Atoi(port)
		if somewhere := host != "" && n != 0; somewhere != (toErr == nil) || somewhere &&
			string(to) != address {
			t.Fatalf("%q is %q, and --connect says %q, %v", text, address, to, toErr)
		}
	})
}

// flagReader reads command lines as run does, and runs nothing. Making one takes longer than
// reading with it.
type flagReader struct {
	flags  *cli
	parser *kong.Kong
}

func newFlagReader(tb testing.TB) *flagReader {
	tb.Helper()
	r := &flagReader{flags: &cli{}}
	var err error
	r.parser, err = kong.New(r.flags, kong.Name("ibverbx"), kong.Writers(io.Discard, io.Discard),
		kong.Exit(func(int) { panic(helpShown{}) }), kong.ExplicitGroups(groups()))
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func (r *flagReader) read(args []string) (k *kong.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(helpShown); !ok {
				panic(r)
			}
			err = errHelp
		}
	}()
	return r.parser.Parse(args)
}

var errHelp = errors.New("help was shown")

// FuzzFlags reads command lines. What can be measured is within the limits and is the same when it
// is passed to another process; what cannot be is a wrong use, and the reason can be shown.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{
		"perf", "perf --op send -s 64K -t 32", "perf --op write-imm --mode lat",
		"perf -s 1M --nic-speed 5Gbit,20Gbit --depth 4 -v",
		"perf --fault nic-down@nic=1,msg=500",
		"perf --fault link-flap@for=30ms -s 1M", "perf --provider rdmacore -d mlx5_0",
		"perf --listen -d mlx5_0,mlx5_1",
		"perf --connect host1 -d ^mlx5_2 --op write-imm -b",
		"perf --sizes 4K..16M/4 --scheme dqplb -n 10", "perf -a -D 200ms", "perf -s 1 -s 2",
		"perf --nics 32 -q 4", "perf --nics 32 -q 5",
		"perf --memory 2G", "perf --fragment 3G",
		"perf -x 0 -m 1024", "perf -x -1", "perf -m 1", "perf -e --busy-poll",
		"perf --scheme all --scheme spray",
		"perf --op fetch-add -a", "perf --nic-latency 1e8", "perf --seed -1",
		"perf --listen --iters 5", "perf --listen=:0 --timeout 0", "perf --connect :5", "perf --duration NaN",
		"perf -n 9223372036854775807 -t 65536", "devices --provider soft --nics 65",
		"perf --op \x1b[2J", "perf --scheme x\x00", "perf --help", "version", "", "--",
		"perf --size=9223372036854775807",
		"perf -q 9223372036854775807 --nics 2",
		"perf --layer transport --mode rate --endpoints 32",
		"perf --layer tagged --op send-sync --kind eager -b",
		"perf --layer shmem --op put-signal --mode lat",
		"perf --layer x --op y --kind z", "perf --endpoints -1",
		"perf --layer transport --endpoints 9223372036854775807 -t 4096", "perf --layer \x1b[2J",
		"perf --layer transport --kind \u202e", "perf --layer tagged -a --mode lat",
		"perf --layer transport --op fetch-add -a",
		"perf --sizes 1..9223372036854775807", "perf --nic-speed 1,1,1", "perf --fault delay@nic=2",
		"perf --fault kill-qp@rail=7",
		"perftest ib_write_bw -q 4 -n 10 -s 64K host1", "perftest ib_send_lat -s 8 --listen=:0 -x 3",
		"perftest ib_read_bw -q 9223372036854775807 -s 9223372036854775807", "perftest \x1b[2J",
	} {
		f.Add(s)
	}
	reader := newFlagReader(f)
	f.Fuzz(func(t *testing.T, line string) {
		if len(line) > 500 {
			return
		}
		k, err := reader.read(strings.Fields(line))
		if err == nil {
			switch command, _, _ := strings.Cut(k.Command(), " "); command {
			case "perf":
				err = checkPerf(t, &reader.flags.Perf, k)
			case "perftest":
				err = checkPerftest(t, &reader.flags.Perftest, k)
			}
		}
		if err == nil {
			return
		}
		text := "ibverbx: " + harmless(reason(err))
		if strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) ||
			strings.Contains(text, "\nibverbx") {
			t.Fatalf("%q", text)
		}
	})
}

// checkPerftest checks flags as perftest does before it opens anything.
func checkPerftest(t *testing.T, c *perftestCmd, k *kong.Context) error {
	t.Helper()
	cfg, err := c.config(k)
	if err != nil {
		return wrongUse(t, err)
	}
	if cfg.QPs < 1 || cfg.Messages < 1 || cfg.Size < 1 || cfg.Size > 1<<30 || cfg.QPs*cfg.Size > 2<<30 ||
		cfg.TxDepth < 1 || cfg.RxDepth < 1 || cfg.Timeout <= 0 {
		t.Fatalf("would measure %+v", cfg)
	}
	return nil
}

// checkPerf checks flags as perf does before it opens anything, and looks at what it would measure.
func checkPerf(t *testing.T, c *perfCmd, k *kong.Context) error {
	t.Helper()
	if err := c.check(c.provider()); err != nil {
		return wrongUse(t, err)
	}
	p, err := c.params(k)
	if err != nil {
		return wrongUse(t, err)
	}
	_ = p.ValidateApart() // changes nothing
	if p.NICs == 0 {
		p.NICs = 2
	}
	if err := p.Complete(); err != nil {
		return wrongUse(t, err)
	}
	if p.NICs < 1 || p.QPs < 1 || p.NICs*p.QPs > ibverbx.MaxRails || p.Memory > 1<<30 ||
		p.TxDepth < 1 || p.Depth < 1 || p.Iterations < 0 || p.Duration < 0 {
		t.Fatalf("would measure %+v", p)
	}
	for _, z := range p.Sizes {
		if z < 1 || z > 1<<30 {
			t.Fatalf("would measure %v", z)
		}
	}
	long := func(s bench.Seconds) bool { return s > bench.Seconds(time.Hour) }
	if long(p.Duration) || slices.ContainsFunc(p.Latencies, long) {
		return nil // JSON has fewer digits
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	sent := *p
	sent.Sizes, sent.Schemes, sent.Speeds, sent.Latencies, sent.Faults = nil, nil, nil, nil, nil
	if err := json.Unmarshal(text, &sent); err != nil {
		if strings.ToValidUTF8(string(text), "") == string(text) && !bytes.Contains(text, []byte("ufffd")) {
			t.Fatalf("%s: %v", text, err)
		}
		return nil
	}
	if again, err := json.Marshal(sent); err != nil || string(again) != string(text) {
		t.Fatalf("%s is sent as %s, %v", text, again, err)
	}
	return nil
}

// wrongUse says that an error is one of the flags.
func wrongUse(t *testing.T, err error) error {
	t.Helper()
	var usage *bench.UsageError
	if !errors.As(err, &usage) {
		t.Fatalf("%v is no wrong use", err)
	}
	return err
}

// FuzzTable prints figures that another process has taken. Each takes its line, and the lines of a
// table are as many for any figures.
func FuzzTable(f *testing.F) {
	for _, s := range []string{
		`[{"size_bytes":64,"scheme":"dqplb","messages":10,"gb_per_second":1.5,"messages_per_second":1e6}]`,
		`[{"size_bytes":64,"scheme":"single",` +
			`"latency":{"samples":7,"min_ns":-1,"p50_ns":9223372036854775807}},{"scheme":"spray"}]`,
		`[{"scheme":"dqplb","messages":-1,"bytes":18446744073709551615,"seconds":-1e308,` +
			`"gb_per_second":1e308,` +
			`"stats":{"a":{"rails":[{"bytes":18446744073709551615},{"bytes":1}]}}}]`,
		`[{"stats":{"b":{"sends":1,"markers":1,"rails":[{"device":"mlx5_0","notify":true}]}}}]`, `[]`, `[{}]`,
	} {
		for how := range byte(8) {
			f.Add(s, how)
			f.Add(s, how|8)
		}
	}
	f.Fuzz(func(t *testing.T, text string, how byte) {
		var row []bench.Result
		if json.Unmarshal([]byte(text), &row) != nil || len(row) == 0 || len(row) > 3 {
			return
		}
		p := &bench.Params{Op: layers.Write, NICs: 2, QPs: 2, TxDepth: 4, Depth: 4, Memory: 1 << 20,
			Fragment: 1 << 16}
		if how&1 != 0 {
			p.Mode = bench.Latency
		} else {
			p.Mode = bench.Bandwidth
		}
		if how&2 != 0 {
			p.Op = layers.FetchAdd
		}
		if how&8 != 0 {
			p.Layer, p.Op = layers.Transport, layers.AM
		}
		if err := p.Complete(); err != nil {
			t.Fatal(err)
		}
		rails := 0
		for i := range row { // what the listening end does not leave to the other one
			r := &row[i]
			r.Layer = p.Layer
			r.Op, r.Mode, r.Scheme, r.Faults, r.Failed, r.Error = p.Op, p.Mode,
				bench.Schemes()[i], nil, false, ""
			for _, s := range []*bench.QPStats{&r.Stats.A, &r.Stats.B} {
				s.Rails = s.Rails[:min(len(s.Rails), ibverbx.MaxRails+1)]
				for k := range s.Rails {
					s.Rails[k].Device = fmt.Sprint("nic", k)
				}
				rails += len(s.Rails)
			}
		}
		peer := &bench.Peer{Address: "there:1", End: "a", NICs: []string{"nic0"}, Own: []string{"nic0"}}
		var out bytes.Buffer
		table := newPerfTable(&out, how&4 != 0)
		table.Start(p, peer)
		header := strings.Count(out.String(), "\n")
		table.Row(row)
		lines := strings.Count(out.String(), "\n") - header
		if most := len(row)*(1+18) + rails; table.err != nil || lines < 1 || lines > most || how&4 == 0 &&
			p.Mode != bench.Latency && lines != 1 {
			t.Fatalf("%d lines for %d results with %d rails, %v:\n%s", lines, len(row), rails, table.err,
				out.String())
		}
		if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Fatalf("%q", out.String())
		}
		report := &bench.Report{Params: p, Results: row, Peer: peer}
		report.OK = true
		table.footer(report)
		if err := writeJSON(io.Discard, report); err != nil {
			t.Fatal(err)
		}
	})
}
