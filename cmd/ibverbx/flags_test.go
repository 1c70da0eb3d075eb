package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

func TestWrongFlags(t *testing.T) {
	for args, want := range map[string]string{
		"perf --scheme spray --nics 1 --qps 1": "--scheme spray needs at least two queue " +
			"pairs: use --qps 2 or --nics 2, or --scheme single",
		"perf --mode lat -b":        "drop -b, or use --mode bw",
		"perf --op fetch-add -s 64": "works on 8 bytes",
		"perf --op fetch-add -a":    "works on 8 bytes, not 2 B",
		"perf --op swim": "--layer qp has write, write-imm, read, send, " +
			"fetch-add, cmp-swap",
		"perf -s 64KB":                          "write 64K (1024-based)",
		"perf -s 4K -a":                         "can't be used together",
		"perf --sizes 8K..4K":                   "from small to large",
		"perf -n 5 -D 1s":                       "give one of them",
		"perf -D soon":                          "want a number with a unit",
		"perf --nic-speed fast":                 "25Gbit",
		"perf --nic-speed 1G,2G,3G":             "lists 3 values for 2 NICs",
		"perf --fault boo":                      "have kill-qp",
		"perf --fault nic-down@nic=9":           "an end has 2 NICs",
		"perf --scheme all,spray":               "have single, spray, dqplb",
		"perf -e --busy-poll":                   "can't be used together",
		"perf --provider moon":                  "have soft",
		"perf --layer moon":                     "have qp, transport, tagged, shmem",
		"perf --layer transport --op write":     "--layer transport has am, put, get, fetch-add",
		"perf --layer transport -s 1M":          "--op am takes at most 4 KiB; use --op put",
		"perf --layer transport --fault slow":   "use --layer qp, or drop --fault",
		"perf --mode rate":                      "have bw and lat",
		"perf --listen --layer tagged":          "--layer is for the connecting end to decide",
		"perf --connect h --layer shmem":        "is measured between PEs of one process",
		"perf --bogus":                          "unknown flag --bogus",
		"perf here there":                       "unexpected argument there",
		"perf here --listen":                    "exclude each other",
		"perf here --connect there":             "names the listening end twice",
		"perf -p 18600":                         "it goes with --listen, --connect or HOST",
		"perf here:5 -p 18600":                  "names the port twice",
		"perf here -p 70000":                    "--port 70000: must be 1 to 65535",
		"perf -n 0":                             "--iters 0: must be at least 1",
		"perf -D 0":                             "--duration 0s: must be at least 1ns",
		"perf -s -1":                            "--size -1: must not be negative\n",
		"perf --sizes=-1":                       `size "-1"`,
		"perf -q -1":                            "--qps -1: must not be negative\n",
		"perf --qps=-1":                         "--qps -1: must be 1 to",
		"perf -x 3":                             "--gid-index: query gid: soft0: invalid argument",
		"perf -i 2":                             "port 2, there is only port 1",
		"perf --tclass 256":                     "--tclass 256: must be 0 to 255",
		"perf -S 16":                            "--sl 16: must be 0 to 15",
		"perf -u 32":                            "--qp-timeout 32: must be 0 to 31",
		"perf --retry_count 8":                  "--retry-count 8: must be 0 to 7",
		"perf --rnr-retry 8":                    "--rnr-retry 8: must be 0 to 7",
		"perf -o 0":                             "--outs 0: must be 1 to 255",
		"perf -I 5000":                          "--inline-size 5000: must be 0 to 4096",
		"perf -I 64 --op read":                  "--inline-size is of what is sent or written",
		"perf -c UD":                            "must be one of \"RC\"",
		"perf --min-bw 5":                       "the slowest has 1 Mbit/s",
		"perf --max-lat 5us":                    "it goes with --mode lat",
		"perf --mode lat --min-bw 5G":           "use --max-lat",
		"perf --op fetch-add --min-bw 5G":       "have no bandwidth",
		"perf --listen --min-bw 5G":             "for the connecting end",
		"perf --samples 0":                      "--samples 0: must be 1 to 1000",
		"perf --samples=-2":                     "--samples -2: must be 1 to 1000",
		"perf --nics 0":                         "--nics 0: must be 1 to 32",
		"perf --nics=-1":                        "--nics -1: must be 1 to",
		"perf --connect h --nics 0":             "--nics 0: must be 1 to 32",
		"perf --fragment 0":                     "--fragment 0 B: must be 1 B to 2 GiB",
		"perf -n":                               "--iters: expected int value",
		"perf -s":                               "--size: missing value",
		"perf --trace":                          "--trace: missing value",
		"perf --trace a --trace b":              "--trace is given more than once: there is one file",
		"perf -s 4K,8K --trace a":               "--trace with 2 sizes: it keeps the last steps",
		"perf --op -v":                          `--op: expected string value but got "-v"`,
		"perf -D -b":                            `--duration: expected value value but got "-b"`,
		"devices --provider soft --nics 0":      "--nics 0: must be 1 to 64",
		"perf --write_with_imm":                 "unknown flag --write_with_imm",
		"perf -G":                               "unknown flag -G\nTry ibverbx perf --help",
		"perf --library x":                      "use --provider rdmacore",
		"perf -d mlx5_0":                        "use --provider rdmacore",
		"perf --provider rdmacore --fault slow": "are for software NICs",
		"perf --mtu 1500":                       "must be 256, 512, 1024, 2048 or 4096",
		"perf --gid-index 256":                  "must be 0 to 255",
		"perf --listen -s 4K":                   "--size is for the connecting end to decide",
		"perf --listen --trace a":               "of the output --json, --csv, --verbose and",
		"perf --listen --op read":               "--op is for the connecting end to decide",
		"perf --listen --nics 2":                "--nics is for the connecting end to decide",
		"perf --listen=h:99999":                 "and a port up to 65535",
		"perf --listen 18600":                   "--listen=:18600",
		"perf --connect 18600":                  "a port has a colon before it",
		"perf --timeout 5s":                     "it goes with --listen or --connect",
		"perf --listen --timeout 0":             "--timeout 0",
		"perf --connect h --timeout 0s":         "--timeout 0",
		"perf --listen --connect h":             "exclude each other",
		"perf --listen --provider soft":         "software NICs live inside one process",
		"perf --listen -d a,,b":                 "an entry is empty",
		"perf --connect h --provider soft":      "software NICs live inside one process",
		"perf --connect :99":                    "want HOST or HOST:PORT",
		"perf --connect http://h":               `address "http://h": want HOST, HOST:PORT or `,
		"perf --connect 127.0.0.1:abc":          `address "127.0.0.1:abc": want HOST, HOST:PORT or `,
		"perf --connect fe80::1:1x":             "want HOST, HOST:PORT or [IPV6]:PORT",
		"perf --connect ::1:18515":              "want HOST, HOST:PORT or [IPV6]:PORT",
		"perf --connect h --fault slow":         "software NICs, which live inside one process",
		"perf --listen --fault kill-qp": "software NICs, which live inside one " +
			"process: drop it, or drop --listen",
		"perf --listen --nic-latency 5us": "software NICs, which live inside one " +
			"process: drop it, or drop --listen",
		"perf --fault kill-qp@":              "kill-qp understands rail, end, msg",
		"perf --fault kill-qp@rail=1,rail=2": "rail is given twice",
		"perf --interval 1s":                 "goes into --plot or --json",
		"perf --plot x --interval 10us":      "--interval 10µs: must be 1ms to 1h0m0s, or 0 for no time line",
		"perf --plot x --mode lat":           "--interval and --plot show bandwidth over time",
		"perf --plot x --layer tagged":       "--interval and --plot show bandwidth over time",
		"perf --plot x --interval 0":         "drop one of them",
		"perf --listen --interval 1s":        "--interval is for the connecting end to decide",
		"perf --failback 1s":                 "--failback goes with --failover",
		"perf --failover --failback 2h":      "--failback 2h0m0s: must be at most 1h0m0s",
		"perf --failover --scheme single":    "--failover needs several queue pairs",
		"perf --listen --failover":           "--failover is for the connecting end to decide",
		"perf --connect h --nic-speed 5G":    "software NICs, which live inside one process",
		"perf --connect h --op swim":         "has write, write-imm",
		"perf --connect h --mode lat -b":     "drop -b",
		"devices --provider soft --nics 65":  "must be 1 to 64",
		"devices --nics 2":                   "use --provider soft",
		"devices -d ^":                       "--device: ",
		"devices --provider moon":            "have soft",
		"run -n 2 --foo true":                "unknown flag --foo",
		"help frobnicate":                    "unexpected argument frobnicate\nTry ibverbx --help",
		"frobnicate":                         "unexpected argument frobnicate",
		"compare x":                          `expected "<new>"`,
		"ib_write_bw -s 4096 h":              `type "ibverbx perftest ib_write_bw" to meet perftest's tool`,
		"ib_send_lat":                        `or "ibverbx perf --op send --mode lat"`,
		"ib_atomic_bw -d mlx5_0":             `type "ibverbx perf --op fetch-add --mode bw"`,
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

// TestHarmless checks that an error has no control characters, and that its further lines are
// indented.
func TestHarmless(t *testing.T) {
	c := &console{err: &bytes.Buffer{}}
	c.complain("ibverbx: %s\n", reason(errors.New("a\x1b[2J\u009b31m\u202e é\nibverbx: b\r")))
	if got, want := fmt.Sprint(c.err),
		"ibverbx: a [2J 31m  é\n  ibverbx: b \n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestEveryFlagHasHelp shows that no flag is without help,
// and that none is described that is not there.
func TestEveryFlagHasHelp(t *testing.T) {
	k, err := kong.New(&cli{}, kong.ExplicitGroups(groups()), kong.PostBuild(describeFlags))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range k.Model.Children {
		_, help := helpText(command.Name)
		for _, flag := range command.Flags {
			if flag.Help == "" {
				t.Errorf("%s --%s has no help", command.Name, flag.Name)
			}
			delete(help, flag.Name)
		}
		for _, arg := range command.Positional {
			delete(help, arg.Name)
		}
		for name := range help {
			t.Errorf("%s has no --%s", command.Name, name)
		}
	}
}
