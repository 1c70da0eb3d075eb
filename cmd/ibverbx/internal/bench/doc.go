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
// above it. Only virtual queue pairs have schemes to compare, faults (fault.go, inject.go,
// faultplan.go) and time lines: of a cell whose time line is wanted the goroutine that plays the
// rounds reads the counters some times in each interval (timeline.go), and what each fault did to
// the bandwidth is computed in the end (dips.go). The time is that of a stopwatch which stands
// between the rounds.
//
// In one process one goroutine drives both ends. It polls, and when nothing has come for a while it
// sleeps until an event of either end: where the NICs are software they need the cores themselves.
//
// In two processes each drives its end alone: it has its own memory, and the source of the other
// end, which follows from the seed, to compare with. Both go through the same steps of a
// conversation (peer.go; messages.go lists the messages). The connecting end decides and takes the
// figures. Where both send at the same time, each takes the time of what it sends, and the longer
// one counts. Neither trusts the other: parameters are bounded and messages are checked, and a peer
// that falls silent or disconnects ends the run.
//
// How to add a mode, an operation or a fault: cmd/ibverbx/INTERNALS.md.
package bench
