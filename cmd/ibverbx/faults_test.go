package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ibverbx/cmd/ibverbx/internal/bench"
)

// struckRuns are runs in which a fault strikes each of three columns, and what is to be read of it.
var struckRuns = []struct {
	args, fault, what string
	firstError        string // of an end, in words
	action            string
}{
	{"", "fail-fragment@msg=10", "fragments failed on soft", "RETRY_EXC_ERR: transport retries exceeded",
		bench.ActionReset},
	{"--op write-imm", "lose-ack@msg=10", "fragments lost their acknowledgement on soft",
		"RETRY_EXC_ERR: transport", bench.ActionReset},
	{"--op send", "fail-recv@msg=10", "receives failed on soft", "LOC_PROT_ERR: local protection error",
		bench.ActionReset},
	{"", "kill-qp@msg=10,rail=0", "soft0 qp 17 went to ERR (end a)", "WR_FLUSH_ERR: flushed",
		bench.ActionReset},
	{"--op write-imm", "kill-qp@end=b,msg=10", "qp 17 went to ERR (end b)", "_ERR: ", bench.ActionReset},
	{"", "nic-down@msg=10", "soft0 failed permanently (end a)", "device gone", bench.ActionRebuilt},
	{"--op send", "nic-down@msg=10,for=300ms", "soft0 failed for 300ms (end a)", "device gone",
		bench.ActionReset},
	{"--op write-imm", "link-down@msg=10", "link of soft0 went down permanently (end a)",
		"RETRY_EXC_ERR: transport", bench.ActionRebuilt},
	{"--mode lat --op send", "fail-fragment@msg=10", "fragments failed on soft", "RETRY_EXC_ERR: transport",
		bench.ActionReset},
	{"--op fetch-add", "kill-qp@msg=10", "went to ERR (end a)", "WR_FLUSH_ERR: flushed", bench.ActionReset},
}

const struckQuick = "perf -n 40 -t 16 --memory 1M "

func (r *struckRun) command() string {
	size := " -s 20000"
	if strings.Contains(r.args, "fetch-add") {
		size = ""
	}
	return struckQuick + r.args + size + " --fault " + r.fault
}

type struckRun struct{ args, fault string }

// completionsLine is a sum of completions: accepted, successful, failed, flushed.
var completionsLine = regexp.MustCompile(
	`end [ab] (?:sends|receives): ([\d,]+) accepted = ([\d,]+) successful ` +
		`\+ ([\d,]+) failed \+ ([\d,]+) flushed`)

// TestFaultsInText reads what is printed for each kind of fault: what happened in each column, and
// how the run continued.
func TestFaultsInText(t *testing.T) {
	for _, tt := range struckRuns {
		t.Run(tt.fault+tt.args, func(t *testing.T) {
			t.Parallel() // links take their time
			code, out, errs := command(t, (&struckRun{tt.args, tt.fault}).command())
			if code != exitOK || errs != "" {
				t.Fatalf("exit %d, stderr %q\n%s", code, errs, out)
			}
			blocks := strings.Split(out, "\n* ")
			if len(blocks) != 5 { // the table, three columns, and the note
				t.Fatalf("%d parts in\n%s", len(blocks), out)
			}
			if stars := strings.Count(blocks[0], "*"); stars != 3 {
				t.Errorf("%d figures are marked, want 3:\n%s", stars, blocks[0])
			}
			if !strings.HasPrefix(blocks[4], "3 failures asked for with --fault: every promise was kept, "+
				"and the run went on") {
				t.Errorf("note %q", blocks[4])
			}
			for i, scheme := range []string{"single", "spray", "dqplb"} {
				readBlock(t, blocks[i+1], scheme, tt.fault, tt.what, tt.firstError, tt.action)
			}
		})
	}
}

