// Package rendezvous is a conversation between two processes over one TCP connection: small
// messages, which both ends check.
//
// # On the wire
//
// Each end begins with twelve bytes: the magic 0x89 "ibverbx", and the version of its messages as a
// big-endian number of four bytes. Ends of different versions part there. Then come frames:
//
//	4 bytes   length of what follows, big-endian, at most Config.MaxFrame
//	n bytes   JSON: {"kind":"round","body":{...}}
//
// What kinds there are, and what their bodies hold, is the user's; only "error" belongs to this
// package: its body {"text":"..."} says why an end gives up, and nothing follows it.
//
// # Guarantees
//
//   - Nothing waits for ever, nor longer than the context: sending, receiving, the beginning and
//     the rest of a frame that has begun each have Config.Timeout.
//   - Memory is bounded: a frame is read as it comes, never more than MaxFrame, and a few frames
//     wait to be received. A peer that sends more waits itself.
//   - The connection is read continuously, as long as there is room for what arrives. [Conn.Done]
//     closes as soon as the peer has gone, whatever this end is doing, and [Conn.Err] then says how
//     it went: [ErrGone], a [*PeerError] with the peer's own words, or an [ErrProtocol].
//   - Text of the peer that reaches a terminal holds no control characters, is bounded in length,
//     and has its further lines indented.
package rendezvous
