package main

import (
	"fmt"
	"strings"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
)

// Help is shown below the flags.
func (perfCmd) Help() string {
	return `Examples:
  ibverbx perf                                      write bandwidth, 4 KiB to 4 MiB, one queue pair and eight
  ibverbx perf --op send -s 64K -t 32               one size of another operation
  ibverbx perf --op write-imm --mode lat            latency, half of a ping-pong
  ibverbx perf -s 1M --nic-speed 5Gbit,20Gbit --depth 4 -v
                                                    NICs of different speed, and what each rail carried
  ibverbx perf --fault kill-qp                      the error that an application gets when a queue pair fails
  ibverbx perf --failover --fault nic-down@nic=1,at=300ms --depth 8 --nic-speed 8Gbit --plot x.html
                                                    with failover the other NIC goes on; bandwidth over time
                                                    in a browser
  ibverbx perf --balance ability --nic-speed 8Gbit,800Mbit --qps 1 --fragment 64K -s 1M -t 4 -v
                                                    a NIC of a tenth of the speed gets a tenth of the work;
                                                    with round robin the slow NIC holds up the fast one
  ibverbx perf --provider rdmacore -d mlx5_0        over a real NIC, both ends in this process
  ibverbx perf --layer transport --op am --mode lat active messages
  ibverbx perf --layer tagged -s 64K                tag-matched messages

The layers, and their operations:
` + layerHelp() + `
--mode lat measures half of a round trip if the target sees the message and answers (write-imm, send, am,
put-signal), and otherwise the time from the call to the completion. --layer shmem is measured in one process
only. The defaults of flags are in brackets.

Two processes, on two hosts or one, over real NICs or, where the host has none, UDP sockets:
  ibverbx perf --listen                             in one terminal: waits, measures once, exits
  ibverbx perf 127.0.0.1                            in another one: decides what is measured
Each end chooses its own NICs, the attributes of its queue pairs (--gid-index to --outs), --timeout and
output; the connecting end decides the rest. Both print the figures, and both exit with 1 if either fails or
disappears. A listening end serves one client at a time, and waits for the next one if a client breaks off.

Any host that can connect to a listening end can make it measure, which takes up to 4 GiB of memory, most of
it pinned, and its NICs. So listen only where you trust everyone who can connect: --listen=10.0.0.1 listens at
one address. RoCE itself is neither authenticated nor encrypted.

--provider roce makes NICs of UDP sockets that speak RoCEv2, without privileges: of the address between the
two processes, or of those that --device names. They use UDP port 4791, where they also work with rdma_rxe
and with NICs, or another one if that is taken; firewalls must let it through.

Flags that perftest has too have perftest's letters. Unlike in perftest, --iters and --tx-depth count messages
over all queue pairs together, and --qps counts the queue pairs on each NIC.

The cells of a size are measured in turn, several times (--samples). The figure is the median of the samples;
± is its 95 % confidence interval. A figure whose interval is wider than 20 % is marked ~: differences below
that between two such figures mean nothing.

With --failover a column of several queue pairs continues without those that fail, as long as others work at
both ends, and no request fails. After --failback they are tried again. The report says which queue pairs
were lost, why (of two processes, at the connecting one), and how much work others have repeated. Without
--failover, or when no queue pair is left, the column ends with the error that an application gets.

With --interval or --plot, bandwidth over time is recorded (of two processes, at the connecting one): in the
document of --json, and in the file of --plot. The clock is stopped while messages are compared: the end of
each round shows as a small dip if much is outstanding.

Exit codes: 0 when all went well; 1 when something failed, or a figure missed --min-bw or --max-lat; 2 when
the flags make no sense; 130 after Ctrl-C.

Faults strike end a, the initiator, unless end=b. They strike when end a has posted msg= messages of a column,
over all sizes, or when the column has been measured for at=. nic= and rail= count from 0, for= is a duration,
by= a factor. The default of msg= is 100; other defaults are in brackets:
` + bench.FaultHelp()
}

// layerHelp lists the operations of the layers.
func layerHelp() string {
	var b strings.Builder
	for _, s := range layers.Shapes() {
		fmt.Fprintf(&b, "  %-10s %-10s %s\n", s.Layer, s.Op, s.Name)
	}
	return b.String()
}
