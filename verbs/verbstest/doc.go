// Package verbstest is the test kit of package verbs: a conformance suite for providers of NICs,
// and a provider that does nothing, for measuring the code above it.
//
// # The suite
//
// [Run] checks the contract of package verbs against two devices of a provider, in named subtests:
// what each state of a queue pair allows, every opcode with the data it moves, the protection of
// memory, errors and the flush that follows them, the limits of queues, events. A provider's own
// test is a few lines:
//
//	func TestConformance(t *testing.T) {
//		verbstest.Run(t, verbstest.Env{
//			Open: func(t *testing.T) (a, b verbs.Device) {
//				fabric, err := soft.New(soft.Config{Devices: 2})
//				...
//				return fabric.Device(0), fabric.Device(1)
//			},
//		})
//	}
//
// It asserts only what the InfiniBand specification (IBTA volume 1), the manual pages of libibverbs
// or the contract promise. Where real NICs differ, it accepts every outcome that one of them may
// show; a comment beside the check says which and why.
//
// [Pair], [Node] and [Connect] also help to test programs on top of verbs: two connected queue
// pairs with memory and completion queues, and a wait with a deadline.
//
// # The null provider
//
// [Null] is a provider whose requests complete at once and move no data. A post and a poll on it
// cost a few nanoseconds and allocate nothing, so a benchmark over it measures only the code above
// it.
package verbstest
