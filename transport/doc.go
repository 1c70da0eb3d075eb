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
//	       where the data comes from                     complete when
//	short  copied from the argument                      the call returns
//	bcopy  packed into a registered bounce buffer        the call returns
//	zcopy  sent from the caller's registered memory      the [Completion] fires
//
// A call that cannot start returns [ErrNoResource]: it had no effect, and can be made again after
// some progress. To be called back instead, queue a [Pending] request, or send on
// [Endpoint.NotifyReady]. Any other error says why the call was refused.
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
//	// An active message: the peer runs its handler 1.
//	err := ep.AMShort(1, nil, []byte("hello"))
//	// Puts, copied and from registered memory. peerMR, an ibverbx.RemoteMR, came as JSON, too.
//	err = ep.PutShort(data, peerMR.At(0))
//	c := transport.NewCompletion(1, nil)
//	done, err := ep.PutZcopy(c, peerMR.At(4096), mr.Slice(0, n))
//	// When this returns, all of it is in the peer's memory.
//	err = ep.Flush(ctx, transport.FlushRemote)
//
// # Order
//
// Completions of an endpoint fire in the order of the calls, even where rails reorder. Active
// messages of an endpoint are handled in the order in which they were sent. Puts, gets, atomics and
// active messages are not ordered among each other: [Endpoint.Fence] orders later operations behind
// earlier ones, and [Endpoint.Flush] waits until the earlier ones have completed.
//
// # What the caller must keep
//
//   - All methods may be called from any goroutine. One lock serialises the calls on a worker.
//   - Handlers, completion functions, pending functions and error functions run inside Progress (or
//     a call that waits, or the goroutine of Start), one at a time for each worker, with no lock
//     held: they may send, on any endpoint, and queue Pending requests. They must not call what
//     waits, such as [Worker.Wait], [Endpoint.Flush] or Close; Progress called from them does
//     nothing. A callback that panics or calls runtime.Goexit kills the worker: the panic is not
//     recovered, and every call returns [ErrWorkerDead] from then on.
//   - Memory given to a zcopy, a get or a fetching atomic belongs to the NICs until the completion
//     has fired. A context that ends a wait changes nothing about that. It may be memory of a GPU:
//     [ibverbx.Domain.RegisterDMABuf].
//   - A [Message] is valid until its handler returns, or, if that calls [Message.Keep], until
//     [Message.Release].
//   - Two ends that only send active messages and never make progress deadlock: neither returns
//     credits.
//
// # Flow control
//
// Each end keeps Config.AMBuffers receive buffers posted for each peer and the sender counts them:
// an active message needs a credit, which comes back when the receiver's handler has returned or
// the message was released. So a slow receiver slows its senders, and a queue pair never runs out
// of receives. Puts, gets and atomics need no credit.
//
// # How it ends
//
// [Endpoint.Close] flushes, sends the peer a goodbye, and closes. [Endpoint.Abort] closes at once:
// what is outstanding completes with [ErrCanceled], and the peer's endpoint fails. When a peer
// fails, every operation of its endpoint completes with an error that is [ErrPeerFailed], and
// EndpointConfig.OnError is called once, before pending functions run a last time; other endpoints
// are not affected. A peer that vanishes without a goodbye is noticed when operations to it fail; a
// silent endpoint is probed by a small read (Config.KeepAlive).
//
// # When a NIC is lost
//
// With Config.QP.Failover at both ends, an endpoint over several queue pairs outlives the loss of
// one, of a NIC, or of the path between two, as long as at both ends one of each kind is left; see
// [ibverbx.Config]. No operation fails by that, and all that is promised above holds. Stats counts
// in RailsLost, and in RailsBack what has come back since. How soon it is noticed depends on the
// retries of QP.Conn. Both ends must make progress meanwhile: one that makes none for
// QP.FailoverTimeout has failed.
//
// The exception are atomics. One that has no answer when its queue pair is lost may have changed
// the number or not, and cannot be repeated: it ends with [ErrAtomicLost], by its completion, or,
// where it has none, by the next flush, or Close. And those of endpoints that have lost a NIC meet
// those of others in another NIC of the peer: they are atomic to each other then only where the
// peer's NICs are among themselves, which few are.
//
// A new endpoint needs all NICs of the domain.
package transport
