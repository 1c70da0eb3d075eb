// Package failover is the protocol by which the two ends of a virtual queue pair agree on what has
// become of a rail that was lost, and bring it back. docs/FAILOVER.md says why it is safe, and
// names its rules, R1 to R20 and B1 to B8.
//
// The package is stepped from outside. It knows no queue pair, no clock and no socket: the caller
// says what has happened and what time it is, and gets back what is to be done, as a list of
// [Action]. Nothing here calls the caller, so two ends can be played against each other in a test
// without any NIC.
//
// # Model
//
// A [Protocol] is one end of one connection. It has a [Rail] for each physical queue pair, with the
// stage to which its loss, or its return, has come:
//
//	Live --Lose--> Dying --Flushed--> Flushed --Settle--> Settled --Connected--> Ready, Probing
//	 ^                                                                               |
//	 +----------------------------------- WentLive ---------------------------------+
//
// A [Log] lists what a rail has outstanding. When the rail is lost the log becomes a list of
// [Entry]; when it is settled the protocol knows of each entry whether it has arrived, and what has
// not becomes [Work], to be posted again.
//
// The ends talk by control messages of 32 bits, which the caller carries in the immediate of a SEND
// of no bytes. A control that says something of a rail travels on every live data rail, since any
// one may die; to receive it twice changes nothing.
//
// # What the caller does
//
//  1. It logs each work request in the order in which it is posted, and counts the receives that it
//     posts ([Rail.Posted]).
//  2. Where a rail fails for which another one can stand in ([Protocol.CanLose]), it moves the
//     queue pair to ERR and calls [Protocol.Lose]. From then on each send that comes back goes to
//     [Protocol.Returned], each receive without a message to [Rail.Unanswered].
//  3. When nothing of the rail is left at the NIC, it calls [Protocol.Flushed].
//  4. It posts the controls that are queued ([Rail.NextControl]) behind whatever is staged on
//     their rail, and hands those that arrive to [Protocol.HandleControl].
//  5. It carries out each action, in order, and reports what came of it: [Protocol.Settle],
//     [Protocol.Connected], [Protocol.WentLive].
//  6. While [Protocol.Paused] it hands out no new request. When [Protocol.Waits] is false it posts
//     what is in [Protocol.Work] again, all of one role on one rail, in its order.
//  7. Each time that it polls it calls [Protocol.Choose], [Protocol.Answer] and
//     [Protocol.Overdue], and where [Protocol.MayAsk] allows it asks for the rails that are due.
//
// A Protocol is owned by one goroutine at a time.
package failover
