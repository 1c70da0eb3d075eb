// Package layers moves messages for measurements: through virtual queue pairs, and through the
// layers above them, package transport's active messages, puts, gets and atomics, package tagged's
// messages, package shmem's puts, gets and atomics. It times only single messages, prints nothing,
// compares no bytes, and does not know whether its peer is in this process.
//
// An [End] is one end of a connection, or of several with --endpoints. [End.Begin] prepares it for
// a round, [End.Run] plays its part in it, and [End.Series] plays rounds of one message at a time.
// Package pattern says what a message carries. What a layer does for an end is the interface
// traffic; one file each implements it.
//
// The loops call a layer as a good program would. A stream starts messages until the layer says
// that it is out of resources, and makes progress then; it sleeps as the layer's own waiting calls
// do. Nothing is allocated for a message: pack functions are bound once, slices of pieces live on,
// one completion serves a round.
package layers
