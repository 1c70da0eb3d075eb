package main

import (
	"fmt"
	"regexp"
	"strings"

	"ibverbx/cmd/ibverbx/internal/bench"
)

// instead says, for the flags of perftest that perf does not take, what to use in their place.
//
//nolint:gochecknoglobals // a table
var instead = []struct{ flags, hint string }{
	{"-R --rdma_cm -z --comm_rdma_cm", "queue pairs are connected over TCP, and not by rdma_cm: drop it"},
	{"-T --tos", "use --tclass, which goes into the packets' IP header: the type of service is its upper " +
		"bits"},
	{"-r --rx-depth", "receives are posted for what --tx-depth lets the other end send: drop it"},
	{"-l --post_list --recv_post_list", "requests are posted together by themselves, up to 32: drop it"},
	{"-Q --cq-mod", "every request has its completion, which is checked: drop it"},
	{"-X --vector --cqe_poll", "each virtual CQ has one CQ for each NIC: drop it"},
	{"-g --mcg -M --MGID --connectionless", "queue pairs are RC, which have no multicast: drop it"},
	{"-A --atomic_type", "use --op fetch-add or --op cmp-swap"},
	{"--write_with_imm", "use --op write-imm"},
	{"--send_with_imm", "use --op send, or --op write-imm for messages with an immediate"},
	{"-O --dualport", "use --device mlx5_0:1,mlx5_0:2, with a port behind each colon"},
	{"-f --margin --perform_warm_up", "each measurement warms up by itself, and that is not timed: drop it"},
	{"-C --report-cycles -U --report-unsorted", "figures are in seconds, in full with --json: drop it"},
	{"-H --report-histogram", "--mode lat shows percentiles, and --json more of them: drop it"},
	{"-w --limit_bw -y --limit_msgrate", "use --min-bw, or --max-lat with --mode lat: the exit code is 1 " +
		"where a figure misses it"},
	{"-W --report-counters --report-per-port", "use --verbose, or --json, for what each rail carried"},
	{"-L --hop_limit --flow_label --pkey_index --dlid --ipv6 --ipv6-addr --bind_source_ip",
		"the path follows from the GIDs: use --gid-index and --device to choose another one"},
	{"--out_json --out_json_file", "use --json, which writes to standard output"},
	{"--output --report-both", "use --json, and pick what you need from the document"},
	{"--cpu_util", "use time ibverbx ..., which says how long the processors worked"},
	{"--use_cuda --use_cuda_bus_id --use_cuda_dmabuf --use_rocm --use_rocm_dmabuf --use_neuron --use_hl " +
		"--use_mlu --use_musa --use_opencl --cuda_mem_type --gpu_touch",
		"perf measures host memory; programs register that of GPUs with Domain.RegisterDMABuf"},
	{"--use_hugepages --mmap --mmap-offset --odp --use-null-mr --mr_per_qp --payload_file_path " +
		"--disable_pcie_relaxed", "memory is the same for all columns, random and compared: use --memory " +
		"for how much it is"},
	{"--data_validation", "every byte is compared, unless with --no-verify: drop it"},
	{"--use-srq --use_ooo --use_old_post_send --no_lock --unsolicited_write --no_enhanced_reorder " +
		"--dont_xchg_versions --wait_destroy --force-link", "there is no such choice here: drop it"},
	{"--reversed", "exchange --listen and --connect, or use --op read"},
	{"--rate_units", "give --rate-limit its unit, as in 10Gbit"},
	{"--rate_limit_type --burst_size --typical_pkt_size --latency_gap", "queue pairs of roce are paced by " +
		"--rate-limit, others are not; software NICs have --nic-speed and --nic-latency"},
}

