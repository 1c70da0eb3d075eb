// Package shmem is OpenSHMEM's model in Go's manner: processing elements that read and write each
// other's memory, over package transport.
//
// # The model
//
// A [PE] is one of a fixed number of processing elements, numbered from 0: a process each, or
// goroutines of one process, or both. Every PE has a symmetric heap, of the same size everywhere.
// [Alloc] is called by all of them and gives each a block at the same place of its heap, so that
// one handle, a [Sym], names the block on every PE:
//
//	counts, err := shmem.Alloc[uint64](ctx, pe, 64)         // 64 numbers on each PE
//	err = shmem.Add(ctx, pe, counts.At(7), 1, 3)            // count in PE 3's, atomically
//	err = shmem.Put(ctx, pe, counts, mine, 3)               // write all of PE 3's
//	err = pe.Barrier(ctx)                                   // everything of all PEs has arrived
//	fmt.Println(counts.Local(pe))                           // this PE's own copy, as a []uint64
//
// Operations are one-sided: they need no call of the other PE's program. A PE reaches its own heap
// through its NIC, too, so that atomics are atomic among themselves whichever PE issues them.
//
// # When an operation is done
//
//	Put          returns when the source can be reused; Quiet, or a Barrier, completes it
//	PutNBI       initiates: the source must not be written to before Quiet
//	Get          returns with the data
//	GetNBI       initiates: the data is there after Quiet
//	Fence        orders this PE's puts, atomics and signals to each PE: the later ones land after
//	             the earlier ones. It waits for nothing
//	Quiet        completes everything of this PE, and makes it visible to every PE
//	PutSignal    when the target sees the signal, all of the data is in its memory, over any number
//	             of rails
//	WaitUntil    waits for a word of this PE's heap that another PE changes
//	Barrier      Quiet, and then waits for all PEs
//
// Only Quiet orders a Get behind an earlier Put. Without Fence puts land in any order.
//
// # Atomics
//
// [FetchAdd] and its like change the first word of a Sym on one PE. They are atomic among
// themselves, whichever PEs and goroutines issue them, the PE itself included. They are not atomic
// with puts, nor with what a processor writes.
//
// NICs have fetch-add and compare-and-swap of eight bytes. All other atomics, and every one on four
// bytes, are made of compare-and-swaps, which are repeated while another PE changes the word, and
// so take two round trips or more; only [Add] and [Inc] on eight bytes do not wait at all. Atomics
// on four bytes work on the aligned eight that hold them: a put to the other half at the same
// moment may be lost, an atomic on it is not.
//
// When a connection fails, or ctx ends, during an atomic, it may have taken effect or not.
//
// # A program
//
// Several PEs of one process, each with its own NIC or sharing one, are a [World]:
//
//	world, err := shmem.NewLocal(ctx, shmem.Config{}, domains...)
//	err = world.Run(ctx, func(ctx context.Context, pe *shmem.PE) error { ... })
//	err = world.Close(ctx)
//
// PEs of several processes find each other by any means that the program has, an all-gather of a
// few KiB: see [Join] and Config.Exchange.
//
// # What the caller must keep
//
//   - Puts, gets, atomics, waits, Fence and Quiet may be called from any goroutine. Fence and Quiet
//     order and complete what was called before them. Collective calls (Alloc, Free, Barrier, Sync,
//     Broadcast, Reduce, AllGather, AllToAll, Close) are made by all PEs in the same order, by one
//     goroutine of a PE at a time; a second one gets [ErrBusy].
//   - What others write into a heap is read after something has made sure that it is there:
//     WaitUntil, a barrier, a collective call. A word that is polled without them is read with
//     [Load]. The processor's own writes to a word are not atomic with atomics of NICs; use [Set]
//     or [Add] on the PE itself.
//   - When ctx ends during a call, what it began goes on: the NICs own its memory until Quiet has
//     returned nil.
//   - Nothing goes on in the background unless Config.Background is set. What was put behind a
//     fence, a signal above all, and what exceeds the queues may leave only during a later call of
//     this PE that waits (Quiet, Barrier, WaitUntil) or in [PE.Progress]. Programs end phases with
//     one of them anyway.
//   - A collective call that returns an error leaves the PEs out of step, except Alloc and Free,
//     which all PEs refuse alike. End with Close.
//
// # Calls that do not match
//
// All PEs make the same collective calls in the same order, with the same lengths, types, roots and
// ops. Where they do not, or where one call is refused for its arguments, all PEs get
// [ErrMismatch]: in the call itself, or in the next one where the call needed nothing of the
// others, such as that of a Broadcast's root. No PE completes a Barrier, and none takes the data of
// one call for that of another. The error of one PE says which PEs called what, those of the others
// at least which PE found the mismatch. PEs that wait for each other detect it within some
// milliseconds, one that computes detects it in its next call. The words by which they compare have
// 14 bits for what was called before, and 24 in a Barrier.
//
// # Faults
//
// When a PE's NIC or process fails, calls that concern it return an error that is a [*PEError] and
// says which PE it was. So do the calls that wait for all PEs (Quiet, Barrier, WaitUntil,
// collective calls), which check from time to time that the others are alive
// (transport.Config.KeepAlive). Puts, gets and atomics among the other PEs go on.
//
// A PE with several NICs outlives the loss of one, or of the path to another PE, with
// Transport.QP.Failover on all PEs: no call fails. Two things remain.
//
//   - An atomic without an answer fails with [transport.ErrAtomicLost], by itself, and may have
//     changed the word or not; of an [Add] on eight bytes, which waits for nothing, Quiet or the
//     next Barrier says so.
//   - While PEs reach one of them by different NICs, their atomics there are atomic among
//     themselves only if those NICs have that in common, which few have.
//
// # What it costs
//
// Short puts are copied into the work request, longer ones into registered buffers, and what lies
// in the symmetric heap is sent from where it is. No call allocates once warm, but for Alloc and
// Free, and for large transfers from memory outside the heap, which register it for the call.
package shmem
