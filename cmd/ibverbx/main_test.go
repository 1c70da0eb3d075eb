package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/alecthomas/kong"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

func TestMain(m *testing.M) {
	fabric := addTestProviders()
	code := m.Run()
	err := fabric.Close() // nothing may be open on it
	if code == 0 && err == nil {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// command runs the command with args, split at spaces.
func command(t *testing.T, args string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(&console{ctx: t.Context(), out: &stdout, err: &stderr}, strings.Fields(args))
	return code, stdout.String(), stderr.String()
}

func TestWrongFlags(t *testing.T) {
	for args, want := range map[string]string{
		"perf --scheme spray --nics 1 --qps 1": "--scheme spray needs at least two queue " +
			"pairs: use --qps 2 or --nics 2, or --scheme single",
		"perf --mode lat -b":        "drop -b, or use --mode bw",
		"perf --op fetch-add -s 64": "works on 8 bytes",
		"perf --op fetch-add -a":    "works on 8 bytes only",
		"perf --op swim": "have write, write-imm, read, send, " +
			"fetch-add, cmp-swap",
		"perf -s 64KB":                "write 64K (1024-based)",
		"perf -s 4K -s 8K":            "use --sizes with a list",
		"perf -s 4K -a":               "exclude each other",
		"perf --sizes 8K..4K":         "from small to large",
		"perf -n 5 -D 1s":             "give one of them",
		"perf -D soon":                "want a number with a unit",
		"perf --nic-speed fast":       "25Gbit",
		"perf --nic-speed 1G,2G,3G":   "lists 3 values for 2 NICs",
		"perf --fault boo":            "have fail-fragment",
		"perf --fault nic-down@nic=9": "an end has 2 NICs",
		"perf --scheme all,spray":     "--scheme all stands alone",
		"perf -e --busy-poll":         "exclude each other",
		"perf --provider moon":        "have soft",
		"perf --layer moon":           "have qp, transport, tagged, shmem",
		"perf --layer transport --op write": "--layer transport has am, put, put-poll, " +
			"get, fetch-add",
		"perf --layer tagged --kind zcopy": "--op send of --layer tagged has auto, " +
			"eager, rendezvous",
		"perf --layer shmem --endpoints 2":                   "use --layer transport or --layer tagged",
		"perf --layer transport -s 1M":                       "use --layer tagged, or --op put",
		"perf --layer transport --fault delay":               "use --layer qp, or drop --fault",
		"perf --mode rate":                                   "--mode bw shows the rate of --layer qp",
		"perf --kind zcopy":                                  "or drop --kind",
		"perf --endpoints 3":                                 "or drop --endpoints",
		"perf --endpoints 0 --layer transport":               "--endpoints 0: must be at least 1",
		"perf --listen --layer tagged":                       "--layer is for the connecting end to decide",
		"perf --connect h --layer shmem":                     "is measured between PEs of one process",
		"perf --layer transport --op put --kind short -s 4K": "--kind short takes at most 128 B",
		"perf --bogus":                                       "unknown flag --bogus",
		"perf here there":                                    "unexpected argument there",
		"perf here --listen":                                 "exclude each other",
		"perf here --connect there":                          "names the listening end twice",
		"perf -p 18600":                                      "it goes with --listen, --connect or HOST",
		"perf here:5 -p 18600":                               "names the port twice",
		"perf here -p 70000":                                 "--port 70000: must be 1 to 65535",
		"perf -n 0":                                          "--iters 0: must be at least 1",
		"perf -D 0":                                          "--duration 0s: must be positive",
		"perf -s -1":                                         `size "-1"`,
		"perf --sizes -1":                                    `size "-1"`,
		"perf -n -1":                                         "--iters -1: must be at least 1",
		"perf -q -1":                                         "--qps -1: must be 1 to",
		"perf -x 3": "--gid-index 3: port 1 of soft0 has the " +
			"entries 0 to 1",
		"perf -i 2":                              "--ib-port 2: soft0 has 1 port",
		"perf --tclass 256":                      "--tclass 256: must be 0 to 255",
		"perf -S 16":                             "--sl 16: must be 0 to 15",
		"perf -u 32":                             "--qp-timeout 32: must be 0 to 31",
		"perf --retry_count 8":                   "--retry-count 8: must be 0 to 7",
		"perf --rnr-retry 8":                     "--rnr-retry 8: must be 0 to 7",
		"perf -o 0":                              "--outs 0: must be 1 to 255",
		"perf -I 5000":                           "--inline-size 5000: must be 0 to 4096",
		"perf -I 64 --op read":                   "--inline-size is of what is sent or written",
		"perf -c UD":                             "queue pairs are RC",
		"perf --unit furlong":                    "have GB, Gbit, MiB",
		"perf --unit MiB --report_gbits":         "exclude each other",
		"perf --run_infinitely --json":           "use --duration",
		"perf --min-bw 5":                        "or bytes such as 11GB/s",
		"perf --max-lat 5us":                     "it goes with --mode lat",
		"perf --mode lat --min-bw 5G":            "use --max-lat",
		"perf --op fetch-add --min-bw 5G":        "have no bandwidth",
		"perf --listen --min-bw 5G":              "for the connecting end",
		"perf --samples 0":                       "--samples 0: must be at least 1",
		"perf --samples -2":                      "--samples -2: must be 1 to 1000",
		"perf --endpoints -2 --layer transport":  "--endpoints -2: must be 1 to 256",
		"perf --nics 0":                          "--nics 0: must be at least 1",
		"perf --nics -1":                         "--nics -1: must be 1 to",
		"perf --connect h --nics 0":              "--nics 0: must be at least 1",
		"perf --fragment 0":                      "--fragment 0: must be at least 1 byte",
		"perf -n":                                "--iters needs a value",
		"perf -s":                                "--size needs a value",
		"perf --op -v":                           "--op needs a value",
		"perf -D -b":                             "--duration needs a value",
		"devices --provider soft --nics 0":       "--nics 0: must be 1 to 64",
		"perf -R":                                "connected over TCP",
		"perf --rdma_cm":                         "connected over TCP",
		"perf -bR":                               "connected over TCP",
		"perf -r 512":                            "--tx-depth",
		"perf -l 16":                             "posted together by themselves",
		"perf --limit_bw 5":                      "--min-bw",
		"perf -w 5":                              "--min-bw",
		"perf -T 104":                            "--tclass",
		"perf -H":                                "percentiles",
		"perf -A FETCH_AND_ADD":                  "--op fetch-add",
		"perf --write_with_imm":                  "--op write-imm",
		"perf --out_json":                        "--json",
		"perf --use_cuda=0":                      "host memory",
		"perf -G":                                "unknown flag -G: see ibverbx perf --help",
		"perf --library x":                       "use --provider rdmacore",
		"perf -d mlx5_0":                         "use --provider rdmacore",
		"perf --provider rdmacore --fault delay": "are for software NICs",
		"perf --mtu 1500":                        "must be 256, 512, 1024, 2048 or 4096",
		"perf --gid-index 256":                   "must be 0 to 255",
		"perf --listen -s 4K":                    "--size is for the connecting end to decide",
		"perf --listen --op read":                "--op is for the connecting end to decide",
		"perf --listen --nics 2":                 "--nics is for the connecting end to decide",
		"perf --listen=h:99999":                  "ports are 0 to 65535",
		"perf --listen 18600":                    "--listen=:18600",
		"perf --connect 18600":                   "a port has a colon before it",
		"perf --timeout 5s":                      "it goes with --listen or --connect",
		"perf --listen --timeout 0":              "--timeout 0",
		"perf --connect h --timeout 0s":          "--timeout 0",
		"perf --listen --connect h":              "exclude each other",
		"perf --listen --provider soft":          "software NICs live inside one process",
		"perf --listen -d a,,b":                  "an entry is empty",
		"perf --connect h --provider soft":       "software NICs live inside one process",
		"perf --connect :99":                     "want HOST or HOST:PORT",
		"perf --connect h --fault delay":         "software NICs, which live inside one process",
		"perf --listen --fault kill-qp": "software NICs, which live inside one " +
			"process: drop it, or drop --listen",
		"perf --listen --nic-latency 5us": "software NICs, which live inside one " +
			"process: drop it, or drop --listen",
		"perf --fault kill-qp@":              "kill-qp understands rail, msg, end",
		"perf --fault kill-qp@rail=1,rail=2": "rail is given twice",
		"perf --connect h --nic-speed 5G":    "software NICs, which live inside one process",
		"perf --connect h --op swim":         "have write, write-imm",
		"perf --connect h --mode lat -b":     "drop -b",
		"devices --provider soft --nics 65":  "must be 1 to 64",
		"devices --nics 2":                   "use --provider soft",
		"devices -d ^":                       "--device: ",
		"devices --provider moon":            "have soft",
		"frobnicate":                         "unexpected argument frobnicate",
	} {
		code, out, errs := command(t, args)
		if strings.Contains(args, "--json") {
			failedDocument(t, out)
			out = ""
		}
		if code != exitUsage || !strings.Contains(errs, want) || out != "" {
			t.Errorf("ibverbx %s: exit %d, stdout %q, stderr %q; want exit 2, nothing, and %q", args, code,
				out, errs, want)
		}
	}
}

func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"":             "perf",
		"--help":       "devices",
		"perf --help":  "ibverbx perf --fault nic-down@nic=1,msg=500",
		"devices -h":   "--provider",
		"version -h":   "Usage: ibverbx version",
		"perf -h":      "ibverbx perf --listen -d mlx5_0,mlx5_1",
		"perf -n 3 -h": "link-flap",
		"perf  -h":     "4 GiB of memory, most of it pinned",
		"perf    -h":   "for [20ms]",
		"perf     -h":  "more than 16 failures",
		"perf -b -h":   "transport  put-poll",
		"perf -a -h":   "between two processes they stand alone",
		"perf   -h":    "--iters and --tx-depth count messages over all queue pairs",
	} {
		code, out, errs := command(t, args)
		folded := strings.Join(strings.Fields(out), " ")
		if code != exitOK || !strings.Contains(out, want) && !strings.Contains(folded, want) || errs != "" {
			t.Errorf("ibverbx %s: exit %d, stderr %q, stdout without %q:\n%s", args, code, errs, want, out)
		}
	}
}

