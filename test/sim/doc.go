// Package sim plays whole systems of virtual queue pairs on software NICs, one for each seed, and
// checks after every event that each keeps what package ibverbx promises, whatever fails.
//
// # A world
//
// A seed decides on everything: how many NICs there are and on which hosts; virtual CQs, some
// shared, some polled directly; one to three connections of one to six rails, with their scheme,
// fragment size, limits, credits, first number and cards; and a list of events (event.go) that
// posts, polls, steps the fabric, strikes with faults (fault.go), breaks the rules as a peer
// (invade.go), makes mistakes as a program (refuse.go, fumble.go), and resets, connects, drains and
// closes. The fabric is stepped: data that lands, its acknowledgement, and the moment when a
// completion becomes visible are actions of their own, in an order that is drawn.
//
// # The model
//
// The model knows the promises, not the library. It has two sources. Taps (tap.go) stand between
// the library and the NICs and see every physical request and completion: so it is known which
// requests the NICs hold (end.go, number.go). And every request has memory of its own (memory.go),
// so it is known what each byte must be. Rules (rule.go) are checked when a request goes out, when
// a completion is polled (complete.go), and when nothing moves any more (finish.go).
//
// A connection may fail only where something was done to it: everything that strikes notes whom it
// may concern, and a failure that nobody is to blame for is a broken promise. That is how a fault
// on one connection is kept from hurting the next.
//
// # Running it
//
//	go test ./test/sim                                                 2,000 worlds, and the mutations: a minute or two on two cores
//	make sim SEEDS=1000000                                             for as long as you like, with progress
//	go test ./test/sim -v -run 'TestSimulation$' -args -seed 4711      one world, told event by event
//
// A world that fails is shrunk: events are left out for as long as the same promise is broken, and
// what is left is printed as a story, with the command that plays it again. Worlds depend on
// nothing but their seed and this source: a seed means something only together with the revision
// that it was found on. The one clock left is that of a single queue pair which cannot be asked
// whether it has flushed.
//
// # Does it bite?
//
// TestMutations plants over eighty bugs in package ibverbx (mutations_test.go), one at a time, by
// way of the go command's overlay, and demands that each is found.
package sim
