// Package tagged sends messages that the receiver selects by their tag, over the endpoints of
// package transport.
//
// # The model
//
// A [Worker] holds receives that wait for messages, and messages that wait for receives. An
// [Endpoint] is one peer. A message has a 64-bit tag. A receive has a tag and a mask, and takes
// messages whose tag equals its own in the bits of the mask: from any peer of the worker or, with
// [Endpoint.Recv], from one.
//
//	eager        up to Config.EagerLimit   copied into as many active messages as it needs;
//	                                       the buffer is free when they have been sent
//	rendezvous   above                     the receiver reads the sender's memory into its own, over
//	                                       every rail, and notifies the sender
//
// Consecutive short sends that wait, because the program is faster than the network, go out
// together in one active message.
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
//	b, info, err := w.RecvAlloc(ctx, 7, tagged.Exact, 1<<20) // of unknown length, up to 1 MiB
//	i, err := tagged.WaitAny(ctx, sending, req)           // also WaitSome, WaitAll
//
// A probe describes a message that has arrived, and a claim ([Worker.ClaimWait]) takes it, to be
// received when there is memory for it. docs/FROM-MPI.md has MPI's names beside those of this
// package.
//
// # Programs of N processes
//
// [Join] makes a worker that is one of N ranks, with an endpoint to each, by its number:
//
//	j, err := job.Join(ctx, job.Config{}) // or any other all-gather
//	w, err := tagged.Join(ctx, dom, tagged.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather})
//	right, err := w.Peer((j.Rank() + 1) % j.Size())
//	err = right.SendWait(ctx, 7, body)
//	info, err := w.RecvWait(ctx, 7, tagged.Exact, buf)    // info.Source.Rank() says from whom
//
// [Worker.Peer] of the own rank leads to the own receives; that endpoint is made with the first
// call. The others are made by Join, or with Config.OnDemand when one of the two processes first
// asks for them. With the default configuration, over one software NIC, a rank takes this:
//
//	a worker                  2.1 MB
//	each endpoint             5 queue pairs, 350 KB of memory; 120 KB with Transport.AMBuffers of 4
//	all at once               Size-1 endpoints: 350 MB for 1,000 ranks; each passes 660 bytes for
//	                          each of them through Exchange, which returns those of all ranks:
//	                          660 MB for 1,000
//	on demand                 at most log2(Size) at the start: 10 endpoints, 3.5 MB, for 1,000 ranks;
//	                          8 bytes for each other rank; and what the program uses. The first
//	                          message between two of 64 ranks takes 0.7 to 1 ms
//
// On demand, ranks whose numbers differ in one bit are connected from the start, and pass on what
// others need to connect: at most log2(Size) steps there, and as many back. So each of them must
// make progress whatever its program does, and Join starts a goroutine that does. Peer and Send do
// not wait; a send goes out when the peer has connected. More than 128 endpoints at a time take a
// larger Transport.MaxEndpoints, which NICs pay for in the length of their completion queues.
//
// When a rank fails, those that pass messages on go round it. If a message between two others was
// in it, the endpoint for which it was stays unconnected: waits for it end with their contexts. A
// job tells its processes of a death: see package job.
//
// Before a rank closes its worker, others must have received what they need of it, and on demand
// need it no more to connect: let all wait for each other first, for instance in the job's Barrier.
//
// # Collective calls
//
// All ranks of a worker that has joined, or of a [Team], make them, in the same order, each from
// one goroutine at a time:
//
//	err := w.Barrier(ctx)
//	err := tagged.AllReduce(ctx, w, sums, values, tagged.OpSum)
//	err := tagged.Broadcast(ctx, w, weights, 0) // from rank 0
//
// Reduce, ReduceScatter, Scan, Gather, AllGather, Scatter and AllToAll are the others; those with a
// V have blocks of unequal lengths, those with Func combine by a function of yours. Elements are
// integers and floats. AllReduce, Scan, and Reduce at its root take dst and src at the same place,
// AllGather, Gather and Scatter a block that is in its place of the long slice already; otherwise
// they must not overlap. Values are combined in an order that depends only on the call
// and on the number of ranks, so the bits are the same in every run, and AllReduce has the same on
// every rank. A call returns when this rank has its result and its memory is its own again. Only
// Barrier waits for all ranks.
//
// StartBarrier, StartAllReduce and so on begin a call and return a [Request]: it is done when the
// call is, and owns the memory until then. Up to 31 of a team are under way at once, and one for
// every 8 of Config.MaxUnexpected, which all ranks must give alike, of all teams together. They are
// done in any order:
//
//	sum, err := tagged.StartAllReduce(w, sums, values, tagged.OpSum)
//	...                                  // compute, start others
//	err = sum.Wait(ctx)
//
// They go on whenever the worker makes progress, so with [Worker.Start] while the program computes.
// When the context of a Request.Wait ends, the call goes on; that of a blocking call ends it.
//
// Their messages have tags above [MaxTag], which no mask matches, and share the window with those
// of the program. Long ones are fastest from and into registered memory; a call registers other
// memory once. In the steady state a call allocates nothing, unless it registers memory.
//
// If the ranks make different calls, or one refuses its arguments, all get [ErrMismatch]; one of
// them says who called what. If a rank fails, or the context of a rank ends, the call ends on all,
// with the reason: the rank that has failed, or those that are waited for. If a deadline has
// passed, these are the ranks that have not made the call, and those that do not answer, which
// takes up to half a second to find out. A rank that has all that it needs of a call succeeds even
// if others have ended it, unless it knows of that when it calls; its next call has the error.
// After an error no collective call of the team works any more, and the memory of the one that
// failed may be accessed until [Worker.Close] has returned. Messages and other teams go on, and the
// ranks that are left can make a smaller team: see [Team.Shrink]. Errors name ranks by their
// numbers in the world, and with their hosts if there are several.
//
// # Teams
//
// Some of the ranks make a [Team], with numbers, messages and collective calls of its own, which
// never meet those of others. A grid of 3 columns, for example:
//
//	world := w.World()
//	row, err := world.Split(ctx, world.Rank()/3, world.Rank())
//	column, err := world.Split(ctx, world.Rank()%3, world.Rank())
//	err = tagged.AllReduce(ctx, row, sums, values, tagged.OpSum)
//	below, err := column.Peer((column.Rank() + 1) % column.Size())
//	err = below.SendWait(ctx, column.Tag(7), edge)        // message 7 of this team
//	info, err := w.RecvWait(ctx, column.Tag(7), tagged.Exact, buf) // from any member
//	from := column.RankOf(info.Source)
//	err = column.Close()
//
// A team ends with [Team.Close] or with the worker. When a rank dies, calls of its teams that need
// it end, and receives from it alone, and nothing else.
//
// # Which message goes where
//
// Messages of one endpoint are matched in the order in which they were sent. A message goes to the
// first posted receive that fits; a receive takes the first message that arrived and fits. This
// holds for eager and rendezvous alike, although a short message behind a long one may complete
// first. A message that is longer than its receive completes it with [ErrTruncated]: no byte is
// written, [Info] has the length, and the send succeeds.
//
// # What you must do
//
//   - You may call all methods from any goroutine. OnError runs inside progress with no lock held;
//     it may send and post receives, and must not wait.
//   - Do not write to the buffers of a send, and do not touch those of a receive, until the request
//     is done. Send returns nil instead of a request that is done already. You may reuse the slice
//     of buffers itself when the call returns.
//   - [Request.Free] returns a request for reuse by another call; do not use it afterwards. Then
//     nothing is allocated. Without it, the garbage collector takes the request.
//   - SendWait and RecvWait cancel what they wait for when their context ends. If that is no longer
//     possible they return an [*InterruptedError]: the request in it goes on, and owns the buffers
//     until it is done. [Request.Wait] never cancels and returns the same error.
//   - A long message may have any number of pieces. Up to four on each side are read and written in
//     place; more go through a buffer made for the message.
//   - Long messages are faster from and into memory that you have registered with
//     [Worker.Register]. Other memory is registered for the one operation, which takes microseconds
//     on real NICs, and a large part of a second for a GiB, and pins the memory. A send registers
//     when you call it. A receive registers when its message arrives, and that round of progress
//     then takes as long, for all peers of the worker. The worker keeps no cache of registrations,
//     because Go may reuse memory without notice. Between processes of one host, messages from
//     memory of [Worker.Alloc] are copied once.
//   - Register GPU memory by its dma-buf ([Worker.RegisterDMABuf]), send it with
//     [Endpoint.SendRegion], and receive into it with [Worker.RecvRegion]. The processor cannot
//     copy there, so only long messages, and messages of any length from such memory, can be
//     received into it.
//
// # Flow control, and why it cannot deadlock
//
// The receiver's worker keeps a message that no receive has matched. For each peer it keeps at most
// Config.MaxUnexpected eager fragments and announcements of long messages. Each of them takes a
// place in the window, which the sender counts; a send without a place waits. The receiver grants
// places again as messages are matched and consumed. What closed endpoints have left takes at most
// Config.MaxLeftover fragments in all. So the memory for messages is bounded by (endpoints ×
// MaxUnexpected + MaxLeftover) × (BufferSize + about 350 bytes). The source of a leftover message,
// a closed endpoint, takes up to 4 KiB more until its last message is received: MaxLeftover × 4 KiB
// at most. Up to MaxUnexpected × BufferSize of free message memory is kept for reuse. A peer cannot
// slow down matching by its choice of tags: receives of one tag are found through hash tables with
// a random factor of the worker. A receive with a mask looks at all waiting messages.
//
// Package internal/flow has the protocol of the counters and the proof that they cannot deadlock.
// It relies on this:
//
//   - The transport's receive buffers are always posted again before the handler returns: whatever
//     is kept is copied. So an active message that was sent is received as long as the peer makes
//     progress.
//   - What completes a message takes no place of the window, and does not wait behind sends that
//     need one: the reads of a rendezvous, the notice of a match, and grants wait in queues of
//     their own. So every matched message completes, whatever else waits.
//   - A synchronous message keeps its place until its notice has been sent. So the window bounds
//     notices as it bounds messages.
//
// A sender therefore waits only until the peer's program receives. A program in which A waits for a
// message that B sends behind MaxUnexpected others, which A receives later, deadlocks by itself.
//
// # How it ends
//
// [Endpoint.Close] lets every send complete, sends the peer a goodbye, and closes. [Endpoint.Abort]
// closes at once. When a peer fails, or sends what no endpoint sends ([ErrProtocol]), every send to
// it, every receive for it alone and every receive that one of its messages has matched completes
// with an error. EndpointConfig.OnError is called once, and other endpoints go on. Messages that
// have arrived whole can still be received; those that were only announced complete their receive
// with the error. Receives for any peer that no message has matched stay posted, except those of
// [Worker.RecvWait], which end with [ErrNoPeer] when no endpoint is left.
//
// An endpoint that has failed keeps its messages until you close or abort it. After Close, messages
// that have arrived whole can be received as long as closed endpoints have not left more than
// Config.MaxLeftover; the oldest are dropped first. Abort drops what came from the peer.
//
// If a peer vanishes without a goodbye, operations to it fail; a silent one is detected by the
// transport's keep-alive ([transport.Config].KeepAlive).
//
// With Transport.QP.Failover at both ends, an endpoint over several NICs survives the loss of one
// without an error; both ends must make progress then. See package transport.
package tagged
