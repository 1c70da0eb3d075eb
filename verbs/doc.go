// Package verbs is the vocabulary of RDMA verbs in Go, and the contract of a provider of NICs.
//
// It holds no mechanism of its own: names, values and interfaces. The values are those of the verbs
// ABI (libibverbs, <infiniband/verbs.h>), so they can be compared with what a real NIC reports, and
// converted from it; the names are the usual ones in Go's spelling. The package describes only
// reliable-connected (RC) queue pairs.
//
// # The model
//
// A [Provider] lists [Device] values (NICs). On a device you allocate a [PD] (protection domain),
// in which you register memory ([MR]) and create queue pairs ([QP]), and create completion queues
// ([CQ]). [QP.Modify] moves two queue pairs through INIT, RTR and RTS. Then you post work requests
// ([SendWR], [RecvWR]) and poll work completions ([WC]).
//
//	pd, _ := dev.AllocPD()
//	mr, _ := pd.RegisterMR(buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
//	cq, _ := dev.CreateCQ(verbs.CQConfig{Depth: 128})
//	qp, _ := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
//	// ... exchange QP numbers and GIDs with the peer, Modify to INIT, RTR, RTS ...
//	n, err := qp.PostSend([]verbs.SendWR{{
//		ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
//		SGL:        []verbs.SGE{{Addr: mr.Addr(), Length: 4096, LKey: mr.LKey()}},
//		RemoteAddr: peerAddr, RKey: peerKey,
//	}})
//	var wcs [16]verbs.WC
//	n, err = cq.Poll(wcs[:])
//
// # What a caller must do
//
//   - The memory that a work request names belongs to the NIC from the post until you have polled
//     its completion (for an unsignaled send: until a later signaled one of the same queue pair
//     completes, or the queue pair is closed). The slices that describe it (the []SendWR, each SGL,
//     Inline) are read only during the post.
//   - If [WC.Status] is not [StatusSuccess], only ID, Status, QPNum and VendorErr are defined. Real
//     NICs leave the other fields undefined. Never route or interpret an error by its opcode.
//   - A completion queue must have room for every completion that may be outstanding on it. A queue
//     that overruns loses completions and is dead, on real NICs as here.
//   - To sleep until a completion comes, call [CQ.Arm], poll once more, then call
//     [CompChannel.Wait]. In any other order, a completion that arrives in between wakes nobody.
//
// # Events
//
// A NIC reports some things outside of completions: that a link went down, that a queue overran,
// that the NIC itself has failed. [Device.Watch] sends such an [Event] to a channel. Events, except
// the NIC's death, may be lost, and they may be late: what an event reports may be over when you
// read it. Treat an event as a reason to query the state, never as the state itself.
//
//	events := make(chan verbs.Event, 16)
//	stop := dev.Watch(events)
//	defer stop()
//	port, err := dev.QueryPort(dev.DefaultPort()) // watch first, then query, so that nothing is missed
//	for e := range events {
//		log.Print(e) // "mlx5_0 port 1: port error"
//		port, err = dev.QueryPort(dev.DefaultPort())
//		...
//	}
//
// Completions wake a program through the [CompChannel], not through events.
//
// # Concurrency
//
// You may call every method of a provider's objects from any goroutine. Two goroutines that post to
// one queue pair or poll one CQ at the same time are serialised, in no particular order.
//
// # Errors
//
// A refused call has no effect. The error is an [*OpError] that names the call and the device and
// wraps a sentinel ([ErrQueueFull], [ErrState], ...) for errors.Is; an errno from the kernel is
// wrapped too.
package verbs
