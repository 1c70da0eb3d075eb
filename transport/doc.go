// Package transport is the send side of ibverbx: endpoints over virtual queue pairs with active
// messages, one-sided puts, gets and atomics, in the three ways that move bytes cheaply at every
// size.
//
// # The model
//
// A [Worker] owns a virtual CQ, pools of registered memory, and the handlers of active messages. An
// [Endpoint] is one peer, reached through one [ibverbx.VirtualQP]. Two endpoints exchange their
// [Card] and [Endpoint.Connect].
//
//	short   the data is copied from the argument, into the work request where it fits    complete when the call returns
//	bcopy   a pack function writes it into a registered bounce buffer                    complete when the call returns
//	zcopy   it is sent from the caller's registered memory                               complete when the [Completion] fires
//
// A call that cannot start says [ErrNoResource]: nothing was consumed, nothing was queued, and it
// can be made again after some progress. Who would rather be called back queues a [Pending]
// request. Anything else that is refused comes with an error that says why.
//
// Nothing happens by itself: progress is made by [Worker.Progress], by the calls that wait, or by a
// goroutine that [Worker.Start] starts.
//
// # A program
//
//	dom, _ := ibverbx.NewDomain(devices...)
//	w, _ := transport.NewWorker(dom, transport.Config{})
//	w.Handle(1, func(m *transport.Message) { fmt.Printf("%s\n", m.Data()) })
//	ep, _ := w.NewEndpoint(transport.EndpointConfig{})
//	// ... exchange ep.Card() with the peer as JSON ...
//	ep.Connect(peerCard)
//	err := ep.AMShort(1, nil, []byte("hello"))                      // an active message: runs the peer's handler 1
//	err = ep.PutShort(data, peerMR.At(0))                           // into the peer's memory
//	c := transport.NewCompletion(1, nil)
//	done, err := ep.PutZcopy(c, peerMR.At(4096), mr.Slice(0, n))    // from registered memory; peerMR came as JSON, see ibverbx.RemoteMR
//	err = ep.Flush(ctx, transport.FlushRemote)                      // all of it is in the peer's memory
//
// # Order
//
// Completions of an endpoint fire in the order of the calls, over rails that reorder too. Active
// messages of an endpoint are handled in the order in which they were sent. Puts, gets, atomics and
// active messages are not ordered among each other: [Endpoint.Fence] orders what comes after it
// behind what came before, and [Endpoint.Flush] completes it.
//
// # What the caller must keep
//
//   - All methods may be called from any goroutine. Calls on one worker take turns.
//   - Handlers, completion functions, pending functions and error functions run inside Progress (or
//     a call that waits, or the goroutine of Start), one at a time for each worker, with no lock
//     held: they may send, on any endpoint, and post Pending requests. They must not wait: neither
//     [Worker.Wait], [Endpoint.Flush] nor Close; Progress called from them does nothing. A panic in
//     one of them is for the program to die of: the worker is left locked.
//   - Memory given to a zcopy, a get or a fetching atomic belongs to the NICs until the completion
//     has fired. A context that ends a wait changes nothing about that.
//   - A [Message] is the handler's until it returns, unless it calls [Message.Keep]; then until
//     [Message.Release].
//   - Two ends that only send and never make progress stand still: credits for active messages come
//     back by progress.
//
// # Flow control
//
// Each end keeps Config.AMBuffers receive buffers posted for each peer and the sender counts them:
// an active message needs a credit, which comes back when the receiver's handler has returned or
// the message was released. A slow receiver so slows its senders, and a queue pair never runs out
// of receives. Puts, gets and atomics need no credit.
//
// # How it ends
//
// [Endpoint.Close] flushes, tells the peer, and closes. [Endpoint.Abort] closes at once: what is
// outstanding completes with [ErrCanceled]. When a peer fails, every operation of its endpoint
// completes with an error that is [ErrPeerFailed], and EndpointConfig.OnError is called once; other
// endpoints go on. A peer that vanishes without a word is noticed by what is on its way to it, and
// on an endpoint that is silent by a small read from time to time (Config.KeepAlive).
package transport
