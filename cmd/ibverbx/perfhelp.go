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
  ibverbx perf                                      write bandwidth, 4 KiB to 16 MiB, one queue pair and eight
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
--mode lat takes half of a round trip where the target sees the message and answers (write-imm, send, am,
put-signal), else the time from the call to the completion. --layer shmem is measured in one process only.

Two processes, on two hosts or one, over real NICs or, where the host has none, UDP sockets:
  ibverbx perf --listen                             in one terminal: waits, measures once, exits
  ibverbx perf 127.0.0.1                            in another one
  ibverbx perf --listen -d mlx5_0,mlx5_1            on one host, over some of its NICs
  ibverbx perf host1 -d mlx5_0,mlx5_1 --op write-imm -b
                                                    on the other: decides what is measured
Each end chooses its own NICs, their connection (--gid-index to --outs), --timeout and output. The connecting
end decides the rest. Both print the figures, which the connecting end takes, and both exit with 1 if either
fails or disappears.

--provider roce makes NICs of UDP sockets that speak RoCEv2, without privileges. It is used where the host
has no RDMA NIC; stderr says so. The NIC uses the local address of the connection between the two processes,
or the interfaces and addresses that --device names, such as eth0 or 192.0.2.7. It uses UDP port 4791, or
another one if that is taken; firewalls must let it through. On port 4791 it also works with other NICs that
speak RoCEv2, such as rdma_rxe.

A listening end serves one client at a time and tells others that it is busy. If a client breaks off, it says
why and waits for the next one. It exits after the first client that is measured, with 1 if its own NICs or
data failed. For traffic from several hosts at the same time start a listening end for each, on ports of their
own.

Any host that can connect to a listening end can make it measure, which takes up to 4 GiB of memory, most of
it pinned, and its NICs. Listen where you trust who can connect, as in --listen=10.0.0.1. RoCE itself is
neither authenticated nor encrypted.

Flags have perftest's letters where perftest has them. Unlike there, --iters and --tx-depth count messages
over all queue pairs together, and --qps counts the queue pairs on each NIC.

Each cell is measured several times (--samples), in turn with the others of its size and with copy(). The
figure is the median of the samples; ± is its 95 % confidence interval. A figure whose interval is wider than
20 % is marked ~: differences below that between two such figures mean nothing.

Exit codes: 0 when all went well; 1 when something failed, or a figure missed --min-bw or --max-lat; 2 when
the flags make no sense; 130 after Ctrl-C.

With --failover a column of several queue pairs goes on without those that fail, while others work at both
ends: no request fails, and the report says which were lost, why (at the connecting end of two processes), and
how many work requests others repeated. After --failback they are tried again, and are back in service if they
work. Of two processes the listening one takes these flags over from the connecting one. Without --failover,
or when no queue pair is left, the column ends with the error that an application gets.

With --fault, --interval or --plot bandwidth over time is recorded: of the messages reported to the program,
at the connecting end of two processes, and of the fragments that each rail has completed. --plot and --json
have all of it, the table what each fault did. The clock stands while messages are compared. A dip lasts from
the first interval below 90 % to the first of three above it. The end of each round shows as a small dip where
much is outstanding: with more --memory there are fewer, with less --depth they are less deep.

Faults strike end a, the initiator, unless end=b. They strike when end a has posted msg= messages of a column
[100], all its sizes counted, or when the column has been measured for at=. nic= and rail= count from 0, for=
is a duration, by= a factor. In brackets is what holds when a key is not given:
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
