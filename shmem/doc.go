// Package shmem is OpenSHMEM's model in Go: processing elements that read and write each other's
// memory, over package transport. docs/FROM-OPENSHMEM.md says what each call of OpenSHMEM is here.
//
// # The model
//
// A [PE] is one of a fixed number of processing elements, numbered from 0. Each is a process, or
// goroutines of one process, or both. Every PE has a symmetric heap of the same size. All PEs call
// [Alloc] together, which gives each a block at the same place in its heap, so that one handle, a
// [Sym], names the block on every PE:
//
//	counts, err := shmem.Alloc[uint64](ctx, pe, 64)         // 64 numbers on each PE
//	err = shmem.Add(ctx, pe, counts.At(7), 1, 3)            // count in PE 3's, atomically
//	err = shmem.Put(ctx, pe, counts, mine, 3)               // write all of PE 3's
//	err = pe.Barrier(ctx)                                   // everything of all PEs has arrived
//	fmt.Println(counts.Local(pe))                           // this PE's own copy, as a []uint64
//
// Operations are one-sided: the other PE's program need not call anything. A PE reaches its own
// heap through its NIC, too, so that atomics are atomic among themselves whichever PE issues them.
//
// # When an operation is done
//
//	Put          returns when the source can be reused; Quiet, or a Barrier, completes it
//	PutNBI       starts: do not write to the source before Quiet
//	Get          returns with the data
//	GetNBI       starts: the data is there after Quiet
//	Fence        orders this PE's puts, atomics and signals to each PE: the later ones land after
//	             the earlier ones. It waits for nothing
//	Quiet        completes everything of this PE, and makes it visible to every PE
//	PutSignal    when the target sees the signal, all of the data is in its memory, over any number
//	             of rails
//	WaitUntil    waits for a word of this PE's heap that another PE changes
//	Barrier      calls Quiet, and then waits for all PEs
//
// Only Quiet orders a Get behind an earlier Put. Without Fence puts land in any order.
//
// # Atomics
//
// [FetchAdd] and its like change the first word of a Sym on one PE. They are atomic among
// themselves, whichever PEs and goroutines issue them, including the target. They are not atomic
// with puts, nor with the processor's own writes.
//
// NICs have fetch-add and compare-and-swap of eight bytes. All other atomics, and every one on four
// bytes, are loops of compare-and-swap, repeated while another PE changes the word, so they take
// two round trips or more. Only [Add] and [Inc] on eight bytes do not wait at all. Atomics on four
// bytes work on the aligned eight that hold them: a put to the other half at the same moment may be
// lost, an atomic on it is not.
//
// If a connection fails, or ctx ends, during an atomic, the atomic may have taken effect or not.
//
// # Teams
//
// A [Team] is some of the PEs, with ranks of their own. [Team.Split] makes teams of those that pass
// the same color; [PE.Team] is the team of all. Collective calls take a team, or a PE for all:
//
//	row, err := pe.Team().Split(ctx, pe.Rank()/width, 0)    // a team for each row of a grid
//	err = shmem.Reduce(ctx, row, sums, part, shmem.OpSum)   // sums of my row
//	err = shmem.Put(ctx, pe, edge, mine, row.Translate(next, pe.Team()))
//
// Calls of two teams never meet, also if the teams have the same PEs, and a PE that is late for one
// delays only its teams. A team needs no memory of the heap. Errors name a call by its team and its
// number there: all-gather 17 of team "world/2". Only the team of all PEs allocates, and has
// Barrier; another one calls Quiet and [Team.Sync].
//
// # Calls that go on by themselves
//
// [StartReduce], [StartBroadcast] and so on begin a collective call and return a [Request]: it is
// done when the call is, and owns the memory until then. Up to 31 are under way at once. Between
// two PEs the messages of a call follow those of the calls before it; calls that need nothing of
// each other's PEs are done in any order, so a PE that is late holds up only the calls that wait
// for it:
//
//	sum, err := shmem.StartReduce(pe, sums, part, shmem.OpSum)
//	...                                  // compute, start others
//	err = sum.Wait(ctx)
//
// They go on in every collective call and [Request.Wait] of this PE, in [PE.Progress], and with
// Config.Background also while the program computes. When the context of a Request.Wait ends, the
// call goes on; that of a call that waits ends it. The PEs of a team may mix both forms of a call.
//
// # A program
//
// Several PEs of one process, each with its own NIC or sharing one, are a [World]:
//
//	world, err := shmem.NewLocal(ctx, shmem.Config{}, domains...)
//	err = world.Run(ctx, func(ctx context.Context, pe *shmem.PE) error { ... })
//	err = world.Close(ctx)
//
// PEs in several processes find each other by any means that the program has, an all-gather of a
// few KiB: see [Join] and Config.Exchange.
//
// # What you must do
//
//   - You may call puts, gets, atomics, waits, Fence and Quiet from any goroutine. Fence and Quiet
//     order and complete what was called before them. All PEs of a team make its collective calls
//     (Broadcast, Reduce, ReduceScatter, Scan, Gather, AllGather, Scatter, AllToAll, those with
//     a V, those named Start, Sync, Split) in the same order,
//     and all PEs Alloc, Free, Barrier and Close; on one goroutine of a PE at a time, also for
//     several teams: a second one gets [ErrBusy]. So PEs that are in several teams make the calls
//     of all in one order.
//   - Read what others write into a heap only after a WaitUntil, a barrier or a collective call has
//     made sure that it is there. To poll a word without them, use [Load]. The processor's own
//     writes to a word are not atomic with atomics of NICs; use [Set] or [Add] on the PE itself.
//   - If ctx ends during a call, what the call began goes on: the NICs own its memory until Quiet
//     has returned nil. The error names the PEs that have not answered. That of a collective call
//     whose deadline has passed names those that have not entered it, and comes up to half a second
//     late if PEs do not answer.
//   - Nothing goes on in the background unless you set Config.Background. What was put behind a
//     fence, a signal above all, and what exceeds the queues may leave only during a later call of
//     this PE that waits (Quiet, Barrier, WaitUntil) or in [PE.Progress]. Programs end phases with
//     one of them anyway.
//   - A collective call that returns an error leaves the PEs out of step; call Close then. A PE
//     whose ctx has ended in a collective call gets ErrMismatch from every later one but Close. In
//     these, or in Close, the calls of the others end, too. Alloc and Free are exceptions: all PEs
//     refuse them alike.
//
// # Calls that do not match
//
// All PEs of a team make the same collective calls in the same order, with elements of the same
// type, and the same lengths, roots and ops. Of a type they compare the size, and whether it is an
// unsigned or signed integer, a float, a Float16 or a BFloat16; in Alloc and Free only the size. If
// they do not, or if one call is refused for its arguments, all PEs get [ErrMismatch]: in the call
// itself, or in the next one, Close included, if the call needed nothing of the others, as a
// Broadcast's root does not. Close is compared like a Barrier: if the others make another call, it
// returns ErrMismatch and closes without them. A Close that comes after an ErrMismatch is not
// compared. No PE completes a Barrier, and none takes the data of one call for that of another. The
// error of one PE says which PEs called what; those of the others at least say which PE found the
// mismatch. PEs that wait for each other detect it within some milliseconds, a PE that computes
// detects it in its next call. PEs compare what they call, and a hash of all their calls so far.
// The hash has 14 bits, or 24 in a Barrier or Close, so different earlier calls may, rarely, go
// unnoticed.
//
// A mismatch in a team ends the calls of all PEs, whatever their teams, and so does a PE that gives
// up in a team's call. Two PEs that wait for each other in calls of different teams, or one of them
// in Close, get ErrMismatch, too. A circle of more PEs that wait in different teams ends with their
// contexts.
//
// # Faults
//
// If a PE's NIC or process fails, calls that concern it return an error that is a [*PEError] and
// names the PE. So do the calls that wait for all PEs (Quiet, Barrier, WaitUntil, collective
// calls), which check from time to time that the others are alive (transport.Config.KeepAlive).
// Puts, gets and atomics among the other PEs go on, and so do the calls of teams that the failed PE
// is not in. Those that are left make a smaller team with [Team.Shrink], and go on in it:
//
//	if err = shmem.Reduce(ctx, team, sums, part, shmem.OpSum); errors.As(err, &gone) {
//		team, err = team.Shrink(ctx)
//	}
//
// With Transport.QP.Failover on all PEs, a PE with several NICs survives the loss of one, or of the
// path to another PE: no call fails, with two exceptions.
//
//   - An atomic without an answer fails with [transport.ErrAtomicLost], and may have changed the
//     word or not. For an [Add] on eight bytes, which waits for nothing, Quiet or the next Barrier
//     returns the error.
//   - While PEs reach one of them through different NICs, their atomics there are atomic among
//     themselves only if those NICs provide that together, which few do.
//
// # What it costs
//
// Short puts are copied into the work request, longer ones into registered buffers, and data in the
// symmetric heap is sent from where it is. No call allocates once warm, except Alloc, Free, Split
// and SplitStrided, large transfers from memory outside the heap, which register it for the call,
// a collective call whose root or number of pieces is none of the last sixteen, calls with unequal
// parts, by a function, or that are started and not freed.
package shmem
