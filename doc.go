// Package ibverbx makes one reliable connection of many RDMA queue pairs.
//
// A [VirtualQP] takes work requests like a queue pair of package verbs, cuts large messages into
// fragments, and stripes them over several physical queue pairs, its rails, on one NIC or several.
// You use it like one reliable connection.
//
//	SendWR ──► VirtualQP ──► rail 0: QP on NIC 0 ─┐
//	             │      ├──► rail 1: QP on NIC 1 ─┤ physical CQs ──► VirtualCQ ──► WC
//	             │      ├──► rail 2: QP on NIC 0 ─┤ (one per NIC)     in posting order
//	             │      └──► rail 3: QP on NIC 1 ─┘
//	             └─────────► notify QP
//
// # What it promises
//
//  1. Each accepted request yields exactly one completion, whatever fragments, errors, flushes or
//     closes happen in between. A refused request has no effect. (A successful unsignaled request
//     of a single queue pair yields none, as in verbs.)
//  2. Send completions come in posting order, and receive completions come in posting order. The
//     two orders are independent.
//  3. The memory of a request is yours again when its completion is reported, and not before. Even
//     if a fragment fails, the completion waits until the last fragment has ended.
//  4. When the peer sees the receive completion of a WRITE_WITH_IMM or a SEND, every earlier WRITE
//     of this virtual queue pair is in its memory. If a fragment failed, that notification is never
//     sent. ([Spray], and SEND in both schemes, have a limit on some hosts: see [Spray]. A SEND
//     with [SendWR].Relaxed gives up this promise and does not wait.)
//  5. The first error stops everything behind it: no fragment or notification of a later request is
//     sent, and the later requests complete, in order, as flushed. [VirtualQP.Err] says which
//     request failed, on which rail, and why. Every post is refused with [ErrFailed] until you
//     reset or close the virtual queue pair. (One exception, with [Config].Failover: an atomic
//     whose answer was lost with its queue pair ends with an error and stops nothing.)
//  6. Errors are never routed by opcode, which NICs leave undefined.
//  7. Nothing that a peer sends ends the process or disturbs another virtual queue pair of the same
//     virtual CQ.
//  8. If you post more than the physical queues hold, the rest is queued. A physical queue never
//     overruns.
//
// With a single queue pair requests pass straight through, with the NIC's own limits and without
// tracking. Requests that the NIC does not report are then lost: successful unsignaled ones, and
// those outstanding on a CQ that has died or a NIC that has vanished.
//
// # A program
//
//	vqp, err := ibverbx.Open(devices, ibverbx.Config{}) // QPs and CQs over a list of NICs
//	rights := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
//	mr, err := vqp.Domain().Register(buf, rights) // memory that all of them can access
//	card, err := vqp.Card()     // send this, and mr.Remote(), to the peer as JSON
//	err = vqp.Connect(peerCard) // INIT, RTR, RTS
//	_, err = vqp.PostSend(ibverbx.SendWR{
//		ID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
//		Local: mr.Slice(0, 1<<30), Remote: peerMR.At(0), Imm: 7,
//	})
//	err = vqp.CQ().Wait(ctx)
//	n, err := vqp.CQ().Poll(wcs)
//
// # What you must do
//
//   - Let one goroutine at a time own a VirtualCQ and all VirtualQPs on it. A call
//     that finds another one inside panics; race builds find every violation. [Domain] and [MR]
//     are safe for concurrent use.
//   - Do not touch the memory that a request names (for sends: do not write to it) until you have
//     polled its completion. The end of a context in [VirtualCQ.Wait] does not change that.
//   - Call Poll or Wait: a virtual queue pair has no goroutine of its own, so nothing beyond what
//     the physical queues hold happens without them.
//   - Rely only on the order of completions and on promise 4. Over several rails the data of two
//     requests travels on different queue pairs: either of two WRITEs to the same address may land
//     last, and a READ or an atomic may overtake an earlier WRITE. To prevent that, set
//     [verbs.SendFence] on the later request, or post it after the earlier one's completion.
//
// # A peer in C++
//
// Cards, numbers and markers are those of the C++ original, ibverbx of torchcomms, so the two
// connect. The original puts no addresses into its card: set [ConnConfig].PeerGIDs, and connect it
// with packet sequence numbers that begin at 0. Its card does not name the scheme either, so
// configure both ends alike: its default is [Spray], the default here is [DQPLB]. If they differ, a
// notification finds no receive, and the NIC retries for as long as RNRRetry allows, by default for
// ever. If the retries end in an error, the error says that the schemes may differ.
//
// When the peer's card names neither a scheme nor credits, this end follows the original in these
// points:
//
//   - SENDs, and receives with memory, use data queue pair 0 in DQPLB too. Post such receives after
//     Connect.
//   - Credits of DQPLB are posted with the first receive for a notification, and on queue pair 0
//     only half of them. A SEND that arrives on that queue pair when a credit is next ends the
//     connection, and so does a notification that meets a receive with memory. So use only one kind
//     on a connection, or have every SEND arrive before you post the first receive for a
//     notification. The error of a connection that ends this way says so
//     ([FailedError].MixedKinds).
//   - One read or atomic is outstanding per queue pair ([BusinessCard].RDAtomic).
//
// In DQPLB the original numbers its plain WRITEs and READs too, and no receiver ever sees those
// numbers: after the first of them all of its notifications wait forever, at a peer of either kind;
// [Stats].OutOfOrder counts them. So let the original post only WRITE_WITH_IMM, SENDs and atomics
// on such a connection, or use [Spray]. This end's requests have no such limit.
//
// Over package verbs/roce this end's NIC must have UDP port 4791: the GID of one on another port
// ([verbs.GID.UDPAddr]) is refused when the original goes to RTR, with EINVAL.
//
// [ConnConfig].ImmLittleEndian swaps your immediates for the original, and [BusinessCard] explains
// how to give it a card of the length that it expects. docs/FROM-CPP.md has the original's names
// beside those of this module.
//
// # How it ends
//
// [VirtualQP.Close] ends it at once and reports outstanding requests as flushed. [VirtualQP.Drain]
// lets every accepted send run to completion first. [VirtualQP.Shutdown] drains for as long as a
// context allows and then closes. After a failure, which [FailedError] describes in one line with
// what to check, [VirtualQP.Reset] and Connect restore service.
//
// # When a queue pair or a NIC fails
//
// The failure ends the virtual queue pair, unless both ends set [Config].Failover. With failover,
// both ends take the rail out of service, report to each other what has arrived on it, and send the
// rest over the other rails, in order. Your program sees no error as long as one data queue pair is
// left between the ends, one for SENDs, and (in [Spray]) one for notifications. A queue pair that
// has failed is connected anew after a pause. [Stats] counts what was lost and posted again and
// says whether failover is in force; [Events] reports each loss. What you must know:
//
//   - Both ends must poll. An end that does not poll, or takes no notifications until its receives
//     are used up, holds up the other end, which gives up after [Config].FailoverTimeout.
//   - An atomic whose answer was lost completes with an error, and the connection goes on. Atomics
//     on one word through different NICs of the peer are not atomic.
//   - A plain WRITE may land a second time before its completion. Only programs that poll memory
//     can notice: a flag that they have cleared is set again, or a word returns to its first value
//     because the writer wrote the next one before the first completion.
//   - If the NIC reports that a port of this end is down, the library reacts after
//     [Config].PortTimeout. How soon it notices a dead path elsewhere depends on
//     [ConnConfig].Patience: by default 3.8 seconds over software NICs and 34 over others, and half
//     a second with [PatienceShort].
//   - An end that has nothing outstanding does not notice that its peer is gone, with failover or
//     without. If you only receive, use a sign of life, such as the keep-alive of package
//     transport.
//   - Memory that you register while a NIC is gone keeps that NIC's queue pairs out of service
//     until you close it: see [Domain.Register].
//   - Errors of the request itself, such as a wrong key, end the connection as always.
//
// docs/FAILOVER.md states the rules and proves that they are safe.
//
// # What it costs
//
// No lock, map or allocation per request once the rings have grown to their size. docs/MEASURED.md
// has figures, and docs/GLOSSARY.md explains the terms.
package ibverbx
