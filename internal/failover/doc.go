// Package failover is the protocol by which the two ends of a virtual queue pair agree on what has
// arrived over a lost rail, and bring the rail back. docs/FAILOVER.md states its rules, R1 to R20
// and B1 to B8, and proves that they are safe.
//
// The package is stepped from outside. It knows no queue pair, no clock and no socket: the caller
// reports what has happened and what time it is, and gets back what to do, as a list of [Action].
// Nothing here calls the caller, so a test can play two ends against each other without any NIC.
//
// # Model
//
// A [Protocol] is one end of one connection. It has a [Rail] for each physical queue pair, with the
// stage that its loss, or its return, has reached:
//
//	Live --Lose--> Dying --Flushed--> Flushed --Settle--> Settled --Connected--> Ready, Probing
//	 ^                                                                               |
//	 +----------------------------------- WentLive ---------------------------------+
//
// A [Log] lists what a rail has outstanding. When the rail is lost the log becomes a list of
// [Entry]. When the rail is settled the protocol knows whether each entry has arrived; the others
// become [Work], to be posted again.
//
// The ends exchange control messages of 32 bits, which the caller carries in the immediate of a
// SEND of no bytes. A control about a rail travels on every live data rail, because any of them may
// die; a second copy changes nothing.
//
// # What the caller does
//
//  1. It logs each work request in the order in which it is posted, and counts the receives that it
//     posts ([Rail.Posted]).
//  2. If a rail fails that another can replace ([Protocol.CanLose]), it moves the queue pair to ERR
//     and calls [Protocol.Lose]. From then on each send that comes back goes to
//     [Protocol.Returned], each receive without a message to [Rail.Unanswered].
//  3. When nothing of the rail is left at the NIC, it calls [Protocol.Flushed].
//  4. It posts the controls that are queued ([Rail.NextControl]) behind whatever is staged on their
//     rail, and hands those that arrive to [Protocol.HandleControl].
//  5. It carries out each action, in order, and reports the result: [Protocol.Settle],
//     [Protocol.Connected], [Protocol.WentLive].
//  6. While [Protocol.Paused] it hands out no new request. When [Protocol.Waits] is false it posts
//     what is in [Protocol.Work] again, all of one role on one rail, in its order.
//  7. Each time that it polls it calls [Protocol.Choose], [Protocol.Answer] and [Protocol.Overdue],
//     and where [Protocol.MayAsk] allows it asks for the rails that are due.
//
// A Protocol is owned by one goroutine at a time.
package failover
