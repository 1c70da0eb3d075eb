// Package udp is a UDP socket as a RoCEv2 provider needs it. It moves datagrams in batches and
// knows nothing of what is in them.
//
// # The model
//
// A [Conn] is one socket, bound to one concrete local address and not connected, so that many queue
// pairs share it. A [Destination] is a peer's address with everything that sending to it needs,
// laid out once. A [Batch] is memory to receive into.
//
//	conn, err := udp.Listen(udp.Config{Local: netip.MustParseAddrPort("192.0.2.1:4791")})
//	peer, err := conn.NewDestination(netip.MustParseAddrPort("192.0.2.2:4791"))
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
// Neither Send nor Recv ever waits: they return [ErrAgain], and [Conn.WaitWritable] and
// [Conn.WaitReadable] wait, without a thread and without burning anything.
//
// # Bursts
//
// Where the kernel can, a run of packets of one length crosses it as one (UDP_SEGMENT, "GSO"),
// which saves most of its cost. [Burst] says which packets travel so. On IPv4 the packets of a
// burst carry the identifications 0, 1, 2 and so on, every other packet has 0, always with DF:
// whoever computes a checksum over the IP header has to know. The kernel of the receiver hands a
// burst over as one (UDP_GRO), and Recv takes it apart; [Datagram.Index] is the place in what the
// kernel handed over, which is the identification where nothing between the two has split or merged
// bursts, as on a loopback link. Where a link does,
// a datagram can have any identification below [MaxSegments].
//
// A kernel or a route may refuse bursts (IPsec and devices without checksum offload do). Send then
// sends the packets one by one, all with identification 0, and the Destination does so from then
// on: [Destination.Segments] is false. Of the packets that met the refusal, those that were sealed
// for a later identification arrive with another one than their checksum says.
//
// Both switches are in [Config], and in the environment:
// IBVERBX_ROCE_DISABLE_GSO=1 and IBVERBX_ROCE_DISABLE_GRO=1.
//
// # The caller's duties
//
// A Conn may be used by any number of goroutines. A Destination, and a Batch, belong to one
// goroutine at a time; different ones of the same Conn work at once. One goroutine at a time waits
// in WaitReadable, and one in WaitWritable. Close may come at any time and ends them all.
//
// Send has read the packets' memory when it returns, and keeps nothing of it. Recv's datagrams are
// memory of the Batch, valid until its next Recv.
//
// # Checksums
//
// IPv6 datagrams with a zero UDP checksum are accepted (UDP_NO_CHECK6_RX), since the kernel's
// rdma_rxe sends such. What is sent always has a checksum: rdma_rxe takes both, while neither
// UDP_SEGMENT nor UDP_GRO works without.
//
// # Systems
//
// On Linux this is the full thing.
// Elsewhere [Listen] returns an error that is [verbs.ErrNotSupported].
package udp
