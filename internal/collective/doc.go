// Package collective says which rank sends what to which rank in a collective call, as data. It has
// no NIC, no clock and no goroutine, and calls nobody: a transport carries out its steps.
//
// # Model
//
// A [Shape] describes one call as one rank makes it: the [Kind], the [Algorithm], the ranks, the
// root, the elements, and how messages are cut into pieces. [New] turns it into a [Schedule], a
// list of [Step]. A step sends a range to a rank, receives from a rank into a range, combines two
// ranges into a third, or copies one. It names the steps that must be done before it begins.
//
// Ranges are in elements, and lie in a [Buffer]:
//
//	Src    what the caller passes, never written
//	Dst    the result; Broadcast has only Dst, which the root fills
//	Tmp    Schedule.Tmp elements of scratch memory
//	Land   for each peer Depth slots of Piece elements, where what is to be combined arrives
//
// A Send also says where its message belongs at the peer, so a transport that writes to the peer's
// memory need not ask. The n-th message of one rank to another is number n at both: see
// Step.Number. It is in slot n%Depth if it goes to Land.
//
// An algorithm is a program of one rank that makes one step at a time ([builder]); the rows of one
// table name them all, with what each costs (methodTable). The dependencies are not part of the
// program: they follow from the ranges that steps read and write. So whatever does not concern the
// same memory is under way at the same time, the pieces of a long vector above all, and memory that
// is Src and Dst at once (Shape.InPlace) changes only the dependencies.
//
// # An all-reduce of 4 ranks by the ring, as rank 1 sees it
//
// The vector has 8 elements, a block for each rank. Blocks go up the ring and each rank adds its
// own elements; then the finished blocks go round once more.
//
//	0 send    Src[0:2] to 2, Land[0:2]                    block 0 begins at rank 1
//	1 receive Land[0:2] from 0                            block 3 of rank 0
//	2 combine Dst[6:8] = Land[0:2] of 0, Src[6:8]         after 1
//	3 send    Dst[6:8] to 2, Land[2:4]                    after 2
//	4 receive Land[2:4] from 0                            block 2 of ranks 3 and 0
//	5 combine Dst[4:6] = Land[2:4] of 0, Src[4:6]         after 4
//	6 send    Dst[4:6] to 2, Land[0:2]                    after 5, and after 0 is done: Depth is 2
//	7 receive Land[0:2] from 0                            block 1 of ranks 2, 3 and 0, after 2
//	8 combine Dst[2:4] = Land[0:2] of 0, Src[2:4]         after 7: block 1 is finished
//	9 send    Dst[2:4] to 2, Dst[2:4]                     after 8
//	...
//
// # What the transport does
//
//  1. It makes the schedule of a shape once ([Cache]), and calls [Run.Start] for each call.
//  2. It begins every step that [Run.Next] returns. A message is sent and a receive posted, or
//     compared with what has arrived; Combine and Copy are carried out at once.
//  3. It calls [Run.Done] when a step is done: the source of a send may be written to, the message
//     of a receive is in its range, the combination is in memory. Then it calls Next again.
//  4. The call is over when [Run.Finished].
//
// It may call Next later if it has no room: receives, combinations and copies come before sends, so
// nothing that another rank waits for is held up behind a send. Sends to one rank begin in the
// order of their numbers, receives from it, too, so counters suffice to match them. At most Depth
// messages from one rank to another are under way at once.
//
// No rank needs the memory of a call before the receive into it has begun. A transport that writes
// to the peer's memory must therefore know that the peer has begun it, for Dst and Tmp. A slot of
// Land is free when the message Depth before has been combined.
//
// A schedule without messages waits for nobody: that of no elements, of one rank, or of a rank that
// only sends, once its sends are done.
//
// # What is the same everywhere
//
// All ranks must pass the same Shape, but for Rank, InPlace, and what Counts of an all-to-all say.
// The order in which values are combined depends on the shape alone, never on what arrives first,
// so the result is the same bits in every run. All-reduce gives the same bits on every rank. With
// Shape.Ordered the operands are in the order of the ranks: the operation need only be associative.
//
// # Elements
//
// [Apply] and [Bitwise] have the loops for the operations of each type of elements. [Float16] and
// [BFloat16] are types of their own, which are added in float32 and rounded to nearest, ties to
// even.
package collective
