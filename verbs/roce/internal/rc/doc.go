// Package rc is the reliable connection of InfiniBand, as RoCEv2 carries it, as a state machine:
// the requester, the responder and the completer of one queue pair (IBTA volume 1, chapter 9).
//
// It has no clock, goroutine, lock or socket. A [QP] takes work requests, packets and the time, and
// returns packets, completions and the time at which it wants to be called again:
//
//	q.Posted()                  // after requests were added to q.SQ or q.RQ
//	q.Receive(now, &h, payload) // for each packet that has arrived
//	q.Transmit(now, &batch)     // after any of these, and again while it reports more
//	q.Tick(now)                 // when the time that q.Deadline returns has come
//
// # The model
//
// A message is cut into packets of the path MTU. Packets carry consecutive numbers of 24 bits, the
// PSNs. In this package they are sequence numbers of 64 bits that do not wrap, and are cut to 24
// only in packets. A read takes one number for each packet of its answer.
//
// The requester keeps a window of the numbers in flight. Each is sent, done (acknowledged, or its
// answer has arrived) or lost (to be sent again). Every event marks numbers: an acknowledgement
// marks them done; a NAK, a gap or a timer marks them lost. Transmit sends lost ones before new
// ones. A request is complete when the window has passed its last number, so completions come in
// posting order.
//
// The responder expects one number. A lower number is a duplicate: it is acknowledged or answered
// again. A higher one reveals a loss. Answers to reads and atomics leave through a queue in the
// order of the requests, and acknowledgements behind them; acknowledgements that need not be
// separate are merged.
//
// # Two kinds of peers
//
// Towards foreign ends (NICs and the kernel's rdma_rxe) a QP goes back to the lost packet and sends
// everything behind it again. Its window follows losses and has at most 128 packets, like
// rdma_rxe's (check.go).
//
// Two ends of this package recognise each other (announce.go). Between them the responder keeps
// packets that arrive ahead of a gap and lists them in its NAK, so that only lost packets are sent
// again, and only once they are too late to be merely reordered; the window is larger and follows
// the delay, or competes with flows that do not (window.go, rival.go). A packet that is sent again
// says so in the reserved bits of the BTH, so that the responder can distinguish the gap of a loss
// from the gap of a forged packet (reorder.go). An acknowledgement is for the last number that was
// carried out: if the peer believes that the number behind it is kept, the responder has dropped
// it. Each single packet is standard RoCEv2.
//
// Towards both kinds, a QP reports the packets that the network has marked, and reacts to such
// reports (ecn.go).
//
// If the last packets were lost, a QP probes after some round trips, long before the queue pair's
// acknowledgement timeout.
//
// # What a caller must do
//
// Calls of one QP must not overlap. Regions of the QP's protection domain must stay until the call
// has returned, and those that a [Batch] uses until the batch has been sent. One lock held
// throughout ensures this.
package rc
