// Package bench measures a virtual queue pair between two ends in this process, and checks every byte that it moves.
//
// A run is a table: one row for each message size, one column for each load-balancing scheme, and beside them copy() over the
// same memory. A cell is measured in rounds. In a round each message has a slot of the target memory to itself; when the round
// is over and the clock stopped, every slot is compared with what was sent into it. The source is random, and from round to
// round each slot gets a different piece of it, so a message that never arrived shows as much as one that arrived wrong.
// Completions are counted and must come in posting order.
//
// Both ends are driven by one goroutine. It polls, and when nothing has come for a while it sleeps until an event of either end:
// the NICs are software here and need the cores themselves. Only when latency is measured by events the answering end has a
// goroutine of its own.
package bench
