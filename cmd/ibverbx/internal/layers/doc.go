// Package layers moves messages through the layers above queue pairs, for those who measure:
// package transport's active messages, puts, gets and atomics, package tagged's messages, package
// shmem's puts, gets and atomics. It takes no time but that of single messages, prints nothing,
// compares nothing, and does not know whether its peer is in this process.
//
// An [End] is one end of a connection, or of several with --endpoints. [End.Begin] prepares it for
// a round, [End.Run] plays its part in it, and [Series] plays rounds of one message at a time. What
// a message carries is said by package pattern.
//
// The loops call a layer as a good program would. A stream starts messages until the layer says
// that it is out of resources, and makes progress then; it sleeps as the layer's own waiting calls
// do. Nothing is allocated for a message: pack functions are bound once, pieces of memory are told
// in a slice that lives on, one completion serves a round.
package layers
