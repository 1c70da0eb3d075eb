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
// [Stage] that its loss, or its return, has reached, by the calls of the caller:
//
//	Live --Lose--> Dying --Flushed--> Flushed --Settle--> Settled --Connected--> Ready, Probing
//	 ^                                                                               |
//	 +----------------------------------- WentLive ---------------------------------+
//
// A rail that is Ready or Probing may be lost as well: Lose makes it Dying again.
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
//  2. If a rail fails that another can replace ([Protocol.CanLose]), it takes the log
//     ([Log.Take]), calls [Protocol.Lose], and moves the queue pair to ERR. From then on each send
//     that comes back goes to [Protocol.Returned], each receive without a message to
//     [Rail.Unanswered].
//  3. When the queue pair is in ERR or destroyed, and nothing of it is left at the NIC, it calls
//     [Protocol.Flushed]. Before that, it counts a message that has arrived but will never be whole
//     ([Rail.Unanswered]): a fragment whose immediate has not come.
//  4. It posts the controls that are queued ([Rail.NextControl]) behind whatever is staged on their
//     rail. For each it calls [Rail.ControlPosted] with the number of messages logged so far, logs
//     it, and calls [Protocol.ControlCompleted] when it completes. Controls that arrive go to
//     [Protocol.HandleControl].
//  5. It carries out each action, in order, and reports the result: [Protocol.Settle],
//     [Protocol.Connected], [Protocol.WentLive]. To connect a queue pair it resets it, calls
//     [Rail.Reset] and [Log.Clear], and then posts its receives.
//  6. While [Protocol.Paused] it hands out no new request, and while [Protocol.Unflushed] it posts
//     no receive of the user. When [Protocol.Waits] is false it posts what is in [Protocol.Work]
//     again, all of one role on one rail, in its order.
//  7. Each time that it polls it calls [Protocol.Answer] and [Protocol.Choose], asks for the rails
//     that are due ([Protocol.MayAsk], [Protocol.Due], [Protocol.Ask]), posts receives, posts
//     controls, and calls [Protocol.Overdue]. For a role without any live rail ([Protocol.Lacks])
//     it reports whether a request waits for one ([Protocol.Want]).
//  8. If [Protocol.IdleSuspected] returns true, it queries the state of each queue pair of which
//     the NIC holds nothing, and loses those in ERR as in 2, even if only [Protocol.CanLack] allows
//     it. An event of the NIC may also be a reason to suspect them ([Protocol.SuspectIdle]).
//  9. When the connection fails it calls [Protocol.Drop], and none of the calls of 7 any more;
//     [Protocol.Abandon] when all is over, and [Protocol.Restart] when the queue pairs are reset.
//
// A Protocol is owned by one goroutine at a time.
package failover
