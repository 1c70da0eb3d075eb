// Package bench measures a virtual queue pair between two ends, or a layer above it, and checks
// every byte that it moves. [Run] drives both ends; [Lead] and [Follow] drive one each, in two
// processes that talk over a TCP connection.
//
// A run is a table: one row for each message size, one column for each load-balancing scheme, and
// beside them copy() over the same memory. A cell is measured in rounds. In a round each message
// has a slot of the target memory to itself; when the round is over and the clock stopped, every
// slot is compared with what was sent into it. The source is random, and from round to round each
// slot gets a different piece of it, so a message that never arrived shows as much as one that
// arrived wrong. Completions are counted and must come in posting order.
//
// In one process both ends are driven by one goroutine. It polls, and when nothing has come for a
// while it sleeps until an event of either end: where the NICs are software they need the cores
// themselves. Only when latency is measured by events the answering end has a goroutine of its own.
//
// What lies above queue pairs is moved by package layers; the rounds, the memory, the comparing,
// the report and the talk of two processes are the same. A column is then a stack, and not a rig; a
// cell of either is a measurement that keeps the same meter. Streams are played by a goroutine and
// a worker for each end, which spin and sleep as the layer does, and latencies by one goroutine, as
// above. Their rounds are not cut short: an interruption waits for the end of one, which takes no
// more than a moment.
//
// In two processes each has the engine for its end alone: its side of the flows, its own memory,
// and the source of the other end, which follows from the seed, to compare with. The connecting end
// decides and takes the figures; what the two say to each other is told where the messages are
// declared. Where both send at the same time, each takes the time of what it sends, and the longer
// one counts; a round that was cut short does not. Neither trusts the other: parameters are bounded
// and messages must fit, and a peer that stops talking, or goes, ends the run.
package bench
