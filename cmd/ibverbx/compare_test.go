package main

import (
	"encoding/csv"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var updateGolden = flag.Bool("update", false, "write the golden files anew")

const sides = "testdata/compare/old.json testdata/compare/new.json"

// TestCompareGolden compares two files of several documents, in words and as a document.
func TestCompareGolden(t *testing.T) {
	for name, args := range map[string]string{
		"table.golden": "perf compare " + sides, "document.golden": "compare --json " + sides,
	} {
		code, out, errs := command(t, args)
		if code != exitOK || errs != "" {
			t.Fatalf("%s: exit %d: %s", args, code, errs)
		}
		golden := filepath.Join("testdata", "compare", name)
		if *updateGolden {
			if err := os.WriteFile(golden, []byte(out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || out != string(want) {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", args, err, out, want)
		}
	}
}

// TestCompareHow: the two sides are described where they were not measured alike, and only there.
func TestCompareHow(t *testing.T) {
	measure := func(flags string) string {
		path := filepath.Join(t.TempDir(), "perf.json")
		code, out, errs := command(t, "perf --json -n 20 -s 4K --scheme single "+flags)
		if err := os.WriteFile(path, []byte(out), 0o600); err != nil || code != exitOK {
			t.Fatal(code, errs, err)
		}
		return path
	}
	a, again, slow := measure(""), measure(""), measure("--nic-speed 10G")
	if _, out, _ := command(t, "compare "+a+" "+again); strings.Contains(out, "soft NIC") {
		t.Errorf("measured alike:\n%s", out)
	}
	_, out, _ := command(t, "compare "+a+" "+slow)
	out = strings.Join(strings.Fields(out), " ") // lines break where the terminal and the names of files say
	if strings.Count(out, "2 soft NICs of 4 queue pairs") != 2 || !strings.Contains(out, "(10 Gbit/s") {
		t.Errorf("with slower NICs:\n%s", out)
	}
}

// TestMaxRegression fails for what is worse by more than was allowed, and for what the new side
// lacks: a difference that may be chance is none, and less latency is better.
func TestMaxRegression(t *testing.T) {
	const back = "testdata/compare/new.json testdata/compare/old.json"
	for args, want := range map[string]string{
		"--max-regression 10 " + sides: "write, lat, 8 B, single, 1 QP: worse by 16.7 %, more than",
		"--max-regression 17 " + sides: "64 KiB, spray, 8 QPs: not in testdata/compare/new.json, or failed",
		"--max-regression 10 " + back:  "write, bw, 4 KiB, single, 1 QP: worse by 16.7 %, more than",
		"--max-regression 0 " + back:   "write, bw, 4 KiB, single, 1 QP: worse by 16.7 %, more than",
		back:                           "",
	} {
		code, out, errs := command(t, "compare "+args)
		if (code == exitOK) != (want == "") || !strings.Contains(errs, want) ||
			strings.Contains(errs, "%!") || !strings.Contains(out, "geometric mean") {
			t.Errorf("%s: exit %d: %s\n%s", args, code, errs, out)
		}
	}
}

// TestCompareTies: the chance that a difference is chance is at most 1, and the same in both
// directions, whatever the sides.
func TestCompareTies(t *testing.T) {
	for _, sides := range [][2][]float64{
		{{1, 1}, {2}}, {{1, 2}, {1}}, {{1, 1, 1, 2}, {1, 2}}, {{1, 2, 1, 2}, {1, 2, 1}},
		{{1, 1, 1, 1, 1, 1}, {2}},
	} {
		there, back := compareCell(cellKey{}, sides[0], sides[1]), compareCell(cellKey{}, sides[1], sides[0])
		if there.P != back.P || there.P <= 0 || there.P > 1 || there.Significant {
			t.Errorf("%v: p is %v and %v, significant: %v", sides, there.P, back.P, there.Significant)
		}
	}
}

// TestMaxRegressionOfNothing refuses what is no percentage, and sides without a common cell.
func TestMaxRegressionOfNothing(t *testing.T) {
	for _, value := range []string{"nan", "inf", "-1", "10%"} {
		if code, _, errs := command(t, "compare --max-regression="+value+" "+sides); code != exitUsage {
			t.Errorf("%s: exit %d: %s", value, code, errs)
		}
	}
	all := filepath.Join(t.TempDir(), "other.json")
	text := `{"tool":"ibverbx perf","parameters":{},"results":[{"op":"read","mode":"bw","size_bytes":8,` +
		`"messages":1,"messages_per_second":1}]}`
	if err := os.WriteFile(all, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := command(t, "compare testdata/compare/old.json "+all)
	if code != exitFailed || !strings.Contains(errs, "no cell in common") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// TestCompareBadFiles says of each file what is wrong with it.
func TestCompareBadFiles(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"":                            "no cell was measured: want what \"ibverbx perf --json\" writes",
		"size GB/s\n":                 "invalid character",
		`{"tool":"ibverbx perftest"}`: `a document of "ibverbx perftest": want one of`,
		`{"tool":"ibverbx perf","results":[{"failed":true,"messages":3}]}`: "no cell was measured",
		`{"tool":"ibverbx perf","results":[`:                               "unexpected EOF",
	} {
		file := filepath.Join(dir, "x.json")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		code, out, errs := command(t, "compare "+file+" testdata/compare/old.json")
		if code != exitFailed || out != "" || !strings.Contains(errs, file+": ") ||
			!strings.Contains(errs, want) {
			t.Errorf("%q: exit %d, stdout %q, stderr %q", text, code, out, errs)
		}
	}
	code, _, errs := command(t, "compare x y")
	if code != exitFailed || !strings.Contains(errs, "no such file") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// TestCompareWithItself compares what perf writes with itself: no cell differs or is left over.
func TestCompareWithItself(t *testing.T) {
	_, out, _ := command(t, "perf --json"+quick)
	file := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(file, []byte(out+out), 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, errs := command(t, "compare --json "+file+" "+file)
	var all comparisons
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != exitOK || len(all.Cells) != 6 ||
		len(all.OnlyOld)+len(all.OnlyNew) > 0 || all.Geomean["gb_per_second"] != 0 {
		t.Errorf("exit %d: %s: %v\n%s", code, errs, err, out)
	}
	for _, c := range all.Cells {
		if c.Significant || c.Delta != 0 || c.Old <= 0 {
			t.Errorf("%+v", c)
		}
	}
}

// TestCSV reads rows of both modes.
func TestCSV(t *testing.T) {
	for args, want := range map[string]map[string]string{
		"": {"layer": "qp", "op": "write", "size_bytes": "64", "scheme": "single", "messages": "360",
			"bytes": "23040", "p50_ns": "", "failed": "false", "error": ""},
		" --mode lat": {"mode": "lat", "rails": "1", "messages": "360"},
	} {
		code, out, errs := command(t, "perf --csv -s 64 -n 360 --samples 6 -t 4"+args)
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		if err != nil || code != exitOK || errs != "" || len(rows) != 4 {
			t.Fatalf("exit %d: %s: %v\n%s", code, errs, err, out)
		}
		value := func(key string) string { return rows[1][slices.Index(rows[0], key)] }
		for key, v := range want {
			if value(key) != v {
				t.Errorf("%s: %s is %q, want %q", args, key, value(key), v)
			}
		}
		if lat := args != ""; value("percent") == "" || lat != (value("p50_ns") != "") {
			t.Errorf("%s: %q", args, rows)
		}
	}
	code, _, errs := command(t, "perf --csv --json")
	if code != exitUsage || !strings.Contains(errs, "can't be used") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
