// Package sendside plays whole systems of the send side on software NICs, one for each seed, and
// checks that packages transport, tagged and shmem keep their promises, whatever fails.
//
// # Worlds
//
// There are four games. The worlds of the first three stand on the same testbed (testbed.go,
// package lab): two to five hosts with one to three NICs each on a stepped fabric, one to four
// rails, faults, and programs that wait. A seed decides everything. Programs are coroutines
// (actor.go): a waiting call hands over, through transport.Config.Idle, whenever a round of
// progress brought nothing.
//
//	TestTransport   endpoints: every operation from programs, handlers, completions and pending
//	                requests; flush, fence, purge, abort, close; wrong arguments
//	TestTagged      messages: eager and long, synchronous, cancelled, probed, with wildcards,
//	                truncated; programs that wait
//	TestShmem       PEs that run the same program of phases: puts and gets, signals, fences,
//	                atomics, barriers, collective calls, blocks; contexts that end early; what
//	                follows the loss of a PE, calls that differ, and Close
//	TestRanks       ranks that have joined: random collective calls, several under way at each
//	                rank, compared with a loop, in teams that they make, too; endpoints on demand,
//	                around ranks that are gone
//
// # The models
//
// The models know the promises, not the library. Every operation has its own memory, so the model
// knows what each byte must be. A connection may fail only because of a fault that concerns it.
//
// For endpoints, the model has the operations in the order of the calls, the queue, and the
// messages on their way (transport_endpoint.go, transport_pending.go). For tagged messages, it has
// all sends and receives in order, and checks each pair against the rules of matching: no message
// overtakes one of the same peer, and no receive an earlier one (tagged_recv.go). For PEs, it has
// the incomplete puts of each (shmem_world.go).
//
// The flags, the shrinking of failing worlds, and the planting of bugs are as in package sim.
package sendside
