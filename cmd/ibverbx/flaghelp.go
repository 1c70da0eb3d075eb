package main

import (
	"cmp"
	"strings"

	"github.com/alecthomas/kong"
)

// describeFlags gives the flags and arguments of each command their help, which is too long for
// struct tags: its own, or that of perf.
func describeFlags(k *kong.Kong) error {
	for _, command := range k.Model.Children {
		help := map[string]map[string]string{"perftest": perftestFlagText,
			"devices": devicesFlagText}[command.Name]
		for _, flag := range command.Flags {
			flag.Help = cmp.Or(help[flag.Name], flag.Help, perfFlagText[flag.Name])
			if spelled := strings.ReplaceAll(flag.Name, "-", "_"); spelled != flag.Name {
				flag.Aliases = append(flag.Aliases, spelled) // as perftest spells some
			}
		}
		for _, arg := range command.Positional {
			arg.Help = cmp.Or(help[arg.Name], arg.Help)
		}
	}
	return nil
}

// The texts of the flags, by their names. In brackets is what holds without the flag.
var perfFlagText = map[string]string{
	"layer": "What is measured: virtual queue pairs (qp) or a layer above them (transport, tagged, " +
		"shmem). [${default}]",
	"op": "Operation. qp: write, write-imm, read, send, fetch-add, cmp-swap. Other layers: see above. [the " +
		"layer's first]",
	"mode": "bw: bandwidth and message rate. lat: time of one message at a time, half of a ping-pong " +
		"where the target sees it. [${default}]",
	"bidirectional": "Both ends send at the same time; the figures are the sum.",
	"size": "Message sizes: 4096, 64K, or 4K,1M, or 4K..16M, each twice the one before, or " +
		"4K..16M/4, four times. [bw: 4K..4M/4, lat: 8,64,512,4K,32K,256K]",
	"all":      "Sizes 2 to 8M, each twice the one before.",
	"scheme":   "Some of single (one queue pair), spray, dqplb. [all]",
	"iters":    "Messages per cell, over all queue pairs, instead of --duration.",
	"duration": "Time per cell: 5, 5s, 200ms. [100ms, 1s with a single size]",
	"samples": "Samples per cell, which share its time or its messages. [6, or 1 with fewer messages " +
		"than 24 times --tx-depth]",
	"inline-size": "Send or write messages of at most this many bytes inline. [0]",
	"tx-depth":    "Messages outstanding, over all queue pairs. [${default}]",
	"events":      "Wait for completion events instead of polling.",
	"busy-poll": "Poll without a pause. By default an end that finds nothing for 20µs waits for an " +
		"event, because software NICs need the cores.",
	"verify": "Compare every byte that arrives. [yes]",
	"memory": "Size of the buffer of each direction, which is reused. A buffer that fits into the " +
		"caches measures the caches. [${default}]",
	"provider": "Which NICs: soft (software NICs in this process), rdmacore (the host's) or roce (UDP " +
		"sockets). [soft; with two processes rdmacore, or roce if the host has no usable RDMA NIC]",
	"device": "Which real NICs: mlx5_0:1,mlx5_1 (a port after a colon), mlx5_*, ^mlx5_2 (all but " +
		"that). With roce: interfaces and addresses, eth0,192.0.2.7. [all; with roce, the address " +
		"where the processes meet]",
	"gid-index": "Index in the port's GID table, which ibverbx devices lists. [RoCE v2 over IPv4 " +
		"is preferred]",
	"mtu": "Path MTU in bytes, 256 to 4096; the smaller of both ends' is used. [the ports' active " +
		"MTU]",
	"ib-port": "Port of the NICs. [each NIC's first active one, or as --device says]",
	"tclass":  "Traffic class, 0 to 255, of the packets' IP header. [0]",
	"sl":      "Service level, 0 to 15. [0]",
	"qp-timeout": "Acknowledgement timeout of a queue pair: 4.096µs·2^N, N 1 to 31; 0 is none. [20: 4.3s; " +
		"17: 0.54s over NICs of software; 14: 67ms with --fault]",
	"retry-count": "Retries after a timeout, 0 to 7; some NICs take 7 as unlimited. [7; 6 over NICs of " +
		"software]",
	"rnr-retry": "Retries when the peer has no receive posted, 0 to 7; 7 is unlimited. [7]",
	"outs": "Reads and atomics outstanding on a queue pair, 1 to 255. [16, or what the NIC " +
		"allows]",
	"library": "Path of libibverbs. [as the dynamic loader finds it]",
	"udp-port": "UDP port of the roce NICs; on two hosts the same at both ends. [4791, or a free one " +
		"if that is taken]",
	"rate-limit": "Rate limit of each queue pair of this end's roce NICs: 10Gbit, 500Mbit, 1GB/s. " +
		"[unlimited]",
	"nics":     "NICs of each end. [soft: 2, others: all that --device chooses]",
	"qps":      "Queue pairs on each NIC. [${default}]",
	"fragment": "Largest fragment of a message. [${default}]",
	"balance": "Which queue pair carries the next fragment: round-robin, or ability, the one that will " +
		"have finished it first. [${default}]",
	"failback": "With --failover: when a failed queue pair is tried again; 0 is never. [1s]",
	"failover": "Go on without queue pairs that fail, as long as others work at both ends.",
	"depth":    "Fragments outstanding on a queue pair. [${default}]",
	"listen": "Drive one end, and wait for one client at HOST, :PORT or HOST:PORT. [every address, " +
		"port 18515]",
	"connect":     "Drive one end; the other one listens at HOST.",
	"port":        "TCP port where the two processes meet. [18515]",
	"timeout":     "How long the other process may take for each step. [${default}]",
	"nic-speed":   "Bandwidth of the NICs, such as 25Gbit; one for all, or one for each NIC of an end.",
	"nic-latency": "One-way latency of the NICs, likewise.",
	"fault":       "Inject a fault, KIND[@KEY=VALUE,..], see above; may be repeated.",
	"seed":        "Seed of the data. [${default}]",
	"min-bw":      "Exit with 1 if a cell has less bandwidth, such as 90Gbit or 11GB/s.",
	"max-lat":     "Exit with 1 if a cell of --mode lat has a larger median.",
	"json":        "Write a JSON document instead of the table.",
	"verbose":     "Show what each rail carried, too.",
	"interval": "Interval at which --plot and --json give the bandwidth, of all and of each rail: 10ms, " +
		"1s, 0 for none. [with --plot 10ms or longer, by speed and duration]",
	"plot": "Write bandwidth over time to this HTML file, which needs no network: a line for each NIC, " +
		"with -v for each rail.",
	"report-gbits": "Show bandwidths in Gbit/s instead of GB/s.",
	"CPU-freq":     "Changes nothing, as perftest's users expect.",
	"noPeak":       "Changes nothing: there is no peak figure.",
	"connection":   "RC, which all queue pairs are.",
}

