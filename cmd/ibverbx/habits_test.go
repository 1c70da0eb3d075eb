package main

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
)

// TestBareHost connects to a host that is named without a flag, with perftest's flags.
func TestBareHost(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right -F -i 1")
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := command(t, "perf "+host+" --provider left -F -N -c RC -i 1 -S 0 -u 14 -o 4 -I 64 "+
		"--tclass 104 --retry_count 5 --report_gbits -p "+port+quick)
	if code != exitOK || !strings.Contains(folded(out), "from here to "+address) ||
		!strings.Contains(out, "Gbit/s") {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
	if code, _, errs := server.wait(t); code != exitOK {
		t.Errorf("the listening end: exit %d: %s", code, errs)
	}
}

// TestListenPort listens on a port given as perftest's users give it.
func TestListenPort(t *testing.T) {
	for args, want := range map[string]string{
		"-p 18999 --listen":           "[::]:18999",
		"--listen=127.0.0.1 -p 18998": "127.0.0.1:18998",
	} {
		server, address := listening(t, "perf --provider right "+args)
		server.cancel()
		server.wait(t)
		if address != want {
			t.Errorf("%s listens on %s, want %s", args, address, want)
		}
	}
}

// TestUnits shows bandwidth in every unit.
func TestUnits(t *testing.T) {
	for flag, want := range map[string]string{"": "GB/s", "--report_gbits": "Gbit/s",
		"--report-gbits": "Gbit/s"} {
		code, out, errs := command(t, "perf --scheme single --memory 256K -s 64K -n 20 "+flag)
		rows := strings.Split(out, "\n")
		at := slices.IndexFunc(rows, func(s string) bool { return strings.Contains(s, "64 KiB") })
		if code != exitOK || at < 1 || strings.Count(rows[at-1], want) != 1 {
			t.Errorf("%s: exit %d: %s\n%s", flag, code, errs, out)
		}
	}
}

// TestInline sends small messages inline, larger ones not.
func TestInline(t *testing.T) {
	for _, args := range []string{"--op write", "--op write-imm", "--op send --mode lat",
		"--scheme single -b"} {
		code, out, errs := command(t, "perf -I 64 --sizes 8,64,128 --memory 64K -n 50 "+args)
		if code != exitOK || !strings.Contains(out, "inline up to 64 B") {
			t.Errorf("%s: exit %d: %s\n%s", args, code, errs, out)
		}
	}
}

// TestStatisticsOfSingle shows that the statistics name the scheme that was measured.
func TestStatisticsOfSingle(t *testing.T) {
	_, out, _ := command(t, "perf --json -s 64 -n 5")
	for _, scheme := range []string{"single", "spray", "dqplb"} {
		// Of the cell, and of the statistics of both ends.
		if n := strings.Count(out, `"scheme": "`+scheme+`"`); n != 3 {
			t.Errorf("%s stands %d times in\n%s", scheme, n, out)
		}
	}
}

// TestHabits shows what a user meets who knows other commands.
func TestHabits(t *testing.T) {
	for args, want := range map[string]string{
		"--version":          "ibverbx ",
		"-V":                 "ibverbx ",
		"perf -V":            "ibverbx ",
		"help":               "perf",
		"help perf":          "--tx-depth",
		"help devices":       "--provider",
		"completion bash -c": "complete -o default",
		"completion zsh -c":  "bashcompinit",
		"completion fish -c": "complete -f",
	} {
		code, out, errs := command(t, args)
		if code != exitOK || !strings.Contains(out, want) || errs != "" {
			t.Errorf("ibverbx %s: exit %d, stderr %q, stdout without %q:\n%.500s", args, code, errs, want,
				out)
		}
	}
	if code, _, errs := command(t, "help swim"); code != exitUsage || !strings.Contains(errs, "swim") {
		t.Errorf("help swim: exit %d, %s", code, errs)
	}
}

// TestCompletion completes commands, flags and their values.
func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"ibverbx ":                       {"perf", "devices", "run", "help"},
		"ibverbx perf --tx":              {"--tx-depth"},
		"ibverbx perf --scheme ":         {"single", "spray", "dqplb"},
		"ibverbx perf --layer t":         {"transport", "tagged"},
		"ibverbx perf --mode ":           {"bw", "lat"},
		"ibverbx perf --op write":        {"write", "write-imm"},
		"ibverbx perf --fault link":      {"link-flap"},
		"ibverbx devices --provider sof": {"soft"},
		"ibverbx compare --max":          {"--max-regression"},
		"ibverbx comp":                   {"compare", "completion"},
	} {
		t.Setenv("COMP_LINE", line)
		_, out, errs := command(t, "")
		for _, word := range want {
			if !slices.Contains(strings.Fields(out), word) {
				t.Errorf("%q: no %s in %q (%s)", line, word, out, errs)
			}
		}
	}
}

