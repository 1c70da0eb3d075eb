// Package udp is a UDP socket for a RoCEv2 provider. It moves datagrams in batches and does not
// look at their contents.
//
// # The model
//
// A [Conn] is one socket, bound to one concrete local address and not connected, so that many queue
// pairs share it. A [Destination] is a peer's address with everything needed to send to it,
// prepared once; a [Way] gives the source port and fields of the IP header. Sockets for other
// source ports are made on demand; they only send. A [Batch] is memory to receive into.
//
//	conn, err := udp.Listen(udp.Config{Local: netip.MustParseAddrPort("192.0.2.1:4791")})
//	peer, err := conn.NewDestination(netip.MustParseAddrPort("192.0.2.2:4791"), udp.Way{})
//	n, err := peer.Send([]udp.Packet{{Header: bth, Payload: data, Trailer: icrc}}, true)
//
//	batch := conn.NewBatch(0, 0)
//	for {
//		switch _, err := batch.Recv(); {
//		case err == nil:
//			for _, d := range batch.Datagrams { ... d.From, d.Data ... }
//		case errors.Is(err, udp.ErrAgain):
//			err = conn.WaitReadable(time.Time{}) // parks in Go's poller
//		}
//	}
//
// Send and Recv never wait: they return [ErrAgain]. [Conn.WaitWritable] and [Conn.WaitReadable]
// wait, without a thread and without spinning.
//
// # Bursts
//
// If the kernel can, it handles a run of packets of equal length as one (UDP_SEGMENT, "GSO"), which
// saves most of the cost. [Burst] determines which packets travel that way. On IPv4 the packets of
// a burst carry the identifications 0, 1, 2 and so on, and every other packet has 0, always with
// DF; a checksum over the IP header must take this into account. The kernel of the receiver hands a
// burst over as one (UDP_GRO), and Recv splits it. [Datagram.Index] is the position in that burst.
// It equals the identification if nothing between the two ends has split or merged bursts, as on a
// loopback link. Otherwise a datagram can have any identification below [MaxSegments].
//
// A kernel or a route may refuse bursts (IPsec and devices without checksum offload do). Send then
// sends the packets one by one, all with identification 0, and the Destination continues to do so:
// [Destination.Segments] is false. Among the packets that met the refusal, those whose checksum was
// computed for a later identification arrive with the wrong one.
//
// [Config] or the environment turns either off: IBVERBX_ROCE_DISABLE_GSO=1 and
// IBVERBX_ROCE_DISABLE_GRO=1.
//
// # What a caller must do
//
// Any number of goroutines may use a Conn. Close every Destination. A Destination, and a Batch,
// belong to one goroutine at a time; different ones of the same Conn work at once. One goroutine at
// a time waits in WaitReadable, and one in WaitWritable. Close may be called at any time and ends
// them all.
//
// When Send returns, it no longer needs the packets' memory. Recv's datagrams are memory of the
// Batch, valid until its next Recv.
//
// # Checksums
//
// IPv6 datagrams with a zero UDP checksum are accepted (UDP_NO_CHECK6_RX), because the kernel's
// rdma_rxe sends them. Send always computes a checksum: rdma_rxe accepts both, and neither
// UDP_SEGMENT nor UDP_GRO works without one.
//
// # Systems
//
// Linux. Elsewhere [Listen] returns an error that is [verbs.ErrNotSupported].
package udp
