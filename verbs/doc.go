// Package verbs is the vocabulary of RDMA verbs in Go, and the contract that a provider of NICs
// fulfils.
//
// It holds no mechanism of its own: names, values and interfaces. The values are those of the verbs
// ABI (libibverbs, <infiniband/verbs.h>), so they cast and compare with what a real NIC reports;
// the names are the field's own in Go's capitals. Only reliable-connected (RC) queue pairs are
// described.
//
// # The model
//
// A [Provider] lists [Device] values (NICs). On a device a program allocates a [PD] (protection
// domain), in it registers memory ([MR]) and creates queue pairs ([QP]), and creates completion
// queues ([CQ]). It moves two queue pairs through INIT, RTR and RTS with [QP.Modify], posts work
// requests ([SendWR], [RecvWR]) and polls work completions ([WC]).
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
// # What a caller must keep
//
//   - The memory that a work request names belongs to the NIC from the post until the completion is
//     polled (for an unsignaled send: until a later signaled one of the same queue pair completes,
//     or the queue pair is closed). The slices that describe it (the []SendWR, each SGL, Inline)
//     are read during the post only.
//   - When [WC.Status] is not [StatusSuccess], only ID, Status, QPNum and VendorErr mean anything.
//     Real NICs leave the other fields undefined. Never route or interpret an error by its opcode.
//   - A completion queue must have room for every completion that may be outstanding on it. One
//     that overruns loses completions and is dead, on real NICs as here.
//   - To sleep until a completion comes: [CQ.Arm], poll once more, then [CompChannel.Wait]. In any
//     other order a completion that arrives in between wakes nobody.
//
// # Events
//
// A NIC reports some things outside of completions: that a link went down, that a queue overran,
// that the NIC itself has failed. [Device.Watch] sends such an [Event] to a channel. Events may be
// lost, but for the NIC's death, and may be late: what one reports may be over when it is read.
// Take it as a reason to query the state, and never for the state itself.
//
//	events := make(chan verbs.Event, 16)
//	stop := dev.Watch(events)
//	defer stop()
//	port, err := dev.QueryPort(dev.DefaultPort()) // watch first, then query: nothing falls in between
//	for e := range events {
//		log.Print(e) // "mlx5_0 port 1: port error"
//		port, err = dev.QueryPort(dev.DefaultPort())
//		...
//	}
//
// Completions have a way of their own to wake a program, the [CompChannel].
//
// # Concurrency
//
// Every method of a provider's objects may be called from any goroutine. Two goroutines that post
// to one queue pair or poll one CQ at the same time are serialised, in no particular order.
//
// # Errors
//
// A refused call has no effect. The error is an [*OpError] that names the call and the device, over
// a sentinel ([ErrQueueFull], [ErrState], ...) for errors.Is; an errno from the kernel stays
// reachable beneath it.
package verbs
