// Package tagged sends messages that the receiver picks by their tag, over the endpoints of package
// transport.
//
// # The model
//
// A [Worker] holds receives that wait for messages, and messages that wait for receives. An
// [Endpoint] is one peer. A message has a 64-bit tag. A receive has a tag and a mask, and takes
// messages whose tag equals its own in the bits of the mask: from any peer of the worker, or, with
// [Endpoint.Recv], from one.
//
//	eager        up to Config.EagerLimit   copied into as many active messages as it needs;
//	                                       the buffer is free when they have gone out
//	rendezvous   above                     the receiver reads the sender's memory into its own, over
//	                                       every rail, and notifies the sender
//
// Short sends that wait in a row, because the program is faster than the network, go out together
// in one active message.
//
// Send and Recv return at once. Nothing happens by itself: [Worker.Progress], the calls that wait,
// or a goroutine that [Worker.Start] starts make progress.
//
// # A program
//
//	w, _ := tagged.NewWorker(dom, tagged.Config{})
//	ep, _ := w.NewEndpoint(tagged.EndpointConfig{})
//	// ... exchange ep.Card() with the peer as JSON ...
//	ep.Connect(peerCard)
//	err := ep.SendWait(ctx, 7, header, body)              // one message of two pieces
//	info, err := w.RecvWait(ctx, 7, tagged.Exact, buf)    // tag 7
//	req, err := w.Recv(0x100, 0xff00, buf)                // any tag 0x1xx, without waiting
//	info, err := ep.RecvWait(ctx, 7, tagged.Exact, buf)   // tag 7 from this peer
//
// # Which message goes where
//
// Messages of one endpoint are matched in the order in which they were sent. A message goes to the
// first receive posted that fits; a receive takes the first message that arrived and fits. That
// holds for eager and rendezvous alike, although a short message behind a long one may complete
// first. A message longer than its receive completes it with [ErrTruncated]: no byte is written,
// [Info] has the length, and the sender succeeds.
//
// # What the caller must keep
//
//   - All methods may be called from any goroutine. OnError runs inside progress with no lock held;
//     it may send and post receives, and must not wait.
//   - The buffers of a send must not be written to, and those of a receive not touched, until the
//     request is done. Send returns nil in place of a request where it is done already. The program
//     may use the slice of buffers itself again when the call returns.
//   - [Request.Free] gives a request back for another call; the program must not use it any more.
//     With that nothing is allocated. Without it, the garbage collector takes the request.
//   - SendWait and RecvWait cancel what they wait for when their context ends. Where that is not
//     possible any more they return an [*InterruptedError]: the request in it goes on, and owns the
//     buffers until it is done. [Request.Wait] never cancels and returns the same error.
//   - A long message may have any number of pieces. Up to four on each side are read from and into
//     where they are; more go through a buffer made for the message.
//   - Long messages go faster from and into memory that [Worker.Register] has registered before.
//     Other memory is registered for the one operation, which takes microseconds on real NICs, for
//     a GiB a large part of a second, and pins it. Send does that when it is called; a receive does
//     it when its message arrives, and then the round of progress lasts as long, for all peers of
//     the worker. The worker keeps no cache of registrations: Go may use memory for something else
//     without a notice.
//   - Memory of a GPU is registered by its dma-buf ([Worker.RegisterDMABuf]), sent with
//     [Endpoint.SendRegion] and received into with [Worker.RecvRegion]. The processor cannot copy
//     there, so only long messages, and all that come from such memory, can be received into it.
//
// # Flow control, and why it cannot deadlock
//
// The receiver's worker keeps a message that no receive has matched. For each peer it keeps at most
// Config.MaxUnexpected eager fragments and announcements of long messages. Each of them takes a
// place of the window, which the sender counts; a send without a place waits. The receiver grants
// places again as messages are matched and consumed. What endpoints have left that were closed
// takes Config.MaxLeftover fragments at most, all of them together. So the memory for messages is
// bounded by (endpoints × MaxUnexpected + MaxLeftover) × (BufferSize + about 350 bytes). The source
// of a message that was left, a closed endpoint, takes up to 4 KiB more until its last message is
// received: MaxLeftover × 4 KiB at most. Memory for messages that is free is kept for use again up
// to MaxUnexpected × BufferSize. A peer cannot make matching slow by its choice of tags for
// receives of one tag, which are found through hash tables with a factor of the worker's own; a
// receive with a mask looks at all messages that wait.
//
// The protocol of the counters, and the proof that they cannot deadlock, are in package
// internal/flow. It relies on this:
//
//   - The transport's receive buffers are posted again before the handler returns, always: what is
//     kept is copied. So an active message that was sent is received as long as the peer makes
//     progress.
//   - What completes a message takes no place of the window, and does not wait behind sends that
//     need one: the reads of a rendezvous, the notice of a match, and grants wait in queues of
//     their own. So whatever was matched completes, whatever else waits.
//   - A synchronous message keeps its place until its notice has gone out. So the window bounds
//     notices as it bounds messages.
//
// A sender then waits only until the peer's program receives. A program in which A waits for a
// message that B sends behind MaxUnexpected others, which A receives later, deadlocks by itself.
//
// # How it ends
//
// [Endpoint.Close] lets every send complete, says goodbye to the peer, and closes. [Endpoint.Abort]
// closes at once. When a peer fails, or sends what no endpoint sends ([ErrProtocol]), every send to
// it, every receive for it alone and every receive that is matched by a message of it completes
// with an error, EndpointConfig.OnError is called once, and other endpoints go on. Messages that
// have arrived whole can still be received; those that were only announced complete their receive
// with the error. Receives for any peer that no message has matched stay posted, but for those of
// [Worker.RecvWait]: they end with [ErrNoPeer] when no endpoint is left.
//
// An endpoint that has failed keeps its messages until it is closed or aborted. After Close, those
// that have arrived whole can be received as long as closed endpoints have not left more than
// Config.MaxLeftover; the oldest are dropped first. Abort drops what came from the peer.
//
// A peer that vanishes without a goodbye is noticed by what is on its way to it, or else by the
// transport's keep-alive ([transport.Config].KeepAlive).
//
// With Transport.QP.Failover at both ends, an endpoint over several NICs outlives the loss of one,
// without an error; both ends must make progress then. Package transport says more.
package tagged