const quick = " -n 20 --memory 256K --sizes 64,20000"

func TestPerfTable(t *testing.T) {
	for args, want := range map[string][]string{
		"perf" + quick: {
			"RDMA write bandwidth between two ends in this process, each with 2 soft NICs of 4 queue pairs",
			"every byte verified", "copy()", " single, 1 QP ", " spray, 8 QPs ", " dqplb, 8 QPs ",
			"     64 B ", "messages verified byte for byte",
		},
		"perf --op write-imm --mode lat" + quick: {"half of a ping-pong", "median µs", "p99.9 µs"},
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
		code, out, errs := command(t, args)
		if code != exitOK || errs != "" {
			t.Errorf("ibverbx %s: exit %d: %s", args, code, errs)
		}
		for _, s := range want {
			if !strings.Contains(out, s) {
				t.Errorf("ibverbx %s: no %q in\n%s", args, s, out)
			}
		}
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
		} else {
			keys = append(keys, "copy_gb_per_second", "ratio_to_copy")
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
		"perf --layer transport --mode lat" + quick: {
			"transport: active message latency between two ends in this process, each with 2 soft NICs of " +
				"4 queue pairs",
			"half of a ping-pong", "×QP", "short", "zcopy", "messages verified byte for byte",
		},
		"perf --layer transport --op put" + quick: {"transport: put bandwidth", "copy()",
			" dqplb, 8 QPs "},
		"perf --layer transport --op fetch-add -n 20": {"transport: fetch-and-add rate", "one QP",
			"ns/msg", "×QP"},
		"perf --layer transport --op put-poll --mode lat -n 5": {"half of a ping-pong", "256 KiB"},
		"perf --layer tagged --mode rate -v" + quick: {"tagged: tagged message rate", "one QP",
			"eager", "active messages: "},
		"perf --layer tagged -b --mode rate --endpoints 3 -t 16" + quick: {
			"over 3 endpoints of one worker each, between", "both directions at once",
			"up to 16 messages outstanding on each endpoint", "×1 ep",
		},
		// Both ends on the same NICs, of which nothing is known.
		"perf --provider left --layer transport --mode lat" +
			quick: {"each with 2 left NICs of 4 queue pairs", "×QP"},
		"perf --provider left --layer tagged --mode rate" + quick:           {"ns/msg"},
		"perf --provider left --layer shmem --nics 1 -q 2 -n 20 -s 1M":      {" dqplb, 2 QPs "},
		"perf --layer transport --nic-speed 4Gbit --mode rate" + quick:      {"(4 Gbit/s)", "zcopy"},
		"perf --layer transport --scheme single --nic-latency 20us" + quick: {"20µs away"},
		"perf --layer shmem --op put-signal --mode lat -s 64 -n 20": {"shmem: put with signal latency",
			"half of a ping-pong"},
		"perf --layer shmem --op get" + quick: {"shmem: get bandwidth",
			"×copy"},
	} {
		code, out, errs := command(t, args)
		if code != exitOK || errs != "" {
			t.Errorf("ibverbx %s: exit %d: %s", args, code, errs)
		}
		for _, s := range want {
			if !strings.Contains(out, s) {
				t.Errorf("ibverbx %s: no %q in\n%s", args, s, out)
			}
		}
	}
}