// insteadOfTest says the same for perftest: what both ends would have to do, and this one does not.
//
//nolint:gochecknoglobals // a table
var insteadOfTest = []struct{ flags, hint string }{
	{"-R --rdma_cm -z --comm_rdma_cm", "the two ends meet over TCP, and not by rdma_cm: drop it at both"},
	{"-D --duration -f --margin --run_infinitely --run-infinitely", "a test has a number of messages here, " +
		"since perftest does not tell its peer when the time is over: use --iters at both ends"},
	{"-A --atomic_type", "there are no atomics here: use ibverbx perf --op fetch-add or --op cmp-swap"},
	{"--write_with_imm --send_with_imm --unsolicited_write",
		"messages have no immediate here: use ibverbx perf --op write-imm"},
	{"-g --mcg -M --MGID --connectionless",
		"queue pairs are RC, which have no multicast: drop it at both ends"},
	{"-O --dualport --report-per-port", "a test uses one port: drop it at both ends"},
	{"-T --tos", "use --tclass, which goes into the packets' IP header: the type of service is its upper " +
		"bits"},
	{"-e --events -I --inline_size --inline-size -l --post_list --recv_post_list -Q --cq-mod -X --vector " +
		"--cqe_poll --use-srq --no_lock --use_old_post_send --use_hugepages --mmap --odp",
		"the other end may have it, which makes no difference to this one: drop it here"},
	{"--data_validation", "it changes what the ends tell each other: drop it at the other end too"},
	{"--dont_xchg_versions", "perftest's ends need each other's version: drop it at both"},
	{"-w --limit_bw -y --limit_msgrate --rate_units --burst_size --latency_gap --perform_warm_up --reversed",
		"there is no such choice here: drop it"},
	{"-C --report-cycles -U --report-unsorted -H --report-histogram --out_json --out_json_file --output " +
		"--report-both --cpu_util", "use --json for the figures in full"},
}

// noValue is what kong says of a flag at the end of the line, or before another flag.
var noValue = regexp.MustCompile(`^(--[^:]+): (?:missing value,|expected \S+ value but got) `)

var unknownFlag = regexp.MustCompile(`^unknown flag (--?[^\s,]+)(, did you mean .*)?$`)

// hint adds to the error of an unknown flag what to use instead, and words that of a flag without
// its value. Suggestions for short flags, which are all that there are, are dropped.
func hint(err error, command string) error {
	if m := noValue.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%s needs a value", m[1])
	}
	m := unknownFlag.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	flag, _, _ := strings.Cut(m[1], "=")
	table := instead
	if command == "ibverbx perftest" {
		table = insteadOfTest
	}
	if strings.HasPrefix(command, "ibverbx perf") {
		for _, of := range table {
			for name := range strings.FieldsSeq(of.flags) {
				if name == flag {
					return fmt.Errorf("%s: %s", flag, of.hint)
				}
			}
		}
	}
	if !strings.HasPrefix(flag, "--") {
		return fmt.Errorf("unknown flag %s: see %s --help", flag, command)
	}
	return err
}

var negative = regexp.MustCompile(`^-[0-9.]`)

// joinNegatives attaches negative numbers to the flags before them, so that they are read as values
// and refused for what they are.
func joinNegatives(args []string) (joined []string) {
	for i, a := range args {
		before := ""
		if i > 0 {
			before = joined[len(joined)-1]
		}
		switch {
		case !negative.MatchString(a) || !strings.HasPrefix(before, "-") || strings.Contains(before, "="):
			joined = append(joined, a)
		case strings.HasPrefix(before, "--"):
			joined[len(joined)-1] += "=" + a
		default:
			joined[len(joined)-1] += a
		}
	}
	return joined
}

// habits are flags that perftest's users type and that change nothing here.
type habits struct {
	CPUFreq    bool   `name:"CPU-freq" short:"F" hidden:""` // perftest warns of a clock that changes
	NoPeak     bool   `name:"noPeak" short:"N" hidden:""`   // there is no peak figure
	Connection string `name:"connection" short:"c" hidden:""`
}

func (h *habits) checkConnection() error {
	if c := h.Connection; c != "" && c != "RC" {
		return &bench.UsageError{Reason: fmt.Sprintf("--connection %.20q: queue pairs are RC: drop it", c)}
	}
	return nil
}