// readBlock reads what is printed of a column.
func readBlock(t *testing.T, block, scheme, fault, what, firstError, action string) {
	t.Helper()
	text := strings.Join(strings.Fields(block), " ")
	after := "both ends reset, and connected anew with new cards"
	if action == bench.ActionRebuilt {
		after = "did not come back: both ends closed, and made anew on the NICs that are left"
	}
	at := 0
	for _, want := range []string{
		scheme + ", ", "fault " + fault + ": ", "after message 10 of the column", "end a ", "end b ",
		"completions end ",
		"one for each request accepted since the ends were connected, in the order of posting",
		"data ", "after the fault ", after, " ms", "; then ", "every byte verified",
	} {
		next := strings.Index(text[at:], want)
		if next < 0 {
			t.Fatalf("%s: no %q, or not in its place, in\n%s", scheme, want, block)
		}
		at += next
	}
	for _, want := range []string{what, firstError, "what to do: "} {
		if !strings.Contains(text, want) {
			t.Errorf("%s: no %q in\n%s", scheme, want, block)
		}
	}
	sums := completionsLine.FindAllStringSubmatch(text, -1)
	if len(sums) == 0 {
		t.Errorf("%s: no sums in\n%s", scheme, block)
	}
	for _, m := range sums {
		var n [4]int
		for i := range n {
			_, _ = fmt.Sscan(strings.ReplaceAll(m[i+1], ",", ""), &n[i])
		}
		if n[0] == 0 || n[0] != n[1]+n[2]+n[3] {
			t.Errorf("%s: %s", scheme, m[0])
		}
	}
	for _, line := range strings.Split(block, "\n") {
		if len([]rune(line)) > defaultWidth {
			t.Errorf("%s: %d wide: %s", scheme, len([]rune(line)), line)
		}
	}
}

// TestFaultsInJSON reads the same as a document.
func TestFaultsInJSON(t *testing.T) {
	for _, tt := range struckRuns {
		if strings.HasPrefix(tt.fault, "link-down") || strings.Contains(tt.fault, "end=b") {
			continue // retries take their time, and the text describes them
		}
		t.Run(tt.fault+tt.args, func(t *testing.T) {
			t.Parallel()
			code, out, errs := command(t, (&struckRun{tt.args, tt.fault}).command()+" --json")
			var plain struct {
				OK      bool
				Error   *string
				Results []struct {
					Scheme   bench.Scheme
					Messages int
					Failed   bool
					Failure  *bench.Failure
					Recovery *bench.Recovery
				}
			}
			if err := json.Unmarshal([]byte(out), &plain); err != nil {
				t.Fatal(err)
			}
			if code != exitOK || errs != "" || !plain.OK || plain.Error != nil || len(plain.Results) != 3 {
				t.Fatalf("exit %d, stderr %q, %+v", code, errs, plain)
			}
			for _, r := range plain.Results {
				if r.Failed || r.Failure == nil || r.Recovery == nil || r.Messages < 40 {
					t.Fatalf("%s: %+v", r.Scheme, r)
				}
				if !r.Failure.Kept || len(r.Failure.Ends) != 2 || len(r.Failure.Faults) != 1 ||
					!strings.Contains(r.Failure.Faults[0].What, tt.what) {
					t.Errorf("%s: failure %+v", r.Scheme, r.Failure)
				}
				if rec := r.Recovery; rec.Action != tt.action || rec.Messages < r.Messages-10-40 ||
					rec.Verified != rec.Messages || rec.Seconds <= 0 {
					t.Errorf("%s: recovery %+v", r.Scheme, rec)
				}
			}
		})
	}
}

// TestFaultOfTheNextSize shows that the sizes after a failure are measured as usual, and that the
// fault is not described twice.
func TestFaultOfTheNextSize(t *testing.T) {
	code, out, errs := command(t, "perf -n 40 --memory 1M --sizes 2000,3000 --fault fail-fragment@msg=10")
	if code != exitOK || errs != "" || strings.Count(out, "\n    fault ") != 3 ||
		strings.Count(out, "after the fault") != 3 {
		t.Errorf("exit %d, stderr %q\n%s", code, errs, out)
	}
	if _, row, ok := strings.Cut(out, "\n   3000 B "); !ok ||
		strings.Contains(strings.SplitN(row, "\n", 2)[0], "*") {
		t.Errorf("no row without a mark for the second size:\n%s", out)
	}
}

// TestUnhurt checks that a fault that is survived is no failure, and that the report of a fault on
// an unused NIC says so.
func TestUnhurt(t *testing.T) {
	code, out, errs := command(t, "perf -s 20000 -n 40 --fault link-flap@for=2ms,msg=10 --op write-imm")
	if code != exitOK || errs != "" || !strings.Contains(out, "link of soft0 went down for 2ms") ||
		strings.Contains(out, "*") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	code, out, errs = command(t, "perf -s 20000 -n 40 --fault nic-down@nic=1,msg=10 --scheme single")
	text := strings.Join(strings.Fields(out), " ")
	if code != exitOK || errs != "" || !strings.Contains(text, "soft1 failed permanently (end a), which "+
		"this column does not use") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}