// TestLayerJSON shows that the document of every layer, operation and mode says what was measured,
// and beside what.
func TestLayerJSON(t *testing.T) {
	for _, s := range layers.Shapes() {
		for _, mode := range []string{"bw", "lat", "rate"} {
			if s.LatencyOnly && mode != "lat" {
				continue
			}
			args := fmt.Sprintf("perf --json --layer %s --op %s --mode %s -n 20 --memory 256K", s.Layer, s.Op,
				mode)
			if !s.Atomic {
				args += " --sizes 64,20000"
			}
			code, out, errs := command(t, args)
			if code != exitOK || errs != "" {
				t.Fatalf("%s: exit %d: %s", args, code, errs)
			}
			var doc bench.Report
			if err := json.Unmarshal([]byte(out), &doc); err != nil {
				t.Fatalf("%s: %v", args, err)
			}
			if p := doc.Params; !doc.OK || p.Layer != s.Layer || p.Op != s.Op ||
				string(p.Mode) != mode || p.Endpoints != 1 {
				t.Errorf("%s: parameters %+v", args, p)
			}
			if want := 3 * len(doc.Params.Sizes); len(doc.Results) != want {
				t.Fatalf("%s: %d results, want %d", args, len(doc.Results), want)
			}
			for _, r := range doc.Results {
				copied := mode == "bw" && !s.Atomic
				if r.Layer != s.Layer || r.Messages < 20 || r.Verified <= r.Messages ||
					(r.Latency != nil) != (mode == "lat") ||
					(r.RatioToCopy > 0) != copied || (r.Comparison != nil) == copied || r.Transport == nil {
					t.Errorf("%s: %+v", args, r)
				}
			}
		}
	}
}

