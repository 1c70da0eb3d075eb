// Package ibverbx makes one reliable connection of many RDMA queue pairs.
//
// A [VirtualQP] takes work requests like a queue pair of package verbs, cuts large messages into
// fragments, and stripes them over many physical queue pairs on one NIC or several, which it calls
// rails. To its user it still behaves like one reliable connection.
//
//	SendWR ──► VirtualQP ──► rail 0: QP on NIC 0 ─┐
//	             │      ├──► rail 1: QP on NIC 1 ─┤ physical CQs ──► VirtualCQ ──► WC
//	             │      ├──► rail 2: QP on NIC 0 ─┤ (one a NIC)     in posting order
//	             │      └──► rail 3: QP on NIC 1 ─┘
//	             └─────────► notify QP
//
// # What it promises
//
//  1. Each accepted request yields exactly one completion, however many fragments, errors, flushes
//     or closes happen in between. A refused one has no effect. (A successful unsignaled request of
//     a single queue pair yields none, as in verbs.)
//  2. Send completions come in posting order, receive completions in posting order, each side on
//     its own.
//  3. The memory is the caller's again when, and only when, its completion is reported; not even
//     another fragment's failure gives it back before the last fragment has ended.
//  4. When the peer sees the receive completion of a WRITE_WITH_IMM or a SEND, every earlier WRITE
//     of this virtual queue pair is in its memory. If a fragment failed, that notification is never
//     sent. ([Spray], and SEND in both schemes, have a known limit on some hosts: see there. A SEND
//     that is [SendWR].Relaxed does without this promise and does not wait.)
//  5. The first error wins and stops everything behind it: no fragment or notification of a later
//     request goes out; the later requests complete, in order, as flushed. [VirtualQP.Err] says
//     which request failed, on which rail, and why, and every post is refused with [ErrFailed]
//     until the virtual queue pair is reset or closed.
//  6. Errors are never routed by opcode, which NICs leave undefined.
//  7. Nothing a peer sends ends the process or disturbs another virtual queue pair of the same
//     virtual CQ.
//  8. Posting more than the physical queues hold queues the rest. A physical queue is never
//     overrun.
//
// With a single queue pair requests pass straight through, with the NIC's own limits and no
// tracking. What the NIC does not report is lost there: successful unsignaled requests, and what
// was outstanding on a CQ that has died or a NIC that has vanished.
//
// # A program
//
//	vqp, err := ibverbx.Open(devices, ibverbx.Config{})    // QPs and CQs over a list of NICs
//	mr, err := vqp.Domain().Register(buf, verbs.AccessAll) // memory that all of them know
//	card, err := vqp.Card()     // send this, and mr.Remote(), to the peer as JSON
//	err = vqp.Connect(peerCard) // INIT, RTR, RTS
//	_, err = vqp.PostSend(ibverbx.SendWR{
//		ID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
//		Local: mr.Slice(0, 1<<30), Remote: peerMR.At(0), Imm: 7,
//	})
//	err = vqp.CQ().Wait(ctx)
//	n, err := vqp.CQ().Poll(wcs)
//
// # What the caller must keep
//
//   - One goroutine at a time owns a VirtualCQ and all VirtualQPs made on it. Race builds panic on
//     a violation. [Domain] and [MR] are safe for concurrent use.
//   - Memory named by a request is not touched (for sends: not written) until its completion has
//     been polled. A context that ends a [VirtualCQ.Wait] changes nothing about that.
//   - Poll, or Wait, must be called for anything to go on beyond what the physical queues hold: a
//     virtual queue pair has no goroutine of its own.
//   - The order between requests is that of their completions and of promise 4, no more. Over
//     several rails the data of two requests travels on different queue pairs: of two WRITEs to the
//     same address either may land last, a READ may overtake an earlier WRITE, and an atomic may
//     too. [verbs.SendFence] on the later one prevents that, as does posting it after the earlier
//     one's completion.
//
// # For programs that own their queue pairs, as the C++ original's do
//
// [Open] and [Domain.NewQP] create queue pairs and CQs, and [VirtualCQ.Poll] polls them. A program
// that has its own hands them over instead:
//
//   - [NewVirtualCQ] takes physical CQs, and [NewVirtualQP] queue pairs that complete on them.
//     [NewKeys] names memory that the program has registered by itself.
//   - [VirtualCQ.PollDevice] polls the CQ of one device only.
//   - [VirtualCQ.ProcessCompletions] takes completions that the program has polled from a physical
//     CQ by itself, and [VirtualCQ.FailDevice] the error of such a CQ. Such a program does not call
//     Poll.
//   - [RemoteSegment.AppendBinary] and [Keys.DecodeSegment] carry remote memory in messages of the
//     program's own, where there is no room or no time for JSON.
//
// # A peer in C++
//
// The cards, numbers and markers are those of the C++ original, ibverbx of torchcomms, so the two
// connect. It puts no addresses into its card: give [ConnConfig].PeerGIDs, and connect it with
// packet sequence numbers that begin at 0. Its card does not name the scheme either: configure both
// ends alike. Its default is [Spray], that of this package [DQPLB]. Where they differ, a
// notification finds no receive, and the NIC tries again for as long as RNRRetry says, by default
// for ever; where that ends in an error, the error says that the schemes may differ.
//
// The original does some things differently, and so does this end when the peer's card is of its
// kind, with neither a scheme nor credits:
//
//   - SENDs, and receives with memory, travel on data queue pair 0 in DQPLB too. Post such receives
//     after Connect.
//   - Credits of DQPLB are posted with the first receive for a notification, and on queue pair 0
//     half of them. A SEND that comes to that queue pair when a credit is next in line ends the
//     connection, and so does a notification that meets a receive with memory. So use one kind only
//     on a connection, or have every SEND arrive before the first receive for a notification is
//     posted. The error of a connection that ends so says it ([FailedError].MixedKinds).
//   - One read or atomic is outstanding on a queue pair ([BusinessCard].RDAtomic).
//
// [ConnConfig].ImmLittleEndian turns the user's immediates for it, and [BusinessCard] says how to
// give it a card of the length that it expects.
//
// # How it ends
//
// [VirtualQP.Close] ends it at once: what is outstanding is reported as flushed. [VirtualQP.Drain]
// lets every accepted send run to completion first, and [VirtualQP.Shutdown] drains for as long as
// a context allows and then closes. After a failure, which [FailedError] describes in one line with
// what to check, [VirtualQP.Reset] and Connect restore service.
//
// # When a queue pair or a NIC fails
//
// It ends the virtual queue pair, unless both ends were made with [Config].Failover. Then the rail
// is taken out of service at both ends, they tell each other what has arrived on it, and the rest
// goes over the others, in order. The program sees no error as long as one data queue pair is left
// between the ends, and one for SENDs and (in [Spray]) for notifications; [Stats] counts what was
// lost and posted again, and says whether failover is in force, and [Config].OnRail is told. A
// queue pair that has failed is connected anew after a pause. What the caller must know:
//
//   - Both ends must poll. One that does not, or takes no notifications until its receives are
//     used up, holds up the other, which gives up after [Config].FailoverTimeout.
//   - An atomic whose answer was lost completes with an error; the connection goes on. Atomics on
//     one word through different NICs of the peer are not atomic.
//   - A plain WRITE may land a second time before its completion. Only programs that poll memory
//     can tell: a flag that they have cleared is set again, and a word goes back to its first value
//     where the writer did not wait for the first completion before it wrote the next.
//   - A port of this end that is down is noticed by the NIC's report, after [Config].PortTimeout.
//     How soon a path that is dead elsewhere is noticed is up to [ConnConfig].Timeout and
//     RetryCount: half a second by default, half a minute with [PatienceFabric].
//   - An end that has nothing outstanding does not notice that its peer is gone altogether, as
//     without failover: who only receives needs a sign of life, such as the keep-alive of package
//     transport.
//   - Memory that is registered while a NIC is gone keeps its queue pairs out of service until it
//     is closed: see [Domain.Register].
//   - Errors that are a request's own, such as a wrong key, end the connection as they always do.
//
// docs/FAILOVER.md has the rules and the argument why they are safe.
//
// # What it costs
//
// No lock, map or allocation per request once the rings have grown to their size.
// docs/MEASURED.md has figures.
//
// docs/GLOSSARY.md explains the terms.
package ibverbx
