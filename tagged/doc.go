// Package tagged sends messages that the receiver picks by their tag, over the endpoints of package
// transport.
//
// # The model
//
// A [Worker] holds receives that wait for messages, and messages that wait for receives. An
// [Endpoint] is one peer. A message has a 64-bit tag; a receive says which tags it takes by a tag
// and a mask, from any peer of the worker: all those that equal its own in the bits of the mask.
//
//	eager        up to Config.EagerLimit   copied into active messages, as many as it takes; the buffer is free when they have gone
//	rendezvous   above                     the receiver reads the sender's memory, over every rail, into its own, and tells the sender
//
// Short sends that wait in a row, because the program is faster than the network, go out together
// in one active message.
//
// Send and Recv return at once. Nothing happens by itself: progress is made by [Worker.Progress],
// by the calls that wait, or by a goroutine that [Worker.Start] starts.
//
// # A program
//
//	w, _ := tagged.NewWorker(dom, tagged.Config{})
//	ep, _ := w.NewEndpoint(tagged.EndpointConfig{})
//	// ... exchange ep.Card() with the peer as JSON ...
//	ep.Connect(peerCard)
//	err := ep.SendWait(ctx, 7, header, body)                        // one message of two pieces
//	info, err := w.RecvWait(ctx, 7, tagged.Exact, buf)              // tag 7
//	req, err := w.Recv(0x100, 0xff00, buf)                          // any tag 0x1xx, without waiting
//
// # Which message goes where
//
// Messages of one endpoint are matched in the order in which they were sent, and a message takes
// the first receive posted that fits; a receive takes the first message that arrived and fits. That
// holds for eager and rendezvous alike, although a short message behind a long one may complete
// first. A message longer than its receive is [ErrTruncated]: no byte is written, [Info] tells the
// length, and the sender succeeds.
//
// # What the caller must keep
//
//   - All methods may be called from any goroutine. OnError runs inside progress with no lock held;
//     it may send and post receives, and must not wait.
//   - The buffers of a send must not be written to, and those of a receive not touched, until the
//     request is done. Send returns nil in place of a request where it is done already. The slice
//     of buffers itself is the caller's again when the call returns.
//   - A request may be given back by [Request.Free], and not be used any more then: with that
//     nothing is allocated. Without, the garbage collector takes it.
//   - SendWait and RecvWait cancel what they wait for when their context ends. Where that is not
//     possible any more they return an [*InterruptedError]: the request in it goes on, and the
//     buffers are its own until it is done. [Request.Wait] never cancels and returns the same
//     error.
//   - A long message may have any number of pieces. Up to four on each side are read from and into
//     where they are; more go through a buffer made for the message.
//   - Long messages go faster from and into memory that was registered before, by
//     [Worker.Register]; other memory is registered for the one operation, which takes microseconds
//     on real NICs, for a GiB a good part of a second, and pins it. Send does that when it is
//     called; a receive when its message has come, and then the round of progress lasts as long,
//     for all peers of the worker. The worker keeps no cache of registrations: Go may use memory
//     for something else without anybody being told.
//
// # Flow control, and why it cannot deadlock
//
// A message that nobody waits for is kept by the receiver's worker. For each peer it keeps at most
// Config.MaxUnexpected eager fragments and announcements of long messages: the sender counts them
// (a window), holds back what goes beyond, and the receiver gives the window back, in batches, as
// messages are matched and consumed. So memory is bounded by peers × MaxUnexpected × buffer size.
//
// The receive buffers of the transport are given back before the handler returns, always: what is
// kept is copied. So an active message that was sent is always taken in as long as the peer makes
// progress. What completes a message (the end of a rendezvous, the notice that a synchronous send
// was matched, the window given back) needs no window, and does not wait behind sends that need
// one: those wait in a queue of their own. Reads need none either. So whatever was matched
// completes, whatever else waits; and its window comes back: the receiver gives it back at once
// when the sender may have none left, even a single one, in the middle of a message of many
// fragments. A synchronous message keeps its place until its notice has gone out, so that notices
// are bounded by the window as messages are. A sender then waits for one thing only, that the
// peer's program receives. A program in which A waits for a message that B sends behind
// MaxUnexpected others that A receives later has a deadlock of its own.
//
// # How it ends
//
// [Endpoint.Close] lets every send complete, tells the peer, and closes. [Endpoint.Abort] closes at
// once. When a peer fails, or sends what no endpoint sends ([ErrProtocol]), every request that has
// to do with it completes with an error, EndpointConfig.OnError is called once, and other endpoints
// go on. Messages that had arrived whole can still be received; those that had only been announced
// complete their receive with the error. Receives that no message has matched stay posted: they are
// not tied to a peer.
//
// A peer that vanished without a word is noticed by what is on its way to it, or else by the
// transport's keep-alive ([transport.Config].KeepAlive). A receive that is posted for any peer goes
// on waiting: who expects something of one peer alone ends the wait from OnError.
package tagged
