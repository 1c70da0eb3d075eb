// Package roce is a provider of NICs made of UDP sockets: RoCEv2 in user space. It needs no RDMA
// hardware, no kernel module and no privilege, and runs the same program between any two processes
// and hosts. It interoperates with other ends of this package and with Linux's rdma_rxe (tested
// with 6.1, in both roles). It follows the specification for hardware NICs, which have not been
// tested.
//
//	provider, _ := roce.Open(roce.Config{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
//	defer provider.Close()
//	dev := provider.Device(0)
//	// ... as with every device of package verbs
//
// # The model
//
// A [Device] is one local address and the sockets on it. Its GID is that address; queue pairs of
// any two devices connect by GID and number, as on every NIC. Several addresses are several NICs.
// Queue pairs are state machines without a socket (internal/rc). Packets and their checksum have a
// separate package (internal/wire), and so have the sockets (internal/udp).
//
// # Ports
//
// RoCEv2 uses UDP port 4791. One process at a time can bind it on an address; if the module
// rdma_rxe is loaded, the kernel has it on all. If it is taken and you named no port, a NIC takes
// any free one. Its GID then contains the port:
//
//	fd69:6276:7278:0:9c41:ffff:c000:201    192.0.2.1, port 40001
//
// Only other ends of this package understand such a GID; other peers cannot connect to its queue
// pairs (the kernel answers EINVAL in RTR). It exists only for IPv4: over IPv6 give all ends the
// same [Config].Port.
//
// Packets go to that port, and leave from others: a NIC binds up to 16 source ports and spreads its
// queue pairs over them, so that switches and NICs that spread traffic by ports give queue pairs
// different paths and queues. As with NICs, the flow label selects the source port
// (ibverbx.ConnConfig has SpreadPaths), and without one the queue pair numbers do. So a firewall
// between two hosts must let UDP port 4791 in at both. A NIC on another port than 4791 sends
// everything from that one.
//
// The packets of a queue pair have the traffic class (its DSCP), the hop limit and, over IPv6, the
// flow label of its address handle; 0 means the host's default. The service level has no effect.
//
// # Path MTU
//
// Packets are never fragmented: every link between two NICs must carry the path MTU of the queue
// pair and up to 80 bytes of headers. Connecting a queue pair checks only the interface and the
// route of this host; if a more distant link is smaller, give the route an MTU (ip route ... mtu
// 1500). Nothing detects such a link: ICMP messages ("fragmentation needed", "packet too big") have
// no effect, because anybody could end connections by them. The packets are lost, and requests that
// are longer than the link carries end in verbs.StatusRetryExcErr. A queue pair does not search for
// a smaller path MTU either: both programs have set it before the first packet, as with every NIC.
//
// # Foreign peers
//
// Two ends of this package recognise each other. Until the first answer comes, a requester marks
// its packets in seven reserved bits of the header, which others send as zero and ignore, and an
// end of this package answers with its own mark. This works however you exchange GIDs, numbers and
// business cards, because they carry no mark, and no foreign peer is mistaken for an end of this
// package. A peer that drops packets with reserved bits, against the specification, costs a retry:
// a repeated packet has no such mark. Two ends that know each other mark repeated packets, to tell
// them from forged ones. [Config].Strict turns all of this off.
//
// Towards a foreign peer, a NIC or rdma_rxe, a queue pair behaves as rdma_rxe does: after a loss it
// goes back to the lost packet and sends everything again from there. It has at most 128 packets in
// flight, and gives up half of them for each round trip with a loss, as TCP Reno does. Over IPv4 it
// sends no bursts to it unless you set [Config].ForeignGSO.
//
// Between two ends of this package only lost packets are sent again, and the kernel always moves
// packets in bursts. A packet that arrives behind later ones, by less than a quarter of the path's
// round trip, is not lost. The window follows the delay and leaves queues short. Beside a flow that
// fills every queue, as TCP does, it competes until that flow is gone; docs/NETWORKS.md shows how
// they share.
//
// The packets are RoCEv2 in both cases, and Wireshark reads them. The packet that reports arrivals
// behind a gap has the form of a READ response whose AETH is a NAK. A capture on a sending host
// shows each burst as one packet, unless you turn bursts off (ethtool -K DEV tx-udp-segmentation
// off, or IBVERBX_ROCE_DISABLE_GSO=1).
//
// Queue pairs react to networks that mark packets instead of dropping them (ECN). An end of this
// package reports marked packets to its peer by the bit BECN of its answers, and to a foreign peer
// by a CNP, at most one in 50 microseconds. A CNP shrinks a queue pair's window, and rounds without
// one restore it, as in DCQCN; BECN does the same. [Device.Counters] counts marked packets and
// CNPs. A queue pair does not yield in the answers that it sends to a foreign peer's reads: that
// peer decides how much it asks for. rdma_rxe sends no CNP.
//
// A foreign peer sends as much as its own rules allow, however little room this end has: rdma_rxe
// up to 128 packets. Under Linux's usual limit the receive buffer of an unprivileged process holds
// some fifty of 4096 bytes. The others are lost, and cost the peer timeouts: if the counter
// Overflowed of [Device.Counters] grows, raise net.core.rmem_max to 2 MiB. Reads from a foreign
// peer stay within [Config].Window, and so within the buffer.
//
// # Who receives
//
// The goroutine that posts or polls does the work; when there is none, a background goroutine does.
// While a program polls, the acknowledgement of the latest packets waits for the program's answer
// or its next poll, at most 400 microseconds. It is sent before a queue pair changes its state or
// is closed, but not if the process exits: close open objects first.
//
// On one processor (GOMAXPROCS=1) a program that polls one NIC also receives for the provider's
// other NICs. Other goroutines that wait for the network are then delayed by milliseconds, as with
// every busy loop in Go.
//
// # When packets are lost
//
// A peer refuses a request once, and is then in ERR and silent, as on every NIC. If that answer is
// lost, the request ends in verbs.StatusRetryExcErr as well, and only the peer knows why: from its
// event, or from the completion that failed.
//
// Connecting a queue pair fails if this host has no route to the peer ([Device.CheckPath] checks
// that before). Every other problem on the path looks like loss: it is repaired, or ends in
// verbs.StatusRetryExcErr after timeout · (retries + 1). [Device.Counters] of the receiving end
// then shows the reason: BadICRC counts packets that were changed on the way, as by NAT; Strangers
// packets from an address that differs from the GID's; NoQP packets for a queue pair that is gone;
// Overflowed packets that found the receive buffer full; RecvErrors the socket's failures to return
// packets. If none of them grows, nothing arrives: look for a firewall.
//
// An end of this package answers while its process runs; a NIC always answers. So a process that
// is stopped, or gets no processor, for timeout · (retries + 1) loses its connections. Allow some
// 4 seconds, as virtual queue pairs do by default (ibverbx.PatienceAuto). A shorter time that you
// choose yourself is obeyed.
//
// The ICRC of a packet over IPv4 covers a field that programs cannot read. Between two ends of this
// package that field has one of 64 values, and one wrong packet in 2^26 passes the check; from
// foreign ends it may have any value, and one in 2^16 passes. UDP's own checksum, if present, is
// checked before. Two ends of this package on addresses of one host leave the ICRC out, as the
// kernel leaves out UDP's checksum: such packets never leave its memory, and have 0 in its place.
// It is there between network namespaces, and always with [Config].Strict.
//
// # Security
//
// RoCE is neither authenticated nor encrypted. Anyone who can read the traffic of a connection and
// send packets from a peer's address can end it, and write to every region that you gave to the
// peer. Use it where you would use an unencrypted file system: on networks whose every host you
// trust.
//
// Someone who can only send packets from a peer's address has to guess: the number of the queue
// pair and the peer's present packet number, which have 24 bits each, and a key of 32 bits to write
// where the peer does not. Packets from other addresses are dropped without an answer, and nothing
// is ever sent to an address that is not a peer's. Once a peer is known to be an end of this
// package, its source port is fixed, and other processes of its host are strangers too; until then,
// and if the peer is foreign, they cannot be distinguished from it. If the peer's GID names a port,
// they are strangers from the start. An attacker who knows the number of the queue pair, and the
// source port of an end of this package, needs on average this many packets:
//
//	to have                              between ends of this package    with a foreign peer
//	other data arrive in the peer's      2^24 / 4: 4 million packets     2^24: 17 million
//	message, which succeeds
//	other data arrive for a READ,        2^24 / packets of answers       2^24 / READs under way,
//	which succeeds                       under way, up to 1,024          up to 16
//	the connection end                   2^24 / packets under way,       2^24 / packets under way,
//	                                     up to 1,024                     up to 128
//	a foreign peer taken for an end                                      2^24: 17 million
//	of this package, which ends the
//	connection
//
// A packet that is lost at that very moment counts as one more number that may be guessed. An end
// of this package keeps packets of another that arrive ahead of a lost one. It drops a forged one
// among them when the peer's own packet with its number arrives, or an earlier one that the peer
// did not repeat: hence the 4. It costs 4 KiB at most, and no time.
//
// With a foreign peer, an attacker who knows the number of the queue pair can forge CNPs, which
// have no packet number, and hold the window at two packets as long as they come. Between ends of
// this package, forging a mark of the network (CE) takes 2^24 / 2,048 packets: 8,192. As many must
// be sent to forge one that counts when a NIC divides its buffer among those that send to it.
//
// [Config].Strict makes each peer a foreign one: nothing is kept, so an attacker needs 2^24 packets
// instead of 2^24 / 4, but other processes of a peer's host stay indistinguishable from it.
//
// # Many queue pairs
//
// The queue pairs of a NIC that write to the same NIC share the receive buffer of its socket. When
// they have more to send than half of it holds, they take turns, and fewer of them at a time while
// a short queue on the way drops or marks more than 2 % of their packets. If several NICs send much
// to one, its answers grant each a part, in the credits that InfiniBand has for receives; what they
// send at once before the first answers may still overrun the buffer, and is sent again. A part is
// at least 8 KiB, so a buffer suffices for as many NICs as it has 16 KiB: 256 with 4 MiB, 13 with
// the usual limit of an unprivileged process. A NIC assumes that the buffer of a peer that grants
// nothing less is as large as its own. Answers to READs have no such limit.
//
// # What you must do
//
// The duties of package verbs apply. Close objects before their parents, and everything before the
// provider: an early Close returns verbs.ErrBusy and changes nothing.
//
// A READ that a peer has repeated reads memory again, also after the peer has completed it, as with
// every NIC. The peer drops that answer, and the race detector does not see that read.
//
// # What it costs
//
// One lock guards a NIC and its objects. Receiving has its own lock, so polling an empty queue does
// not block posting. Posting sends, on the goroutine that posts, as much as the window allows;
// polling an empty queue receives the packets that have arrived. While nobody polls, or after the
// polling program has armed the queue, one goroutine per NIC sleeps in Go's poller. An idle NIC
// uses no processor.
//
// A NIC receives on one port, to which all its peers send, so one core at a time receives for it;
// queue pairs of several NICs receive on several.
//
// # Systems
//
// Linux. Elsewhere Open returns an error that is verbs.ErrNotSupported.
package roce
