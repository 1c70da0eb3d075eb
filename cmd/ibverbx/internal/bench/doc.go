// Package bench measures a virtual queue pair between two ends, or a layer above it, and checks
// every byte that it moves. [Run] drives both ends; [Lead] and [Follow] drive one each, in two
// processes with a TCP connection.
//
// In a round each message has a slot of the target memory to itself. The source is random, and each
// slot gets another piece of it in each round, so a missing message is found like a wrong one.
//
// Package layers moves the messages. cmd/ibverbx/INTERNALS.md describes a run and its rounds, two
// processes, faults and time lines, and how to add a mode, an operation or a fault.
package bench
