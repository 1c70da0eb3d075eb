// Package rendezvous brings two processes together over TCP and connects them: from an address and
// a context to queue pairs at both ends that are ready.
//
// # The model
//
// One process listens, others dial. Each gets a [Conn], a conversation in which the two ends
// exchange what they need to know. [Connect] exchanges the cards of the objects to be connected: an
// *ibverbx.VirtualQP, a *transport.Endpoint, a *tagged.Endpoint, or anything else with Card and
// Connect. It returns at both ends only after both are connected, so that nothing can arrive before
// the peer is ready. [Exchange] sends a value of your own, such as the location of your memory, and
// [Conn.Barrier] waits for the other end.
//
//	        listening                          dialling
//	l, err := Listen(ctx, addr, cfg)
//	c, err := l.Accept(ctx)            c, err := Dial(ctx, addr, cfg)
//	err = Connect(ctx, c, qp)      ◄─► err = Connect(ctx, c, qp)
//	theirs, err := Exchange(ctx, c, mr.Remote())
//	                               ◄─► theirs, err := Exchange(ctx, c, mr.Remote())
//
// Both ends take the same steps in the same order, as often as they like: you can connect any
// number of queue pairs over one conversation. You may close it when everything is connected, or
// keep it to exchange messages: [Conn.Send], [Conn.Receive], [Conn.Next]. RDMA does not need it,
// but RDMA notices late that a peer has died; [Conn.Done] reports it at once, [Conn.Context] ends
// calls that wait for the peer's data, and [Conn.Err] tells a peer that has closed, [ErrLeft], from
// one that has died, [ErrGone].
//
// The package imports no NICs. Package ibverbx/nics chooses those that reach the peer.
//
// # What is guaranteed
//
//   - Nothing waits longer than its context, nor forever: Config.Timeout limits each step of a
//     conversation, and Config.Greeting its beginning. Accept and Next wait for events without a
//     time of their own, so only their context limits them. Send takes as long as a slow link needs
//     for a long message, as long as that moves. A step that fails (Connect, Exchange,
//     Barrier) takes up to 2 seconds more to tell the peer why, and so does [Conn.Fail]; one whose
//     context has ended returns within 100 ms.
//   - Input from a peer is not trusted. Memory is bounded: a message is read as it arrives, at most
//     Config.MaxMessage bytes, and a few messages wait to be received. Reasons that quote the peer
//     contain no control characters and are bounded in length.
//   - A [Listener] greets all peers at the same time. Strangers, silence, noise and slow clients
//     cost it no more than Config.MaxGreetings connections at a time, and keep no client out:
//     further ones wait until a greeting ends, or until the oldest is a second old and is dropped.
//     A client that is dropped gets [ErrGone], and may dial again. Accept returns only
//     conversations that have begun.
//   - An error that one end finds is sent to the other, which returns it as a [*PeerError].
//
// # Who may connect
//
// Without Config.TLS, anyone who reaches the port and knows the protocol. With it, crypto/tls
// decides: set Certificates at the listener and RootCAs at those who dial. For both ends to
// authenticate each other, also set ClientAuth and ClientCAs at the listener and Certificates at
// those who dial. [Conn.TLS] identifies the peer.
//
// TLS protects the conversation: the cards, and with them who connects to whom, the packet sequence
// numbers that the queue pairs begin with, and the memory keys that you send over it. Nobody else
// can read or change them, or be connected in the peer's place. TLS does not protect RDMA traffic:
// neither RoCE nor InfiniBand encrypts or authenticates packets, and anyone who can read or forge
// packets between the NICs can read or forge data. Use a network whose hosts you trust.
//
// # On the wire
//
// Each end begins with the magic 0x89 "ibverbx", the version of this format as a big-endian number
// of four bytes, which is 9 (1 to 7 were the command's own), one byte with the length of the name
// of the protocol, and that name, Config.Protocol. Ends that differ in one of them part there. Then
// come messages:
//
//	4 bytes   length of what follows, big-endian, at most Config.MaxMessage
//	n bytes   JSON: {"kind":"card","body":{...}}
//
// The program defines the kinds; only "error" and "detach" are reserved. The body of "error",
// {"text":"..."}, says why an end gives up, with "busy":true if it is for ErrBusy, and nothing
// follows it. A length of 0 is the goodbye of an end that closes the conversation; nothing follows
// it either. Behind "detach", which Detach sends without a body, come bytes of the program. Connect
// sends "card", {"type":"ibverbx.BusinessCard", "card":{...}}, and then "connected"; Exchange sends
// "value", and Barrier "barrier".
package rendezvous
