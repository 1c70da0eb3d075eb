package main

import (
	"fmt"
	"strconv"
	"strings"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
)

// Help is shown below the flags.
func (perfCmd) Help() string {
	return `Examples:
  ibverbx perf                                      write bandwidth, 4 KiB to 16 MiB, one queue pair and eight
  ibverbx perf --op send -s 64K -t 32               one size of another operation
  ibverbx perf --op write-imm --mode lat            latency, half a ping-pong
  ibverbx perf -s 1M --nic-speed 5Gbit,20Gbit --depth 4 -v
                                                    NICs of different speed, and what each rail carried
  ibverbx perf --fault nic-down@nic=1,msg=500       what an application sees when a NIC fails
  ibverbx perf --fault link-flap@for=30ms -s 1M     a failure that the NICs survive
  ibverbx perf --failover --fault nic-down@nic=1,at=300ms --depth 8 --nic-speed 8Gbit --plot x.html
                                                    the other NIC goes on; bandwidth over time in a browser
  ibverbx perf --balance ability --nic-speed 8Gbit,800Mbit --qps 1 --fragment 64K -s 1M -t 4 -v
                                                    a NIC of a tenth of the speed gets a tenth of the work;
                                                    in turns it holds the other one up
  ibverbx perf --provider rdmacore -d mlx5_0        over a real NIC, both ends in this process
  ibverbx perf --layer transport --op am --mode lat active messages, beside a send through one queue pair
  ibverbx perf --layer transport --op put --kind zcopy -s 1M
                                                    puts from registered memory, beside copy()
  ibverbx perf --layer transport --mode rate --endpoints 32
                                                    what a message costs over 32 endpoints of one worker
  ibverbx perf --layer tagged --mode rate -s 8      tag-matched messages

The layers above queue pairs, and their operations:
` + layerHelp() + `
--mode lat takes half of a round trip where the target sees the message and answers (am, put-poll, put-signal,
send, send-sync), else the time from the call to the completion, which of a put of shmem is a Quiet. --mode bw
and rate start messages until the layer has no resources left, which --tx-depth allows, and end when all have
completed and come. Active messages are copied by the handler to where they are compared; fetch-and-adds must
bring each value of the counter once. Latencies and rates stand beside those of the same messages through one
queue pair without the layer, bandwidths beside copy(), several endpoints beside one of them; between two
processes they stand alone, and --layer shmem is measured in one process only. --tx-depth then counts on each
endpoint.

Two processes, on two hosts or one, over real NICs or, where the host has none, UDP sockets:
  ibverbx perf --listen                             in one terminal: waits, measures once, exits
  ibverbx perf --connect 127.0.0.1                  in another one
  ibverbx perf --listen -d mlx5_0,mlx5_1            on the one host, over some of its NICs
  ibverbx perf --listen --keep                      likewise, and stays for the next
  ibverbx perf host1 -d mlx5_0,mlx5_1 --op write-imm -b
                                                    on the other: decides what is measured
Each end chooses its own NICs, their connection (--gid-index to --outs), --timeout and output; all else is for
the connecting end. Both print the figures, which the connecting end takes. The connecting end exits
with 1 when either fails or goes.

--provider roce makes NICs of UDP sockets that speak RoCEv2, without privilege; stderr says where it is
used because a host has no RDMA NIC. They are at the addresses over which the two processes meet, or at
those that --device names: interfaces and addresses, such as eth0 or 192.0.2.7. The UDP port is 4791, or
another one where that is taken, which a firewall must let through. Such an end also measures with a NIC
that speaks RoCEv2, such as rdma_rxe, if it has port 4791.

A listening end serves its clients one after another, since two at a time would disturb each other's figures;
those that wait are told so. When one breaks off, it says why and serves the next. It exits with the first
that is measured, and with 1 if that showed a failure of its own NICs or data; with --keep it stays until
Ctrl-C. With --json it writes a document for each client. For traffic from several hosts at the same time
start a listening end for each, on ports of their own.

Any host that reaches a listening end may make it measure: then that uses up to 4 GiB of memory, most of it
pinned, and its NICs. Listen where you trust who can connect, as in --listen=10.0.0.1. RoCE itself is neither
authenticated nor encrypted.

Flags have the letters of perftest, where it has them. Unlike there, --iters and --tx-depth count messages
over all queue pairs together, and --qps counts the queue pairs on each NIC.

A cell is measured several times (--samples), in turn with the others of its size and with copy(). A figure
is the median of its samples, and ± says how far off the median of many more could be, with 95 % confidence.
With more than 20 % the figure is marked ~: it is noise, and less than that between two such figures says
nothing.

Exit codes: 0 when all went well, also where a fault of --fault made requests fail, every promise was kept,
and the run went on; 1 when anything else failed, a figure missed --min-bw or --max-lat, a promise was broken
(a completion missing, twice or out of order, data not there), or the run could not go on; 2 when the flags
make no sense; 130 after Ctrl-C.

The report of a failure says what each end saw and what became of all that was accepted. Then both ends are
reset and connected anew with new cards, and the column goes on: its figures, marked *, are of what came
through. Links and NICs that come back are waited for. Without those that do not, both ends are closed and
made anew on as many NICs as both have left; with none left the
column ends. So it does after more than ` + strconv.Itoa(bench.MaxSetbacks) + ` failures at one size.

With --failover a column of several queue pairs goes on without those that fail, while others work at both
ends: no request fails, and the report says which were lost, why (at the connecting end of two processes), and
how many work requests others repeated. After --failback they are tried again, and are back in service if they
work. The listening one of two processes takes the flags over from the connecting one.

With --fault, --interval or --plot the report has bandwidth over time: of the messages reported to the
program, at the connecting end of two processes, and of the fragments that each rail has completed, around
the faults; with --json, --verbose and --plot all intervals. The time is that of the rounds and of
recoveries; it stands while messages are compared, and with it the for= of a fault. Below 90 % means from
the first interval of which it is true to the first of three of which it is not. A round ends when all its
messages have come, so the end of each shows as a dip where much is outstanding: with more --memory there
are fewer, with less --depth they are less deep.

Faults strike end a, the initiator, but fail-recv end b, the target; end= is a or b where a fault may strike
either. They strike when end a has posted msg= messages of a column [100], all its sizes counted and no
warm-up, or when the column has been measured for at=. A column is measured in rounds, and errors number the
messages of the round that failed, from 0. nic= and rail= count from 0 [any, but where a number is named],
count= is how many requests are struck [1], all for ever, for= a duration, by= a factor. In brackets is what
holds when a key is not given:
` + bench.FaultHelp()
}

// layerHelp lists the operations of the layers.
func layerHelp() string {
	var b strings.Builder
	for _, s := range layers.Shapes() {
		kinds := ""
		for i, k := range s.Kinds {
			if kinds += ", "; i == 0 {
				kinds = "; "
			}
			kinds += string(k)
		}
		fmt.Fprintf(&b, "  %-10s %-10s %s%s\n", s.Layer, s.Op, s.Name, kinds)
	}
	return b.String()
}