// TestTwiceTheSame checks that each of two equal faults is described.
func TestTwiceTheSame(t *testing.T) {
	const args = "perf -s 20000 -n 40 --scheme spray --fault kill-qp@msg=10 --fault kill-qp@msg=10"
	code, out, errs := command(t, args)
	if code != exitOK || errs != "" || strings.Count(out, "\n    fault ") != 2 ||
		!strings.Contains(out, "did not strike: soft0 qp 17") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	if _, out, _ = command(t, args+" --json"); strings.Contains(out, `"hits"`) {
		t.Errorf("hits of what strikes no requests:\n%s", out)
	}
}

// TestNothingLeft checks how a run ends that cannot continue, in text and as a document.
func TestNothingLeft(t *testing.T) {
	const args = "perf -s 20000 -n 40 --nics 1 --fault nic-down@msg=10"
	const why = "could not go on without soft0 (end a): end a has no other NIC"
	code, out, errs := command(t, args)
	if code != exitFailed || !strings.Contains(errs, why) ||
		!strings.Contains(errs, "could not complete after the injected fault nic-down@msg=10") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	text := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"failed failed failed", "soft0 failed permanently (end a)", "completions end a", "cause " + why,
		"device gone",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "every promise was kept") || strings.Contains(out, "*") {
		t.Errorf("what could not go on is praised:\n%s", out)
	}
	code, out, errs = command(t, args+" --json")
	var doc struct {
		OK      bool
		Error   string
		Results []struct {
			Failed   bool
			Failure  *bench.Failure
			Recovery *bench.Recovery
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if code != exitFailed || errs == "" || doc.OK || !strings.Contains(doc.Error, why) ||
		len(doc.Results) != 3 {
		t.Errorf("exit %d, stderr %q, %+v", code, errs, doc)
	}
	for _, r := range doc.Results {
		if !r.Failed || r.Failure == nil || r.Recovery != nil || !r.Failure.Kept {
			t.Errorf("%+v", r)
		}
	}
}

// TestWrap breaks sentences, and escapes control characters in them.
func TestWrap(t *testing.T) {
	got := strings.Join(wrap("one two  three\tfour aVeryLongWordIndeed \x1b[2J", 9), "|")
	if want := `one two|three|four|aVeryLongWordIndeed|\x1b[2J`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567",
		-1000: "-1,000", -100: "-100"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

// TestFirstErrors shows how first errors of every part are described.
func TestFirstErrors(t *testing.T) {
	for want, f := range map[string]bench.FirstError{
		"on rail 1 (x qp 3), RDMA_WRITE of message 7 of the round that failed, fragment 3 of 16, 512 KiB, " +
			"local 0x10, remote 0x20 R: w (vendor code 0x81) what to do: check": {
			Rail: 1, Device: "x", QPNum: 3, Opcode: "RDMA_WRITE", Message: 7, Part: "fragment", Fragment: 2,
			Fragments: 16,
			Length:    512 << 10, Local: 16, Remote: 32, Status: "R", Words: "w", Vendor: 0x81,
			Advice: "check",
		},
		"on the notify QP (x qp 0), SEND of message 7 of the round that failed, its notification w": {
			Notify: true, Device: "x", Opcode: "SEND", Message: 7, Part: "notification", Words: "w",
		},
		"first error, a receive kept for messages of the peer w": {
			Rail: -1, Message: -1, Part: "credit", Words: "w",
		},
		"first error, a receive kept to notice failures w": {
			Rail: -1, Message: -1, Part: "watch", Words: "w",
		},
		"first error, receive of message 2 of the round that failed w": {
			Rail: -1, Message: 2, Recv: true, Words: "w",
		},
		"send of message 2 of the round that failed, one of its fragments, the whole request of 64 B": {
			Rail: -1, Message: 2, Part: "fragment", Fragment: -1, Length: 64, Whole: true,
		},
		"send of message 2 of the round that failed, fragment 5": {
			Rail: -1, Message: 2, Part: "fragment", Fragment: 4,
		},
		"end a first error w": {Rail: -1, Message: -1, Words: "w"},
	} {
		var out strings.Builder
		table := newPerfTable(&out, false)
		table.end(&bench.EndFailure{End: "a", Error: &f})
		if got := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
