// Package roce is a provider of NICs made of UDP sockets: RoCEv2 in user space. It needs no RDMA
// hardware, no kernel module and no privilege, and lets the same program run between any two
// processes and hosts. It talks to other ends of this package, to Linux's rdma_rxe (tried with 6.1,
// in both roles), and is made to talk to NICs, which were not tried.
//
//	provider, _ := roce.Open(roce.Config{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
//	defer provider.Close()
//	dev := provider.Device(0)
//	// ... as with every device of package verbs
//
// # The model
//
// A [Device] is one local address, and one socket. Its GID is that address; queue pairs of any two
// devices connect by GID and number, as on every NIC. Several addresses are several NICs. Queue
// pairs are state machines that know no socket (internal/rc); packets and their checksum have a
// package of their own (internal/wire), as the socket has (internal/udp).
//
// # Ports
//
// RoCEv2 has UDP port 4791. One process at a time can have it on an address; where the module
// rdma_rxe is loaded, the kernel has it on all. A NIC that finds it taken, and was not told which
// port to use, takes any free one. Its GID then says which:
//
//	fd69:6276:7278:0:9c41:ffff:c000:201    192.0.2.1, port 40001
//
// Other ends of this package understand such a GID, nobody else does. It exists for IPv4 only: over
// IPv6 give all ends the same [Config].Port.
//
// # Foreign peers
//
// Two ends of this package find out by themselves that they are: a requester says so in seven bits
// of the packet's header that are reserved, sent as zero and ignored by others, until the first
// answer comes, and an end of this package answers with its own. Nothing in GIDs, numbers or
// business cards says it, so it works the same whoever carries those, and no foreign peer can be
// taken for an end of this package. A peer that drops packets with reserved bits, against the
// specification, costs a retry: what is sent again has none. [Config].Strict neither says nor
// believes it.
//
// Towards a foreign peer, a NIC or rdma_rxe, a queue pair keeps to what rdma_rxe does itself: it
// goes back to a lost packet and sends everything again from there, and has at most 128 packets
// under way. Over IPv4 it sends them no bursts unless [Config].ForeignGSO asks for them. Between
// two ends of this package only what was lost is sent again, the window follows the delay, and the
// kernel moves packets in bursts always. The packets are RoCEv2 in both cases, and Wireshark reads
// them. What is kept behind a gap travels in a packet that is formed as the response to a READ and
// whose AETH says NAK; a capture on a sending host shows bursts as one packet each, unless they are
// turned off (ethtool -K DEV tx-udp-segmentation off, or IBVERBX_ROCE_DISABLE_GSO=1).
//
// A foreign peer sends as much as its own rules allow, whatever this end has room for: rdma_rxe up
// to 128 packets, of which the receive buffer of a process without privilege holds some fifty of
// 4096 bytes under Linux's usual limit. What is lost there is repaired, in the peer's timeouts;
// raise net.core.rmem_max to 2 MiB where Overflowed of [Device.Counters] counts. What is read of a
// foreign peer stays within [Config].Window, and so within the buffer.
//
// # Who receives
//
// Whoever posts or polls does the work, and a goroutine where nobody does. While a program polls,
// the acknowledgement of what has just arrived waits for its answer, or its next poll, for 400
// microseconds at most. It leaves before a queue pair changes its state or is closed, and not if
// the process exits: close what is open before.
//
// On one processor (GOMAXPROCS=1) a program that polls one NIC receives for the others of the
// provider too, and other goroutines that wait for the network are behind it by milliseconds, as
// with every loop in Go that does not wait.
//
// # When packets are lost
//
// A peer refuses a request once, and is in ERR and silent from then on, as on every NIC. If that
// answer is lost, the request ends in verbs.StatusRetryExcErr too, and the peer alone knows why: by
// its event, or the completion that it has failed.
//
// A peer that cannot be reached by the routes of this host is refused when a queue pair is
// connected ([Device.CheckPath] says so before). Whatever else goes wrong on the way looks like
// loss: it is repaired, or ends in verbs.StatusRetryExcErr after the timeout, times the retries and
// one more. [Device.Counters] of the receiving end then tells why: BadICRC counts packets that were
// changed on the way, as by NAT; Strangers those from another address than the GID says; NoQP those
// for a queue pair that is gone; Overflowed those that found the receive buffer full; RecvErrors
// how often the socket did not say what has arrived. If none of them counts, nothing arrives: look
// for a firewall.
//
// The ICRC of a packet over IPv4 covers a field that programs cannot see. Between two ends of this
// package it has one of 64 values, and one wrong packet in 2^26 passes the check; from foreign ends
// it may have any, and one in 2^16 does. UDP's own checksum, where there is one, comes before
// both.
//
// # Security
//
// RoCE is neither authenticated nor encrypted. Whoever can send packets with the address of a peer,
// and knows or guesses a queue pair's number and where its sequence numbers are, can end its
// connection; who can also read the traffic can write to every region that was given to the peer.
// Numbers and keys are random, packets from other addresses than the peer's are dropped without an
// answer, and nothing is ever sent to who is no peer. Once a peer is known to be an end of this
// package, other processes of its host are strangers too; until then, and where the peer is
// foreign, they are not told from it. Use it where you would use an unencrypted file system: on
// networks whose every host you trust.
//
// # What a caller must keep
//
// The duties of package verbs hold. Close objects before their parents, and everything before the
// provider: a Close that comes too early returns verbs.ErrBusy, and changes nothing.
//
// # What it costs
//
// One lock guards a NIC and its objects; receiving has one of its own, so that polling an empty
// queue keeps nobody from posting. Posting sends what the window has room for, on the goroutine
// that posts; polling an empty queue receives what has arrived. While nobody polls, or whoever did
// has armed the queue, one goroutine a NIC sleeps in Go's poller. An idle NIC uses no processor.
//
// # Systems
//
// Linux. Elsewhere Open returns an error that is verbs.ErrNotSupported.
package roce
