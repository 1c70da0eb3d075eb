package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
)

const quick = " -n 20 --memory 256K --sizes 64,20000"

// wantOutput runs the command, which must go well and print certain texts.
func wantOutput(t *testing.T, args string, want ...string) {
	t.Helper()
	code, out, errs := command(t, args)
	if code != exitOK || errs != "" {
		t.Errorf("ibverbx %s: exit %d: %s", args, code, errs)
	}
	for _, s := range want {
		if !strings.Contains(out, s) && !strings.Contains(folded(out), s) {
			t.Errorf("ibverbx %s: no %q in\n%s", args, s, out)
		}
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(line) - 1; n > 80 && !strings.Contains(args, " -v") {
			t.Errorf("ibverbx %s: a line of %d columns: %s", args, n, line)
		}
	}
}

// folded is a text in one line.
func folded(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestPerfTable(t *testing.T) {
	for args, want := range map[string][]string{
		"perf" + quick: {
			"RDMA write bandwidth between two ends in this process, each with 2 soft NICs of 4 queue pairs",
			"every byte verified", " single, 1 QP ", " spray, 8 QPs ", " dqplb, 8 QPs ",
			"     64 B ", "messages verified byte for byte",
		},
		"perf --op write-imm --mode lat" + quick: {"half of a ping-pong", "median µs", "p99.9 µs"},
		"perf -s 1M --nics 2 --failover --fault nic-down@nic=1,msg=30,for=20ms -D 60ms": {
			"posted again on others", "lost by end a"},
		"perf --report-gbits -m 256 -s 64K -n 20": {"Gbit/s"},
		"perf --op read --mode lat -e" + quick: {"from its post to its completion",
			"sleeping until events"},
		// The messages of a round have room beside one another here, or software NICs would write
		// to one place at the same time.
		"perf -b -v --no-verify --scheme dqplb -n 20 --memory 256K --sizes 64,8000": {"NOT verified",
			"both directions at once", "end a", "end b", "notify", "share"},
		"perf --op fetch-add -n 20":              {"Mmsg/s", "single, 1 QP", "8 B"},
		"perf --nic-speed 4Gbit,8Gbit" + quick:   {"(4 Gbit/s; 8 Gbit/s)"},
		"perf --nics 1 -q 1 --busy-poll" + quick: {"1 soft NIC of 1 queue pair", "polling"},
	} {
		wantOutput(t, args, want...)
	}
}

func TestPerfJSON(t *testing.T) {
	for _, mode := range []string{"bw", "lat"} {
		code, out, errs := command(t, "perf --json --op send --mode "+mode+quick)
		if code != exitOK || errs != "" {
			t.Fatalf("exit %d: %s", code, errs)
		}
		var doc struct {
			Tool, Version string
			Parameters    map[string]any
			Machine       bench.Machine
			Results       []map[string]any
			OK            bool
		}
		if err := json.Unmarshal([]byte(out), &doc); err != nil {
			t.Fatal(err)
		}
		if doc.Tool != "ibverbx perf" || doc.Version == "" || !doc.OK || doc.Machine.Cores == 0 ||
			doc.Machine.Go == "" || doc.Machine.CPU == "" {
			t.Errorf("incomplete: %+v", doc)
		}
		if doc.Parameters["op"] != "send" || doc.Parameters["iterations"] != 20.0 ||
			doc.Parameters["verify"] != true {
			t.Errorf("parameters %v", doc.Parameters)
		}
		if len(doc.Results) != 6 {
			t.Fatalf("%d results, want 6", len(doc.Results))
		}
		keys := []string{"size_bytes", "scheme", "messages", "bytes", "seconds", "gb_per_second",
			"messages_per_second", "verified_messages", "failed", "stats"}
		if mode == "lat" {
			keys = append(keys, "latency")
		}
		for _, r := range doc.Results {
			for _, key := range keys {
				if _, ok := r[key]; !ok {
					t.Errorf("%s: no %s in %v", mode, key, r)
				}
			}
		}
	}
}

// TestLayerTable shows what the table says of each layer.
func TestLayerTable(t *testing.T) {
	for args, want := range map[string][]string{
		"perf --layer transport --mode lat -s 64 -n 20": {
			"transport: active message latency between two ends in this process, each with 2 soft NICs of " +
				"4 queue pairs",
			"half of a ping-pong", "messages verified byte for byte",
		},
		"perf --layer transport --op put" + quick:     {"transport: put bandwidth", "GB/s"},
		"perf --layer transport --op fetch-add -n 20": {"transport: fetch-and-add rate", "Mmsg/s"},
		"perf --layer tagged -b -v" + quick:           {"tagged: tagged message bandwidth, both directions"},
		// Both ends on the same NICs, of which nothing is known.
		"perf --provider left --layer tagged --mode lat" + quick:         {"each with 2 left NICs"},
		"perf --provider left --layer shmem --nics 1 -q 2 -n 20 -s 1M":   {" dqplb, 2 QPs "},
		"perf --layer tagged --nic-speed 4Gbit" + quick:                  {"(4 Gbit/s)"},
		"perf --layer tagged --scheme single --nic-latency 20us" + quick: {"20µs away"},
		"perf --layer shmem --op put-signal --mode lat -s 64 -n 20":      {"shmem: put with signal latency"},
		"perf --layer shmem --op get" + quick:                            {"shmem: get bandwidth", "Mmsg/s"},
	} {
		wantOutput(t, args, want...)
	}
}

// TestJSONOfNothing shows that there is a document too where nothing could be measured.
func TestJSONOfNothing(t *testing.T) {
	for args, want := range map[string]string{
		"perf --json --provider left --connect 127.0.0.1:1": `refused: is "ibverbx perf --listen" running`,
		"perf --json --provider none --connect 127.0.0.1:1": "no NIC today",
		"perf --json --provider none":                       "no NIC today",
		"perf --json --op swim":                             "has write",
	} {
		code, out, errs := command(t, args)
		doc := failedDocument(t, out)
		if code == exitOK || doc.OK || doc.Interrupted || !strings.Contains(doc.Error, want) ||
			!strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, %+v, stderr %q", args, code, doc, errs)
		}
	}
}

