// Package rc is the reliable connection of InfiniBand, as RoCEv2 carries it, as a state machine:
// the requester, the responder and the completer of one queue pair (IBTA volume 1, chapter 9).
//
// There is no clock, goroutine, lock or socket in it. A [QP] is given work requests, packets and
// the time, and gives packets, completions and the time at which it wants to be called again:
//
//	q.Posted()                  // after requests were added to q.SQ or q.RQ
//	q.Receive(now, &h, payload) // for each packet that has arrived
//	q.Transmit(now, &batch)     // after any of these, and again while it reports more
//	q.Tick(now)                 // when the time that q.Deadline tells has come
//
// # The model
//
// A message is cut into packets of the path MTU. Packets carry consecutive numbers of 24 bits, the
// PSNs; in here they are sequence numbers of 64 bits that do not wrap, and are cut to 24 only in
// packets. A read takes one number for each packet of its answer.
//
// The requester keeps a window of the numbers that are under way. Each is sent, done (acknowledged,
// or its answer has arrived) or lost (to be sent again). Everything that can happen to a packet
// marks numbers: an acknowledgement marks them done, a NAK, a gap or a timer marks them lost, and
// Transmit sends lost ones before new ones. A request is complete when the window has passed its
// last number, so completions come in the order of posting.
//
// The responder expects one number. What is behind it is a duplicate: it is acknowledged again, or
// answered again. What is ahead of it reports a loss. Answers to reads and atomics leave through a
// queue in the order of the requests, and acknowledgements behind them; those that need not be told
// apart become one.
//
// # Two kinds of peers
//
// Towards foreign ends, NICs and the kernel's rdma_rxe, a QP goes back to the packet that was lost
// and sends everything behind it again, has at most 128 packets under way as rdma_rxe does, and
// waits for the acknowledgement timeout of the queue pair when it hears nothing.
//
// Between two ends of this package, which find each other by themselves (announce.go), the
// responder keeps what arrives ahead of a gap and tells in its NAK what it has, so that only what
// was lost is sent again; the window is larger and follows the delay (see window.go); and a lost
// tail is probed for after some round trips. Each packet for itself is RoCEv2 as everywhere.
//
// # What a caller must keep
//
// Calls of one QP do not overlap. The regions that the QP's protection domain knows stay until
// the call has returned, and what a [Batch] names until the batch has been sent: one lock held over
// all of it does.
package rc
