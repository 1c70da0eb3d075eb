// Package sim plays whole systems of virtual queue pairs on software NICs, one for each seed, and
// checks after every event that package ibverbx keeps its promises, whatever fails.
//
// # A world
//
// A seed decides everything: the NICs and hosts; the virtual CQs, some of them shared, some polled
// directly; one to three connections of one to six rails, each with scheme, fragment size, limits,
// credits, first number and cards; and a list of events (plan.go). An event posts, polls, lets the
// fabric move, injects a fault (package lab), breaks the rules as a peer (hostile_peer.go), makes
// wrong calls (refusals.go), or resets, connects, drains and closes (session.go). The fabric is
// stepped: the landing of data, its acknowledgement, and the visibility of a completion are
// separate actions, in random order.
//
// Package verbs/roce plays the same worlds over its own NICs ([Over]), on a network in virtual time
// that harms packets: programs must not notice momentary harm.
//
// # The model
//
// The model knows the promises, not the library. It has two sources. Taps (taps.go) see every
// physical request and completion, so the model knows which requests the NICs hold (on_wire.go,
// dqplb_number.go). Every request has its own memory (request_memory.go), so the model knows what
// each byte must be. The promises (world.go) are checked when a request goes out, when a completion
// is polled (completion.go, poll.go), and when nothing moves any more (finish.go).
//
// A connection may fail only because of a fault that concerns it: every fault records which
// connections it may fail, and any other failure is a broken promise.
//
// Some ends have [ibverbx.Config].Trace. When their virtual CQ is closed, the steps of each request
// must be complete and in order (trace.go).
//
// # Failover
//
// Separate worlds ([FailoverGame]) have connections with failover, and faults that take rails out:
// at either end, several at a time, again while one is being settled, with messages that arrive
// after their sender has given up on them. Such a connection may fail only when every rail of a
// kind has suffered a fault (failover.go). The model knows each part of a request that a queue pair
// carries, their order, and which have arrived. So it knows what may be sent again: only what is
// certainly lost, on another rail, unchanged and in order (part.go). The memory that a write has
// filled is reused as soon as its request, or a notification behind it, is reported, so that a late
// copy is detected. Events.Rail must report each loss and each return once, alternately.
//
// # Running it
//
//	go test ./test/sim                                  1,000 worlds, and 1,500 whose rails die
//	make sim SEEDS=1000000                              more, with progress
//	go test ./test/sim -v -run TestSim -args -seed 47   one world, event by event
//	go test ./test/sim -run Mutations -args -mutate     plants bugs: some minutes
//	go test ./test/sim -run 'Replays$' -args -kit       tests of the simulation itself
//
// A failing world is shrunk, and printed with the command that plays it again. A seed is valid only
// for the revision on which it was found.
//
// testdata has almost two hundred deliberate bugs (package hunt describes the format). Those of the
// protocol of the two ends (protocol.bugs) are found by the test of internal/failover.
package sim
