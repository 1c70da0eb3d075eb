package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/units"
)

const ms = bench.Seconds(time.Millisecond)

// lineOf is a time line of intervals of 10 ms with a dip in the middle.
func lineOf(before, dip, after, rails int) *bench.Timeline {
	line := &bench.Timeline{Interval: 10 * ms}
	for i := range before + dip + after {
		v := 2.0
		if i >= before && i < before+dip {
			v = 0.5
		}
		line.Total = append(line.Total, v)
	}
	line.Length = bench.Seconds(len(line.Total)) * line.Interval
	for r := range rails {
		of := bench.RailLine{Rail: r, Device: "soft" + string(rune('0'+r%2))}
		for _, v := range line.Total {
			of.Total = append(of.Total, v/float64(rails))
		}
		line.Rails = append(line.Rails, of)
	}
	if dip > 0 {
		const f = "nic-down@nic=1,for=2s"
		at := bench.Seconds(before) * line.Interval
		line.Marks = []bench.Mark{{At: at, Kind: bench.FaultStruck, Text: f},
			{At: at + 10*ms, Kind: bench.RailsLost, Text: "4"},
			{At: at + bench.Seconds(dip)*line.Interval, Kind: bench.FaultEnded, Text: f}}
	}
	return line
}

// The plot has a line for each NIC, with -v for each rail, and one mark for rails that come back
// together.
func TestPlotLines(t *testing.T) {
	line := lineOf(2, 2, 2, 4)
	for _, at := range []bench.Seconds{41 * ms, 43 * ms, 59 * ms, 62 * ms} {
		line.Marks = append(line.Marks, bench.Mark{At: at, Kind: bench.RailsBack, Text: "2"})
	}
	r := &bench.Result{Timeline: line}
	for rails, want := range map[bool]string{
		false: "total -1 2, soft0 0 1, soft1 1 1",
		true:  "total -1 2, 0 soft0 0 0.5, 1 soft1 1 0.5, 2 soft0 0 0.5, 3 soft1 1 0.5",
	} {
		var list []string
		chart := plotChart(r, unitOf(false), rails)
		for _, l := range chart.Lines {
			list = append(list, fmt.Sprint(l.Name, " ", l.Group, " ", l.Values[0]))
		}
		if got := strings.Join(list, ", "); got != want {
			t.Errorf("lines %q, want %q", got, want)
		}
		var marks string
		for _, m := range chart.Marks {
			marks += m.Text + ", "
		}
		if want := "nic-down@nic=1,for=2s, 4 lost, nic-down ends, 6 back, 2 back, "; marks != want {
			t.Errorf("marks %q, want %q", marks, want)
		}
	}
}

