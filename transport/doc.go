// Package transport connects endpoints over virtual queue pairs: active messages, one-sided puts,
// gets and atomics. Bytes move in one of three ways, so that every size is cheap.
//
// # The model
//
// A [Worker] owns a virtual CQ, pools of registered memory, and the handlers of active messages. An
// [Endpoint] is one peer, reached through one [ibverbx.VirtualQP]. Two endpoints exchange their
// [Card] and call [Endpoint.Connect].
//
//	       where the data comes from                     complete when
//	short  copied from the argument                      the call returns
//	bcopy  packed into a registered bounce buffer        the call returns
//	zcopy  sent from the caller's registered memory      the [Completion] fires
//
// A call that cannot start returns [ErrNoResource]: it had no effect, and you can repeat it after
// some progress. To be called back instead, queue a [Pending] request, or send on the view that
// [Endpoint.NotifyReady] returns. Any other error says why the call was refused.
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
// Completions of an endpoint fire in the order of the calls, even if rails reorder. Active messages
// of an endpoint are handled in the order in which they were sent. Puts, gets, atomics and active
// messages have no order among each other: [Endpoint.Fence] orders later operations behind earlier
// ones, and [Endpoint.Flush] waits until the earlier ones have completed.
//
// # What you must do
//
//   - You may call all methods from any goroutine. One lock serialises the calls on a worker.
//   - Handlers, completion functions, pending functions and error functions run inside Progress (or
//     a call that waits, or the goroutine of Start), one at a time per worker, with no lock held.
//     They may send on any endpoint and queue Pending requests. They must not call anything that
//     waits, such as [Worker.Wait], [Endpoint.Flush] or Close; if they call Progress, it does
//     nothing. A callback that panics or calls runtime.Goexit kills the worker: the panic is not
//     recovered, and every later call returns [ErrWorkerDead].
//   - Memory that you give to a zcopy, a get or a fetching atomic belongs to the NICs until the
//     completion has fired. The end of a context that ends a wait does not change that. It may be
//     GPU memory: [ibverbx.Domain.RegisterDMABuf].
//   - A [Message] is valid until its handler returns or, if the handler calls [Message.Keep], until
//     [Message.Release].
//   - Do not let both ends send active messages without making progress: neither returns credits,
//     so they deadlock.
//
// # Flow control
//
// Each end keeps Config.AMBuffers receive buffers posted for each peer, and the sender counts them.
// An active message needs a credit, which comes back when the receiver's handler has returned or
// the message was released. So a slow receiver slows its senders, and a queue pair never runs out
// of receives. Puts, gets and atomics need no credit.
//
// # How it ends
//
// [Endpoint.Close] flushes, sends the peer a goodbye, and closes. [Endpoint.Abort] closes at once:
// outstanding operations complete with [ErrCanceled], and the peer's endpoint fails. When a peer
// fails, every operation of its endpoint completes with an error that is [ErrPeerFailed], and
// EndpointConfig.OnError is called once, before pending functions run a last time. Other endpoints
// are not affected. If a peer vanishes without a goodbye, operations to it fail; a silent endpoint
// is probed by a small read (Config.KeepAlive).
//
// # When a NIC is lost
//
// With Config.QP.Failover at both ends, an endpoint over several queue pairs survives the loss of
// one, of a NIC, or of the path between two, as long as one of each kind is left at both ends; see
// [ibverbx.Config]. No operation fails because of it, and all promises above hold. Stats counts the
// losses in RailsLost, and the returns in RailsBack. How soon a loss is noticed depends on the
// retries of QP.Conn. Both ends must make progress meanwhile: an end that makes none for
// QP.FailoverTimeout has failed.
//
// Atomics are the exception. An atomic that has no answer when its queue pair is lost may have
// changed the number or not, and cannot be repeated. It ends with [ErrAtomicLost]: by its
// completion or, if it has none, by the next flush or Close. Also, endpoints that have lost a NIC
// reach the peer through another of its NICs than other endpoints do. Their atomics are then atomic
// to each other only if the peer's NICs are atomic among themselves, which few are.
//
// While a NIC of the domain is gone, no new endpoint can be made.
package transport
