package main

import (
	"encoding/json"
	"strings"
	"testing"

	"ibverbx/cmd/ibverbx/internal/bench"
)

// struckRuns are runs without failover in which a fault strikes each of three columns, and what is
// to be read of it.
var struckRuns = []struct{ args, fault, what, cause string }{
	{"", "kill-qp@msg=10,rail=0", "soft0 qp 17 went to ERR (end a)", "end a: "},
	{"--op write-imm", "kill-qp@end=b,msg=10", "qp 17 went to ERR (end b)", "end "},
	{"", "nic-down@msg=10", "soft0 failed permanently (end a)", "end a: "},
	{"--op send", "nic-down@msg=10,for=300ms", "soft0 failed for 300ms (end a)", "end a: "},
	{"--op write-imm", "link-down@msg=10", "link of soft0 went down permanently (end a)", "RETRY_EXC_ERR"},
	{"--mode lat --op send", "kill-qp@msg=10", "went to ERR (end a)", "end a: "},
	{"--op fetch-add", "kill-qp@msg=10", "went to ERR (end a)", "end a: "},
}

// TestFaultsEndTheColumn reads what is printed of each kind of fault, and the same as a document.
func TestFaultsEndTheColumn(t *testing.T) {
	t.Parallel() // links take their time
	for _, tt := range struckRuns {
		t.Run(tt.fault+tt.args, func(t *testing.T) {
			t.Parallel()
			args := "perf -n 40 -t 16 --memory 1M --sizes 20000,30000 " + tt.args + " --fault " + tt.fault
			if strings.Contains(args, "fetch-add") {
				args = strings.Replace(args, "--sizes 20000,30000", "", 1)
			}
			code, out, errs := command(t, args)
			if code != exitFailed || !strings.Contains(errs, "after the injected fault "+tt.fault) {
				t.Errorf("exit %d, stderr %q", code, errs)
			}
			blocks := strings.Split(out, "\n    fault ")
			if len(blocks) != 4 { // the table, and three columns
				t.Fatalf("%d parts in\n%s", len(blocks), out)
			}
			for _, block := range blocks[1:] {
				text := strings.Join(strings.Fields(block), " ")
				for _, want := range []string{tt.fault + ": ", tt.what, "after message 10 of the column",
					" cause ", tt.cause} {
					if !strings.Contains(text, want) {
						t.Errorf("no %q in\n%s", want, block)
					}
				}
			}
		})
	}
	_, out, _ := command(t, "perf -s 20000 -n 40 -t 16 --fault kill-qp@msg=10 --json")
	var doc struct {
		OK      bool
		Error   string
		Results []bench.Result
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.OK || len(doc.Results) != 3 ||
		!strings.Contains(doc.Error, "kill-qp@msg=10") {
		t.Fatalf("%v in\n%s", err, out)
	}
	for _, r := range doc.Results {
		if !r.Failed || len(r.Faults) != 1 || !r.Faults[0].Struck || !strings.Contains(r.Error, "end a: ") {
			t.Errorf("%+v", r)
		}
	}
}

// TestUnhurt checks that a fault that is survived is no failure, and that the report of a fault on
// an unused NIC says so.
func TestUnhurt(t *testing.T) {
	code, out, errs := command(t, "perf -s 20000 -n 40 --fault link-flap@for=2ms,msg=10 --op write-imm")
	if code != exitOK || errs != "" || !strings.Contains(folded(out), "link of soft0 went down for 2ms") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	code, out, errs = command(t, "perf -s 20000 -n 40 --fault nic-down@nic=1,msg=10 --scheme single")
	if code != exitOK || errs != "" || !strings.Contains(folded(out), "did not strike: this column does not "+
		"use NIC 1") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}

// TestFaultInASecondSize counts messages over all sizes: nothing has struck in the first one.
func TestFaultInASecondSize(t *testing.T) {
	code, out, errs := command(t, "perf --sizes 20000,30000 -n 40 -t 16 --scheme spray --failover "+
		"--fault kill-qp@msg=60")
	blocks := strings.Split(folded(out), " fault ")
	if code != exitOK || errs != "" || len(blocks) != 3 ||
		!strings.Contains(blocks[1], "has not struck: the column has not sent 60 messages") ||
		!strings.Contains(blocks[2], "after message 60 of the column") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}

// TestFaultTooLate checks that a run that ends before its fault is no success, in any format.
func TestFaultTooLate(t *testing.T) {
	for _, format := range []string{"", "--csv", "--json"} {
		code, out, errs := command(t, "perf -s 20000 -D 1ms --fault kill-qp@msg=1000000000 "+format)
		if code != exitFailed || !strings.Contains(errs, "--fault kill-qp@msg=1000000000 has not struck: ") ||
			format == "--json" && !strings.Contains(out, `"ok": false`) {
			t.Errorf("%s: exit %d, stderr %q, stdout\n%s", format, code, errs, out)
		}
	}
}

// TestTwiceTheSame checks that each of two equal faults is described.
func TestTwiceTheSame(t *testing.T) {
	code, out, errs := command(t, "perf -s 20000 -n 40 -t 16 --scheme spray --failover "+
		"--fault kill-qp@msg=10 --fault kill-qp@msg=10")
	if code != exitOK || errs != "" || strings.Count(out, "\n    fault ") != 2 ||
		!strings.Contains(folded(out), "did not strike: soft0 qp 17") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}
