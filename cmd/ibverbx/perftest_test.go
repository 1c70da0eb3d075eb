package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"

	"ibverbx/cmd/ibverbx/internal/perftest"
	"ibverbx/verbs/rdmacore"
)

// perftestPair runs a test between two ends over roce.
func perftestPair(t *testing.T, test, server, client string) (out, outB string) {
	t.Helper()
	waiting, address := listening(t,
		"perftest "+test+" --listen=127.0.0.1:0 --provider roce -d 127.0.0.41 "+server)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := command(t,
		"perftest "+test+" --provider roce -d 127.0.0.42 127.0.0.1 -p "+port+" "+client)
	codeB, outB, errsB := waiting.wait(t)
	if code != exitOK || codeB != exitOK {
		t.Fatalf("%s: client: exit %d, %s\n%s\nserver: exit %d, %s\n%s", test, code, errs, out, codeB, errsB,
			outB)
	}
	return out, outB
}

// TestPerftest shows what the two ends of each kind of test print.
func TestPerftest(t *testing.T) {
	for _, tt := range []struct {
		test, flags  string
		both, server string // of both ends, and of the server alone
	}{
		{"ib_write_bw", "-n 20 -q 2 -F -N -c RC", "40", "as the client says"},
		{"ib_read_bw", "-n 20 -s 1000", "up to 20 messages outstanding", "as the client says"},
		{"ib_send_bw", "-n 20 --report_gbits", "Gbit/s", "Mmsg/s"},
		{"ib_write_lat", "-n 20 -s 8", "half of the time from one message to the next", "p99.9 µs"},
		{"ib_read_lat", "-n 20", "from one message to the next", "NOT verified"},
		{"ib_send_lat", "-n 20 -s 64", "64 B", "median µs"},
	} {
		out, outB := perftestPair(t, tt.test, tt.flags, tt.flags)
		for _, want := range []string{tt.both, "which is perftest 6.06", "NOT verified"} {
			if !strings.Contains(out, want) || !strings.Contains(outB, want) {
				t.Errorf("%s: no %q in\n%s\nor in\n%s", tt.test, want, out, outB)
			}
		}
		if !strings.Contains(outB, tt.server) {
			t.Errorf("%s: no %q in\n%s", tt.test, tt.server, outB)
		}
	}
}

// TestPerftestJSON reads the documents of both ends.
func TestPerftestJSON(t *testing.T) {
	out, outB := perftestPair(t, "ib_send_bw", "-n 20 -s 300 --json", "-n 20 -s 300 --json")
	for _, text := range []string{out, outB} {
		var doc struct {
			Tool, Version, Test string
			OK, Client          bool
			Path                int `json:"path_mtu_bytes"`
			Peer                struct{ Version string }
			Results             []map[string]any
		}
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if doc.Tool != "ibverbx perftest" || !doc.OK || doc.Test != "ib_send_bw" ||
			doc.Client != (text == out) ||
			doc.Path == 0 || doc.Peer.Version != perftest.Version || len(doc.Results) != 1 ||
			doc.Results[0]["size_bytes"] != 300.0 || doc.Results[0]["messages"] != 20.0 {
			t.Errorf("%s", text)
		}
	}
	code, out, _ := command(t, "perftest ib_send_bw --json --provider roce -d 127.0.0.43 127.0.0.1:1")
	if code != exitFailed || !strings.Contains(out, `"results": []`) || !strings.Contains(out, "refused") {
		t.Errorf("exit %d\n%s", code, out)
	}
}

// TestPerftestRefuses says by name what perftest can do and this end cannot.
func TestPerftestRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"ib_atomic_bw":                           "is not among the tests that can be measured here",
		"write_bw":                               `"write_bw" is not among the tests`,
		"ib_write_bw -R":                         "unknown flag -R\nTry ibverbx perftest --help",
		"ib_write_bw -c UD":                      `--connection must be one of "RC" but got "UD"`,
		"ib_write_lat -q 2":                      "latencies are measured on one queue pair",
		"ib_send_bw -b":                          "unknown flag -b",
		"ib_send_lat -n 1":                       "a latency is the time between two messages",
		"ib_send_bw -a":                          "unknown flag -a",
		"ib_send_bw -s 0":                        "--size 0",
		"ib_send_bw -s 4E":                       "want a whole number with K, M, G or T",
		"ib_send_bw -s 2G":                       "--size 2147483648: must be 1 to 1073741824",
		"ib_send_bw -n 0":                        "--iters 0: must be 1 to 100000000",
		"ib_send_bw -q 16384 -s 1M":              "takes more than 4 GiB",
		"ib_send_bw -t 99999":                    "--tx-depth 99999: must be 1 to 16384",
		"ib_send_bw --rx-depth=-1":               "--rx-depth -1: must be",
		"ib_send_bw --timeout 0s":                "--timeout 0",
		"ib_send_bw --provider soft":             "software NICs live inside one process",
		"ib_send_bw --provider moon":             "have soft",
		"ib_send_bw -p 70000":                    "--port 70000: must be 1 to 65535",
		"ib_send_bw --listen=:0 127.0.0.1":       "exclude each other",
		"ib_send_bw --udp-port 4":                "add --provider roce",
		"ib_send_bw --nics 2":                    "unknown flag --nics",
		"ib_send_bw -m 1000":                     `--mtu: "1000": must be 256`,
		"ib_send_bw --provider roce -d mlx5_0:1": "is neither an address nor an interface",
	} {
		code, out, errs := command(t, "perftest "+args)
		if code != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want %q", args, code, out, errs, want)
		}
	}
}

// TestPerftestByItself uses roce where the host has no RDMA NIC, and says so.
func TestPerftestByItself(t *testing.T) {
	setRealNICs(t, rdmacore.ErrNoDevice)
	waiting, address := listening(t, "perftest ib_write_bw --listen=127.0.0.1:0 -n 20")
	_, port, _ := net.SplitHostPort(address)
	code, out, errs := command(t, "perftest ib_write_bw -n 20 127.0.0.1:"+port)
	codeB, _, errsB := waiting.wait(t)
	if code != exitOK || codeB != exitOK || !strings.Contains(errs, roceNote) ||
		!strings.Contains(errsB, roceNote) {
		t.Errorf("client: exit %d, %s\n%s\nserver: exit %d, %s", code, errs, out, codeB, errsB)
	}
	// Two processes of a host have one address, and of them one can have the port of RoCEv2.
	if !strings.Contains(errs+errsB, "only another ibverbx finds it") {
		t.Errorf("client: %s\nserver: %s", errs, errsB)
	}
}

// TestPerftestInterrupted ends an end that waits.
func TestPerftestInterrupted(t *testing.T) {
	waiting, _ := listening(t,
		"perftest ib_write_bw --listen=127.0.0.1:0 --provider roce -d 127.0.0.44")
	waiting.cancel()
	if code, _, errs := waiting.wait(t); code != exitInterrupted {
		t.Errorf("exit %d: %s", code, errs)
	}
	// A peer that connects and says nothing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if nc, err := l.Accept(); err == nil {
			cancel()
			<-t.Context().Done()
			_ = nc.Close()
		}
	}()
	var stdout, stderr bytes.Buffer
	args := "perftest ib_write_bw --provider roce -d 127.0.0.44 " + l.Addr().String()
	code := run(&console{ctx: ctx, out: &stdout, err: &stderr}, strings.Fields(args))
	if code != exitInterrupted {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}