// TestLimits ends with 1 where a figure misses what was asked for.
func TestLimits(t *testing.T) {
	for args, want := range map[string]string{
		"--min-bw 1MB/s":               "",
		"--mode lat --max-lat 1000s":   "",
		"--min-bw 900000GB/s":          "Gbit/s, less than --min-bw 7200 Tbit/s",
		"--min-bw 7200000Gbit":         "less than --min-bw 7200 Tbit/s",
		"--mode lat --max-lat 1ns":     "more than --max-lat 1ns",
		"--op send --min-bw 900000G":   "less than --min-bw 900 Tbit/s",
		"--layer tagged --min-bw 900T": "less than --min-bw 900 Tbit/s",
	} {
		code, out, errs := command(t, "perf --memory 256K -s 4K -n 50 "+args)
		wantCode := exitOK
		if want != "" {
			wantCode = exitFailed
		}
		if code != wantCode || !strings.Contains(errs, want) || (want == "") != (errs == "") ||
			!strings.Contains(out, "4 KiB") ||
			!strings.Contains(out, "messages verified byte for byte, in order and complete; ") {
			t.Errorf("%s: exit %d: %s\n%s", args, code, errs, out)
		}
	}
	code, out, errs := command(t, "perf --json --memory 256K -s 4K -n 50 --min-bw 900000GB/s")
	var doc struct {
		OK      bool
		Error   string
		Results []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitFailed || doc.OK ||
		!strings.Contains(doc.Error, "dqplb, 4 KiB: ") || len(doc.Results) != 3 {
		t.Errorf("exit %d: %s: %v, %+v", code, errs, err, doc)
	}
}

// TestLimitsApart misses a limit between two processes: the run is complete, and the listening end
// does not report it.
func TestLimitsApart(t *testing.T) {
	server, address := listening(t, "perf --listen 127.0.0.1:0 --provider right")
	code, out, errs := command(t, "perf --provider left --min-bw 900000GB/s --connect "+address+quick)
	if code != exitFailed || !strings.Contains(errs, "less than --min-bw 7200 Tbit/s") ||
		!strings.Contains(out, "messages verified byte for byte, in order and complete; ") {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
	if code, out, errs := server.wait(t); code != exitOK {
		t.Errorf("the listening end: exit %d: %s\n%s", code, errs, out)
	}
}

// TestSpreadInTable shows how far the samples of a figure lie apart.
func TestSpreadInTable(t *testing.T) {
	for args, want := range map[string]string{
		"-D 12ms":                "±",
		"-D 12ms --mode lat":     "±",
		"-D 12ms --layer tagged": "±",
		"-D 12ms --op fetch-add": "±",
	} {
		code, out, errs := command(t, "perf --memory 256K --nics 1 -q 2 -s 8 "+args)
		if code != exitOK || !strings.Contains(out, want) || !strings.Contains(out, "%") ||
			!strings.Contains(out, "median of 6 samples") {
			t.Errorf("%s: exit %d: %s\n%s", args, code, errs, out)
		}
	}
	if _, out, _ := command(t, "perf --memory 256K -s 64 -n 50"); strings.Contains(out, "samples") {
		t.Errorf("one sample has no spread:\n%s", out)
	}
}