// TestJSONOfNothing shows that there is a document too where nothing could be measured.
func TestJSONOfNothing(t *testing.T) {
	for args, want := range map[string]string{
		"perf --json --provider left --connect 127.0.0.1:1": "refused",
		"perf --json --provider none --connect 127.0.0.1:1": "no NIC today",
		"perf --json --provider none":                       "no NIC today",
		"perf --json --op swim":                             "have write",
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

// TestHarmless shows that no terminal obeys what an error repeats, and that only the first line is
// where this command's lines begin.
func TestHarmless(t *testing.T) {
	c := &console{err: &bytes.Buffer{}}
	c.complain("ibverbx: %s\n", reason(errors.New("a\x1b[2J\u009b31m\u202e é\nibverbx: b\r")))
	if got, want := fmt.Sprint(c.err),
		`ibverbx: a\x1b[2J\u009b31m\u202e é`+"\n  ibverbx: b\\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestTableOfOther shows whose machine and clock stand above figures that another process has
// taken.
func TestTableOfOther(t *testing.T) {
	p := &bench.Params{Op: bench.Send, Mode: bench.Latency, NICs: 1, QPs: 1,
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

// ailing is a device of which not everything can be asked.
type ailing struct{ verbs.Device }

func (ailing) Query() (verbs.DeviceAttr, error) { return verbs.DeviceAttr{Ports: 2}, nil }
func (d ailing) QueryPort(n int) (verbs.PortAttr, error) {
	if n == 1 {
		return verbs.PortAttr{}, errors.New("port 1 is silent")
	}
	attr, err := d.Device.QueryPort(1)
	attr.GIDTableLen = 4
	return attr, err
}
func (d ailing) QueryGID(_, i int) (verbs.GIDEntry, error) {
	switch i {
	case 1:
		return verbs.GIDEntry{}, nil // a hole
	case 2:
		return verbs.GIDEntry{}, errors.New("GID 2 is silent")
	}
	return d.Device.QueryGID(1, i/2)
}

// TestAilingDevice shows that what can be asked is shown, and what cannot is said.
func TestAilingDevice(t *testing.T) {
	code, out, errs := command(t, "devices --provider ailing")
	if code != exitFailed || !strings.Contains(errs, "port 1 is silent") ||
		!strings.Contains(errs, "GID 2 is silent") || strings.Count(out, "RoCE") != 2 ||
		!strings.Contains(out, "ACTIVE") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}

// TestUnopenedDevice shows that a NIC that cannot be opened is named, and does not hide the others.
func TestUnopenedDevice(t *testing.T) {
	code, out, errs := command(t, "devices --provider partial")
	if code != exitFailed || !strings.Contains(errs, "mlx5_7: permission denied") ||
		!strings.Contains(out, "soft0") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	_, out, _ = command(t, "devices --json --provider partial")
	var doc deviceList
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Devices) != 1 ||
		!strings.Contains(doc.Reason, "mlx5_7") {
		t.Errorf("%v: %+v", err, doc)
	}
	code, out, errs = command(t, "perf --provider partial"+quick)
	if code != exitOK || !strings.Contains(errs, "mlx5_7: permission denied; going on without it") ||
		strings.Count(errs, "\n") != 1 || !strings.Contains(out, "messages verified") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
}

// TestNoRealNICs shows when it is said that there are none.
func TestNoRealNICs(t *testing.T) {
	for _, tt := range []struct {
		why  error
		says bool
	}{
		{rdmacore.ErrNoLibrary, true},
		{rdmacore.ErrNoDevice, true},
		{fmt.Errorf("open devices: the filter leaves none: %w", rdmacore.ErrNoDevice), true},
		{syscall.EACCES, false}, // there is one, which cannot be opened
	} {
		before := providers
		providers = []provider{{realNICs, func(nicOptions) (verbs.Provider, error) { return nil, tt.why }}}
		code, out, errs := command(t, "devices")
		_, filtered, _ := command(t, "devices -d mlx5_0")
		providers = before
		if code != exitFailed || strings.Contains(out, "No real NICs.") != tt.says || errs == "" ||
			strings.Contains(filtered, "No real NICs.") {
			t.Errorf("%v: exit %d, stdout %q, with a filter %q", tt.why, code, out, filtered)
		}
	}
}

func TestDevices(t *testing.T) {
	code, out, errs := command(t, "devices --provider soft --nics 2")
	if code != exitOK || errs != "" || strings.Count(out, "ACTIVE") != 2 ||
		strings.Count(out, "::ffff:10.") != 2 || !strings.Contains(out, "NETDEV") {
		t.Errorf("exit %d, stderr %q, stdout\n%s", code, errs, out)
	}
	code, out, _ = command(t, "devices --provider soft -d soft2,soft1")
	if code != exitOK || strings.Count(out, "ACTIVE") != 2 || strings.Index(out, "soft2") > strings.Index(
		out, "soft1") {
		t.Errorf("exit %d, stdout\n%s", code, out)
	}
	code, _, errs = command(t, "devices --provider soft -d mlx5_0")
	if code != exitFailed || !strings.Contains(errs, "no device mlx5_0 (have soft0, soft1, soft2, soft3)") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	code, out, _ = command(t, "devices -v --provider soft")
	if code != exitOK || strings.Count(out, "max reads and atomics") != 4 {
		t.Errorf("exit %d, stdout\n%s", code, out)
	}
	_, out, _ = command(t, "devices --json --provider soft --nics 3")
	var doc deviceList
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if list := doc.Devices; doc.Provider != "soft" || doc.Reason != "" || len(list) != 3 ||
		list[2].Name != "soft2" || len(list[2].Ports) != 1 || len(list[2].Ports[0].GIDs) != 2 {
		t.Errorf("got %+v", list)
	}
}

// TestNoDevices shows what is said where there is no NIC.
func TestNoDevices(t *testing.T) {
	code, out, errs := command(t, "devices --provider none")
	if code != exitFailed || out != "" || !strings.Contains(errs, "no NIC today") {
		t.Errorf("exit %d, stderr %q, stdout %q", code, errs, out)
	}
	code, out, errs = command(t, "devices --json --provider none")
	var doc deviceList
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	if code != exitFailed || errs == "" || doc.Devices == nil || len(doc.Devices) != 0 ||
		doc.Reason != "no NIC today" {
		t.Errorf("exit %d, stderr %q, document %+v", code, errs, doc)
	}
}

func TestVersion(t *testing.T) {
	if code, out, _ := command(t, "version"); code != exitOK || !strings.HasPrefix(out, "ibverbx ") {
		t.Errorf("exit %d, stdout %q", code, out)
	}
}

// TestEveryFlagHasHelp shows that no flag is without help, and that none is described that is not
// there.
func TestEveryFlagHasHelp(t *testing.T) {
	k, err := kong.New(&cli{}, kong.ExplicitGroups(groups()), kong.PostBuild(describeFlags))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range k.Model.Children {
		help := map[string]map[string]string{
			"perf": perfFlagHelp(), "devices": devicesFlagHelp(),
		}[command.Name]
		for _, flag := range command.Flags {
			if flag.Help == "" {
				t.Errorf("%s --%s has no help", command.Name, flag.Name)
			}
			delete(help, flag.Name)
		}
		for name := range help {
			t.Errorf("%s has no --%s", command.Name, name)
		}
	}
}