// failed is what a document says of a run that failed.
type failed struct {
	Tool, Version, Error string
	OK, Interrupted      bool
	Results              []map[string]any
}

// failedDocument reads the document of a run without results.
func failedDocument(t *testing.T, text string) (doc failed) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	if doc.Tool != "ibverbx perf" || doc.Version == "" || doc.Results == nil || len(doc.Results) != 0 {
		t.Errorf("incomplete: %+v", doc)
	}
	return doc
}

// TestTableOfOther shows whose machine and clock stand above figures
// that another process has taken.
func TestTableOfOther(t *testing.T) {
	p := &bench.Params{Op: layers.Send, Mode: bench.Latency, NICs: 1, QPs: 1,
		Schemes: []bench.Scheme{bench.Single}, Verify: true}
	var out bytes.Buffer
	table := newPerfTable(&out, false)
	table.Start(p, &bench.Peer{End: "a", Machine: bench.Machine{CPU: "Their CPU", Clock: 7777},
		NICs: []string{"x"}, Own: []string{"y"}})
	if text := out.String(); !strings.Contains(text, "figures taken by end a: Their CPU") ||
		!strings.Contains(text, "7.777µs") {
		t.Errorf("got\n%s", text)
	}
	out.Reset()
	table.peer = nil
	table.footer(&bench.Report{Params: p})
	if strings.Contains(out.String(), "verified") {
		t.Errorf("nothing was measured, and the end is %q", out.String())
	}
}

// TestRepaired shows what NICs had to repair below the table, and with -v in each cell.
func TestRepaired(t *testing.T) {
	p := &bench.Params{Op: layers.Write, Mode: bench.Bandwidth, NICs: 1, QPs: 1,
		Schemes: []bench.Scheme{bench.Single}}
	row := []bench.Result{{Scheme: bench.Single, Messages: 1,
		Repairs: bench.EndRepairs{A: bench.Repairs{"resent_packets": 20, "timeouts": 1},
			B: bench.Repairs{"packet_seq_err": 3}}}}
	for _, verbose := range []bool{false, true} {
		var out bytes.Buffer
		table := newPerfTable(&out, verbose)
		table.Start(p, nil)
		table.Row(row)
		if cell := strings.Contains(out.String(), "resent_packets 20"); cell != verbose {
			t.Errorf("-v %t:\n%s", verbose, out.String())
		}
		out.Reset()
		table.footer(&bench.Report{Params: p, Results: append(row, row...)})
		for _, want := range []string{"end a: resent_packets 40, timeouts 2\n", "end b: packet_seq_err 6\n"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %q in\n%s", want, out.String())
			}
		}
	}
}

// TestBufferOfLongMessages shows the buffer that is used, which holds the longest message.
func TestBufferOfLongMessages(t *testing.T) {
	code, out, errs := command(t, "perf --memory 1K --sizes 1K,64K -n 10 --scheme single")
	if code != exitOK || !strings.Contains(folded(out), "64 KiB buffer, reused") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}
