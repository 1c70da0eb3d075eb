// Package stream carries byte streams over RDMA: connections that are a [net.Conn], for programs
// that speak TCP today.
//
//	l, err := stream.Listen(ctx, ":7471", stream.Config{})
//	c, err := stream.Dial(ctx, "host1:7471", stream.Config{})
//
// [Listen] returns a [net.Listener] and [Dial] a [net.Conn], so net/http, net/rpc and gRPC run over
// them unchanged. The zero [Config] opens the NICs of this host by itself (package nics): real
// ones, shared memory between processes of one host, or UDP sockets.
//
// # The model
//
// The first Dial to an address meets the listening process over TCP (package rendezvous, with its
// TLS) and makes a link: one endpoint of package transport over all NICs that reach the peer. Every
// further Dial to that address opens a stream on the same link by one message there and one back.
// The link closes when it has had no stream for Config.IdleLinks.
//
//	                         a link: one virtual queue pair for two processes
//	Write  ≤ 8 KiB  ──► the bytes in an active message ─────────────► the stream's buffer  ──► Read
//	Write  larger   ──► staging ──► put into chunks of the receiver ─► "chunk 7 has 64 KiB" ──► Read
//	                ◄── space, chunks ◄────────────────────────────── what Read has emptied
//
// Bytes are copied once at each end. What a stream may send is counted in bytes: the receiver
// promises room for 8 KiB to each stream, and, when it finds the writer waiting, more, and chunks
// of 64 KiB of its registered memory, at most 4 MiB a stream. A reader that does not read stops its
// writer, and nobody else. Config.Memory bounds what all streams of a Host may take; streams for
// which there is no room are refused, and large writes then go in pieces of 8 KiB.
//
// A call that waits makes progress in place for Config.Spin, and then sleeps. There is one
// goroutine for each set of NICs and one for each link, and none for a connection.
//
// # What you can rely on
//
//   - [Conn] has the semantics of a TCP connection in package net. Errors are a [*net.OpError] with
//     net.ErrClosed, io.EOF, os.ErrDeadlineExceeded, syscall.ECONNRESET, syscall.EPIPE,
//     syscall.ECONNREFUSED or, if Config.Memory is used up, syscall.ENOBUFS for errors.Is; the
//     reason of this library is within reach of errors.As. A Dial that has taken too long has
//     Timeout.
//   - A deadline interrupts the wait and nothing else: Write returns how much it has handed over,
//     and the connection goes on.
//   - Close delivers in the background what was written; CloseWrite ends one direction. Closing a
//     connection with unread data resets it. [Conn.SetLinger] bounds the delivery. For TCP the
//     kernel delivers when a process exits; here the process must live: call [CloseIdle] before you
//     return from main, or what was written last may be lost.
//   - If a link fails, all of its streams end with ECONNRESET, behind the bytes that have arrived,
//     or with io.EOF if these are all. Streams cannot end one another. A peer that breaks the
//     protocol ends its link with [ErrProtocol], and cannot write outside of the chunks of its
//     link.
//   - Strangers at the listener's port cost a bounded number of connections, as package rendezvous
//     says, and 256 that speak its protocol and go no further.
//   - A peer that does not run, in a debugger or a stopped container, or cannot be reached, is
//     given up after Config.Patience, by default two minutes over a software NIC.
//   - The TCP connection on which the two met stays open as long as the link, so the death of the
//     peer is noticed at once.
//
// # TCP instead
//
// With Config.Fallback at both ends, TCP carries the stream where an end has no usable NIC, or
// where the queue pair did not come up and carry a word within Config.Proof. That is decided before
// the first byte; later failures are errors. [Conn.Carrier] says what carries a stream and why, the
// log says so once a peer, and [Counts] counts.
package stream
