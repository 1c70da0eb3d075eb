// Package sendside plays whole systems of the send side on software NICs, one for each seed, and
// checks that packages transport, tagged and shmem keep what they promise, whatever fails.
//
// # Worlds
//
// There are three games, which share a bed (bed.go): two to five hosts with one to three NICs each
// on a stepped fabric, one to four rails, faults (fault.go), and programs that wait. A seed decides
// on all of it. Programs are coroutines (player.go): a call that waits hands over, by
// transport.Config.Idle, whenever it has made progress in vain, and the world chooses whether the
// fabric moves next, a worker makes progress, or a program goes on. So blocking calls are played as
// exactly as everything else.
//
//	TestTransport   endpoints: every operation from programs, handlers, completions and pending requests; flush, fence, purge, abort, close;
//	                wrong arguments; peers that send what no endpoint sends
//	TestTagged      messages: eager and long, synchronous, cancelled, probed, with wildcards, truncated; programs that wait
//	TestShmem       PEs that run one program of phases: puts and gets, signals, fences, atomics, barriers, collective calls
//
// # The models
//
// They know the promises, not the library. Every operation has memory of its own (memory.go), so it
// is known what each byte must be: before, while it may land, after, and after it has failed. A
// connection may fail only where something was done to it; a failure that nobody is to blame for is
// a broken promise.
//
// Of endpoints the model keeps the operations in the order of the calls, the queue, and the
// messages on their way. Of tagged messages it keeps all sends and receives in order, and checks
// each pair against the rules of matching: no message overtakes one of the same peer, no receive
// one posted earlier. Of PEs it keeps what each has put and not completed.
//
// # Running it
//
//	go test ./test/sendside                                                      4,400 worlds, and some twice: ten seconds on two cores
//	go test ./test/sendside -run TestTransport$ -args -seeds 100000 -progress     for as long as you like
//	go test ./test/sendside -v -run TestTagged$ -args -seed 4711                  one world, told event by event
//	go test ./test/sendside -run Mutations -timeout 30m -v -args -mutate          plants bugs and demands that each is found: some minutes
//
// A world that fails is shrunk: events are left out for as long as the same promise is broken, and
// what is left is printed as a story, with the command that plays it again. A seed means something
// only together with the revision that it was found on.
package sendside
