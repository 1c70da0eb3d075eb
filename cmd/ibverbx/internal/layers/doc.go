// Package layers moves messages for measurements: through virtual queue pairs, and through the
// layers above them, package transport's active messages, puts, gets and atomics, package tagged's
// messages, package shmem's puts, gets and atomics. It prints nothing, compares no bytes, and does
// not know whether its peer is in this process.
//
// An [End] is one end of a connection. [End.Begin] prepares it for a round, [Run] plays the part of
// one end, or of both ends, in one goroutine. A [Round] determines the contents of the messages. A
// layer implements the interface traffic for an end: qp.go for virtual queue pairs, layers.go for
// everything above them.
package layers
