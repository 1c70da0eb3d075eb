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
// rdma_rxe is loaded, the kernel has it on all. A NIC that finds it taken, and for which you named
// no port, takes any free one. Its GID then contains the port:
//
//	fd69:6276:7278:0:9c41:ffff:c000:201    192.0.2.1, port 40001
//
// Only other ends of this package understand such a GID; to others its queue pairs cannot be
// connected (the kernel answers EINVAL in RTR). It exists only for IPv4: over IPv6 give all ends
// the same [Config].Port.
//
// Packets go to that port, and leave from others: each queue pair has one of its own, of up to 16
// that a NIC binds, so that switches and NICs that spread traffic by ports give queue pairs paths
// and queues of their own. As with NICs, the flow label determines it (ibverbx.ConnConfig has
// SpreadPaths), and without one the queue pair numbers. So a firewall between two hosts must let
// UDP port 4791 in at both. A NIC on another port than 4791 sends everything from that one.
//
// The traffic class (its DSCP), the hop limit and, over IPv6, the flow label of a queue pair's
// address handle are those of its packets; 0 is what the host has configured. The service level has
// no effect.
//
// # Path MTU
//
// Packets are never fragmented: every link between two NICs must carry the path MTU of the queue
// pair and up to 80 bytes of headers. A queue pair connects if the interface and the route of this
// host do; give the route an MTU (ip route ... mtu 1500) where a link further away is smaller.
// Nothing finds that out by itself. ICMP messages that say so ("fragmentation needed", "packet too
// big") have no effect, because anybody could end connections by them: the packets are lost, and
// requests that are longer than the link carries end in verbs.StatusRetryExcErr.
//
// # Foreign peers
//
// Two ends of this package recognise each other. Until the first answer comes, a requester marks
// its packets in seven reserved bits of the header, which others send as zero and ignore, and an
// end of this package answers with its own mark. GIDs, numbers and business cards carry no mark, so
// this works however you exchange those, and no foreign peer is mistaken for an end of this
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
// packets in bursts. The window follows the delay and leaves queues short. Beside a flow that fills
// every queue, as TCP does, it competes until that is gone.
//
// The packets are RoCEv2 in both cases, and Wireshark reads them. The packet that says what arrived
// behind a gap has the form of a READ response whose AETH is a NAK. A capture on a sending host
// shows each burst as one packet, unless you turn bursts off (ethtool -K DEV tx-udp-segmentation
// off, or IBVERBX_ROCE_DISABLE_GSO=1).
//
// Networks that mark packets instead of dropping them are listened to (ECN). An end of this package
// tells its peer of marked packets by the bit BECN of its answers, and a foreign one by a CNP, at
// most one in 50 microseconds. A CNP takes from a queue pair's window, and rounds without one give
// it back, as DCQCN does; so does BECN. [Device.Counters] counts marked packets and CNPs. A queue
// pair does not yield in the answers that it sends to a foreign peer's reads: that peer decides how
// much it asks for. rdma_rxe sends no CNP.
//
// A foreign peer sends as much as its own rules allow, whatever room this end has: rdma_rxe up to
// 128 packets. Under Linux's usual limit the receive buffer of an unprivileged process holds some
// fifty of 4096 bytes. The others are lost, and cost the peer timeouts: if the counter Overflowed
// of [Device.Counters] grows, raise net.core.rmem_max to 2 MiB. Reads from a foreign peer stay
// within [Config].Window, and so within the buffer.
//
// # Who receives
//
// The goroutine that posts or polls does the work, and a background goroutine when nobody does.
// While a program polls, the acknowledgement of what has just arrived waits for the program's
// answer or its next poll, at most 400 microseconds. It is sent before a queue pair changes its
// state or is closed, but not if the process exits: close open objects first.
//
// On one processor (GOMAXPROCS=1) a program that polls one NIC also receives for the provider's
// other NICs. Other goroutines that wait for the network are then delayed by milliseconds, as with
// every busy loop in Go.
//
// # When packets are lost
//
// A peer refuses a request once, and is in ERR and silent from then on, as on every NIC. If that
// answer is lost, the request ends in verbs.StatusRetryExcErr as well, and only the peer knows why:
// from its event, or from the completion that failed.
//
// Connecting a queue pair fails if this host has no route to the peer ([Device.CheckPath] tells you
// before). Every other problem on the way looks like loss: it is repaired, or ends in
// verbs.StatusRetryExcErr after timeout · (retries + 1). [Device.Counters] of the receiving end
// then shows the reason: BadICRC counts packets that were changed on the way, as by NAT; Strangers
// those from another address than the GID says; NoQP those for a queue pair that is gone;
// Overflowed those that found the receive buffer full; RecvErrors how often the socket failed to
// return what has arrived. If none of them grows, nothing arrives: look for a firewall.
//
// The ICRC of a packet over IPv4 covers a field that programs cannot read. Between two ends of this
// package that field has one of 64 values, and one wrong packet in 2^26 passes the check; from
// foreign ends it may have any value, and one in 2^16 passes. UDP's own checksum, if present, is
// checked before.
//
// # Security
//
// RoCE is neither authenticated nor encrypted. Anyone who can read the traffic of a connection, and
// send packets with the address of a peer, can end it, and write to every region that you gave to
// the peer. Use it where you would use an unencrypted file system: on networks whose every host you
// trust.
//
// Someone who can only send, with the address of a peer, has to guess: the number of the queue pair
// and the peer's present packet number, which have 24 bits each, and a key of 32 bits to write
// where the peer does not. Packets from other addresses are dropped without an answer, and nothing
// is ever sent to an address that is not a peer's. Once a peer is known to be an end of this
// package, it keeps to the port that it sends from, and other processes of its host are strangers
// too; until then, and if the peer is foreign, they cannot be distinguished from it. If the peer's
// GID names a port, they are strangers from the start. One who knows the number of the queue
// pair, and the port that an end of this package sends from, needs on average:
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
// A packet that is lost at that very moment counts as one more number that may be guessed. Between
// ends of this package packets are kept that arrive ahead of a lost one. A forged one among them is
// forgotten when the peer's own packet with its number arrives, or one before it that the peer did
// not repeat: hence the 4. It costs 4 KiB at most, and no time.
//
// With a foreign peer, one who knows the number of the queue pair can forge CNPs, which have no
// packet number, and so take the window back to two packets for as long as they come. Between ends
// of this package a forged mark of the network (CE) needs 2^24 / 2,048 packets: 8,192.
//
// [Config].Strict makes each peer a foreign one: nothing is kept, so 2^24 packets take the place of
// 2^24 / 4, and other processes of a peer's host stay indistinguishable from it.
//
// # Many queue pairs
//
// The queue pairs of a NIC that write to the same NIC share the receive buffer of its socket. When
// they have more to send than it holds, they take turns. The buffer of a peer is taken to be as
// large as this NIC's own: give both hosts the same net.core.rmem_max. Several NICs that write to
// one do not share: what finds its buffer full is lost and sent again ([Counters].Overflowed).
//
// # What you must do
//
// The duties of package verbs apply. Close objects before their parents, and everything before the
// provider: a Close that comes too early returns verbs.ErrBusy and changes nothing.
//
// # What it costs
//
// One lock guards a NIC and its objects. Receiving has its own lock, so polling an empty queue does
// not block posting. Posting sends what the window has room for, on the goroutine that posts;
// polling an empty queue receives what has arrived. While nobody polls, or after the polling
// program has armed the queue, one goroutine per NIC sleeps in Go's poller. An idle NIC uses no
// processor.
//
// # Systems
//
// Linux. Elsewhere Open returns an error that is verbs.ErrNotSupported.
package roce
