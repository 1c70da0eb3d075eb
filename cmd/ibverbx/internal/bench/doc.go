// Package bench measures a virtual queue pair between two ends, or a layer above it, and checks
// every byte that it moves. [Run] drives both ends; [Lead] and [Follow] drive one each, in two
// processes with a TCP connection.
//
// A run is a table: one row for each message size, one column for each load-balancing scheme. A
// column is a pair of connected ends, and has a cell for each size. A cell is measured in rounds.
// In a round each message has a slot of the target memory to itself. When the round is over and the
// clock stopped, every slot is compared with what was sent into it. The source is random, and each
// slot gets another piece of it in each round, so a missing message is found like a wrong one.
//
// Package layers moves the messages. cmd/ibverbx/INTERNALS.md describes a run, two processes,
// faults and time lines, and how to add a mode, an operation or a fault.
package bench
