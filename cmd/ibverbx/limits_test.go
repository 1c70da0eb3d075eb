package main

import (
	"encoding/json"
	"strings"
	"testing"
)

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