// A run that is asked for it shows bandwidth over time in its table, its document and a file.
func TestOverTime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plot.html")
	const args = "perf -s 20000 -n 2000 --memory 1M --scheme dqplb --failover --interval 1ms " +
		"--fault kill-qp@rail=1,msg=500 "
	code, out, errs := command(t, args+"--plot "+file)
	text := strings.Join(strings.Fields(out), " ")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d, stderr %q", code, errs)
	}
	for _, want := range []string{"failover end a lost 1 queue pair, 0 came back, and ",
		"posted again on others; out of service: soft1: 1 end b lost 1 queue pair, 0 came back, and ",
		"posted again on others; out of service: soft3: 1 soft1 lost by end a, 1 ×: ",
		"soft3 lost by end b, 1 ×: ", " no request failed",
		" messages verified byte for byte"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"RDMA write bandwidth over time", "dqplb, 20000 B",
		`"kill-qp@rail=1,msg=500"`, `"soft0"`, `"total"`} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q in the file", want)
		}
	}
	code, out, errs = command(t, args+"--json")
	var doc struct {
		Results []struct {
			Timeline *bench.Timeline
			Stats    bench.EndStats
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitOK || len(doc.Results) != 1 {
		t.Fatalf("exit %d, stderr %q, %v", code, errs, err)
	}
	if r := doc.Results[0]; r.Timeline == nil || len(r.Timeline.Total) == 0 || len(r.Timeline.Rails) != 8 ||
		len(r.Timeline.Marks) < 2 || r.Timeline.Interval != ms || r.Stats.A.RailsLost != 1 {
		t.Errorf("document\n%s", out)
	}
}

// A time line is there when it is asked for.
func TestIntervals(t *testing.T) {
	const run = "perf -s 20000 -n 40 --memory 1M --scheme spray --json "
	for args, want := range map[string]bool{
		"": false, "--fault slow@msg=10": false, "--fault slow@msg=10 --interval 1ms": true,
		"--interval 5ms": true, "--interval 0": false, "--op fetch-add -s 8": false,
	} {
		if strings.Contains(args, "-s 8") {
			args = strings.Replace(run, " -s 20000", "", 1) + args
		} else {
			args = run + args
		}
		code, out, errs := command(t, args)
		if got := strings.Contains(out, `"timeline"`); code != exitOK || errs != "" || got != want {
			t.Errorf("ibverbx %s: exit %d, stderr %q, time line: %v, want %v", args, code, errs, got, want)
		}
	}
}

// The file is made before anything is measured, and left only if there is something in it.
func TestPlotFile(t *testing.T) {
	dir := t.TempDir()
	code, out, errs := command(t, "perf -s 20000 -n 40 --memory 1M --plot "+dir)
	if code != exitFailed || !strings.Contains(errs, "--plot: ") ||
		strings.Contains(out, "messages verified") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	file := filepath.Join(dir, "x.html")
	code, _, errs = command(t, "perf --provider soft -s 1M --memory 1K --nics 1 --depth 1 -x 3 --plot "+file)
	if _, err := os.Stat(file); code == exitOK || err == nil {
		t.Errorf("exit %d, stderr %q, file %v", code, errs, err)
	}
	f, err := createFile("plot", "")
	if f.File != nil || err != nil || f.close() != nil || f.write(nil, unitOf(false), false) != nil {
		t.Errorf("no file: %v, %v", f, err)
	}
	if f, err = createFile("plot", os.DevNull); err != nil || f.close() != nil {
		t.Errorf("a device: %v", err)
	}
	if _, err := os.Stat(os.DevNull); err != nil {
		t.Error(err)
	}
	f, err = createFile("plot", file)
	if err != nil {
		t.Fatal(err)
	}
	report := &bench.Report{Params: &bench.Params{Op: layers.Write}, Results: []bench.Result{{}}}
	if err := f.write(report, unitOf(false), false); err != nil {
		t.Error(err)
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file without a chart is left")
	}
	if f, err = createFile("plot", file); err != nil {
		t.Fatal(err)
	}
	report.Results[0] = bench.Result{Size: units.Size(4096), Scheme: bench.Spray,
		Timeline: lineOf(2, 2, 2, 2)}
	if err := f.write(report, unitOf(true), false); err != nil {
		t.Error(err)
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
	page, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(page), `"values":[16,16,4,4,16,16]`) ||
		!strings.Contains(string(page), `"until":0.04`) {
		t.Errorf("%v\n%.2000s", err, page[max(0, len(page)-4000):])
	}
}

// --trace writes what package trace makes of both ends of each scheme, all on one time line: in one
// process, and of two, whose clocks the file aligns.
func TestTraceFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.json")
	const what = " --op write-imm -s 100 -n 40 --nics 2 --qps 1 --memory 1M --trace "
	code, out, errs := command(t, "perf --nic-speed 1G,100M"+what+file)
	off, tracks := readTrace(t, file)
	if code != exitOK || off != 0 || !tracks["rail 1: soft1 qp 17"] {
		t.Errorf("exit %d, %s, off by %v, tracks %v", code, errs, off, tracks)
	}
	if flat := strings.Join(strings.Fields(out), " "); !strings.Contains(flat, file+" has the last ") ||
		!strings.Contains(flat, "recording them takes time") {
		t.Errorf("the output says nothing of the trace: %s", out)
	}
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
	code, _, errs = command(t, "perf --provider left --connect "+address+what+file)
	if codeB, _, errsB := server.wait(t); code != exitOK || codeB != exitOK {
		t.Errorf("exit %d, %s; the listening end %d, %s", code, errs, codeB, errsB)
	}
	if off, tracks = readTrace(t, file); off <= 0 || off > 1e7 {
		t.Errorf("off by %v us, tracks %v", off, tracks)
	}
	code, out, _ = command(t, "perf --scheme single -n 3 --json --trace "+file)
	if code != exitOK || strings.Contains(out, "has the last") {
		t.Errorf("exit %d; a document has more than JSON: %s", code, out)
	}
	if code, _, errs = command(t, "perf --layer tagged --trace "+file); code != exitUsage ||
		!strings.Contains(errs, "--trace with --layer tagged") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// readTrace reads the file of --trace. It returns how far the clocks may be apart, and the tracks.
func readTrace(t *testing.T, file string) (off float64, tracks map[string]bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		TraceEvents []struct {
			Ph   string
			Args struct{ Name string }
		}
		OtherData map[string]struct {
			ClockError float64 `json:"clock_error_us"`
		}
	}
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	tracks = map[string]bool{}
	arrows := 0
	for _, e := range read.TraceEvents {
		tracks[e.Args.Name] = true
		if e.Ph == "f" {
			arrows++
		}
	}
	for _, want := range []string{"single a", "single b", "spray a", "spray b", "dqplb a", "dqplb b"} {
		if _, ok := read.OtherData[want]; !ok {
			t.Errorf("no %q in %v", want, read.OtherData)
		}
	}
	if arrows < 3*40 || !tracks["notifications"] {
		t.Errorf("%d arrows, tracks %v", arrows, tracks)
	}
	return read.OtherData["dqplb b"].ClockError, tracks
}
