// Package bench measures a virtual queue pair between two ends, or a layer above it, and checks
// every byte that it moves. [Run] drives both ends; [Lead] and [Follow] drive one each, in two
// processes that talk over a TCP connection.
//
// A run is a table: one row for each message size, one column for each load-balancing scheme. A
// column is a pair of connected ends, and has a cell for each size. A cell is measured in rounds. In
// a round each message has a slot of the target memory to itself. When the round is over and the
// clock stopped, every slot is compared with what was sent into it. The source is random, and each slot gets another piece of it in each round, so a
// message that never arrived is found like one that arrived wrong.
//
// Package layers moves the messages. To this package a virtual queue pair is a layer like those
// above it. Only virtual queue pairs have schemes to compare, faults (fault.go, inject.go,
// faultplan.go) and time lines. If a time line is wanted, the goroutine that plays the rounds reads
// the counters several times in each interval (timeline.go), by a stopwatch that stops between
// rounds. What each fault did to the bandwidth is computed at the end.
//
// In one process one goroutine drives both ends. It polls, and when nothing has come for a while it
// sleeps until an event of either end, because software NICs need the cores themselves.
//
// In two processes each drives its own end. It compares what arrives with the other end's source,
// which follows from the seed. Both go through the same steps of a conversation (peer.go;
// messages.go lists the messages). The connecting end decides what is measured, and measures. If
// both send at the same time, each times what it sends, and the longer time counts. Neither trusts
// the other: parameters are bounded, messages are checked, and a peer that falls silent or
// disconnects ends the run.
//
// How to add a mode, an operation or a fault: cmd/ibverbx/INTERNALS.md.
package bench