var perftestFlagText = map[string]string{
	"test":     "The kind of test, by the name of perftest's tool, such as ib_write_bw.",
	"host":     "The host where that tool listens. Without it this end listens.",
	"size":     "Message size: 4096, 64K, 1M. [65536, for latencies 2]",
	"iters":    "Messages on each queue pair. [ib_write_bw: 5000, others: 1000]",
	"qp":       "Queue pairs. [1]",
	"tx-depth": "Messages outstanding on each queue pair. [128, for latencies 1]",
	"rx-depth": "Receives posted to each queue pair. [512]",
	"device": "Which real NIC: mlx5_0, mlx5_0:1 (a port after a colon). With roce: an interface or " +
		"address. [the first; with roce, the address where the two ends meet]",
	"provider": "Which NIC: rdmacore (the host's) or roce (a UDP socket). [rdmacore, or roce if the host " +
		"has no usable RDMA NIC]",
	"outs":        "Reads outstanding on a queue pair, 1 to 255. [what the NIC allows]",
	"qp-timeout":  "Acknowledgement timeout of a queue pair: 4.096µs·2^N, N 1 to 31; 0 is none. [14: 67ms]",
	"retry-count": "Retries after a timeout, 0 to 7; some NICs take 7 as unlimited. [7]",
	"listen":      "Wait for the peer at HOST, :PORT or HOST:PORT. [every address, port 18515]",
	"connect":     "The same as the argument <host>.",
	"timeout": "How long the peer may take for a step, and how long messages may make no progress. " +
		"[${default}]",
	"report-gbits": "Show bandwidths in Gbit/s. Give it to both ends or to neither: otherwise their " +
		"reports differ in unit.",
}

var devicesFlagText = map[string]string{
	"provider": "Which NICs: soft (software NICs), rdmacore (the host's) or roce (UDP sockets). " +
		"[rdmacore, or roce if the host has no usable RDMA NIC]",
	"device": "Which NICs: mlx5_0,mlx5_1, mlx5_*, ^mlx5_2 (all but that). With roce: interfaces and " +
		"addresses, eth0,192.0.2.7. [all]",
	"nics": "How many software NICs to list. [4]",
	"json": "Write a JSON document, which has all attributes, instead of the table.",
}
