package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// Collective calls are measured between PEs of this process: a table, or a document.
func TestPerfCollective(t *testing.T) {
	code, out, errs := command(t, "perf --layer shmem --op reduce-scatter --pes 3 -s 24:96 -n 2")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != exitOK || errs != "" || len(lines) != 6 ||
		lines[0] != "shmem: reduce-scatter of float32 between 3 PEs in this process, over software NICs" {
		t.Fatalf("exit %d, %q, %q", code, out, errs)
	}
	for i, size := range []string{"24 B", "48 B", "96 B"} {
		if row := strings.Fields(lines[3+i]); strings.Join(row[:3], " ") != size+" 2" || len(row) != 9 {
			t.Errorf("row %q, want %s and 2 calls", lines[3+i], size)
		}
	}
	code, out, errs = command(t, "perf --layer shmem --op all-reduce -s 8 -n 3 --json")
	var doc collectiveReport
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != exitOK || !doc.OK || doc.PEs != 4 ||
		doc.Op != "all-reduce" || len(doc.Results) != 1 || doc.Results[0].Calls != 3 ||
		doc.Results[0].Bytes != 8 {
		t.Errorf("exit %d, %v, %+v, %q", code, err, doc, errs)
	}
}

// Flags that change nothing about a collective call are refused.
func TestPerfCollectiveRefusals(t *testing.T) {
	const call = "perf --layer shmem --op all-reduce "
	for args, want := range map[string]string{
		"perf --op all-reduce":          "--op all-reduce is of --layer shmem",
		"perf --pes 3":                  "--pes goes with collective calls",
		call + "-t 4":                   "--tx-depth does not go with --op all-reduce",
		call + "--listen":               "--listen does not go with --op all-reduce",
		call + "--provider roce":        "--provider with --op all-reduce is for the processes of a job",
		call + "somewhere":              "--op all-reduce takes no HOST",
		call + "--pes 0":                "--pes 0: must be 1 to 64",
		"perf --layer shmem --op sorts": "fetch-add, all-reduce, reduce-scatter",
	} {
		code, out, errs := command(t, args)
		if code != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %q, %q", args, code, out, errs)
		}
	}
}
