// Package bench measures a virtual queue pair between two ends, or a layer above it, and checks
// every byte that it moves. [Run] drives both ends; [Lead] and [Follow] drive one each, in two
// processes that talk over a TCP connection.
//
// A run is a table: one row for each message size, one column for each load-balancing scheme, and
// beside them copy() over the same memory. A column is a pair of connected ends, one row of it a
// cell. A cell is measured in rounds. In a round each message has a slot of the target memory to
// itself; when the round is over and the clock stopped, every slot is compared with what was sent
// into it. The source is random, and from round to round each slot gets a different piece of it, so
// a message that never arrived shows as much as one that arrived wrong.
//
// Package layers moves the messages. To this package a virtual queue pair is a layer like those
// above it: the same cell, rounds, memory, comparing, report and conversation serve all of them.
// Virtual queue pairs have more: faults that strike their requests, recovery after a failure, and
// an account of every completion (fault.go, inject.go, faultplan.go, recover.go, accounting.go). Of
// a cell whose time line is wanted the goroutine that plays the rounds reads the counters some
// times in each interval (timeline.go), and what each fault did to the bandwidth is computed in the
// end (dips.go). The time is that of a stopwatch which stands between the rounds.
//
// In one process one goroutine drives both ends of a queue pair. It polls, and when nothing has
// come for a while it sleeps until an event of either end: where the NICs are software they need
// the cores themselves. Streams through a layer have a goroutine and a worker for each end, which
// spin and sleep as the layer does. Latencies are measured by one goroutine; only with events the
// answering end has one of its own. An interruption cuts the rounds of queue pairs short; those of
// the layers run to their end a moment later.
//
// In two processes each drives its end alone: it has its own memory, and the source of the other
// end, which follows from the seed, to compare with. The connecting end decides and takes the
// figures; messages.go lists their messages. Where both send at the same time, each takes the time
// of what it sends, and the longer one counts; a round that was cut short does not. Neither trusts
// the other: parameters are bounded and messages are checked, and a peer that falls silent or
// disconnects ends the run.
//
// The conversation has no package of its own: its messages carry this package's parameters, results
// and machines, and each of its steps is one of a cell or of a run. A package for it would have to
// import this one and be called by it.
package bench
