// Package nic holds what every NIC made of software needs and what does not depend on how its work
// requests are executed: protection domains, memory regions and their keys, completion queues, the
// queues of queue pairs, their states and attributes, and every check of the contract of package
// verbs. What it refuses, and in which words, is the same for all providers that build on it.
//
// # The model
//
// A provider's own types fulfil the interfaces of package verbs, and each has one of this package
// as a field: core, of type [Device], [PD], [MR], [CQ] or [QP]. It is a field with a name and not
// embedded, because programs must not see these methods. The provider's methods call the core's and
// add what is their own.
//
//	type Device struct {
//		mu   nic.Lock
//		open nic.Objects
//		core nic.Device
//		qps  nic.Table[QP]
//		...
//	}
//
//	d := &Device{qps: nic.NewTable[QP](draw)}
//	d.core = nic.Device{Lock: &d.mu, Open: &d.open, Name: "roce0", Handle: d, GIDs: 1,
//		Keys: nic.NewKeys(id, draw), Limits: nic.Limits{MaxQPWR: 16384, ...}}
//
// There is one [Lock] for a NIC, or for several that share their work. Init, Register, Poll, Arm
// and Close of PD, MR and CQ take it themselves, as they are the calls of a program; everything
// else is called with it held, unless it says otherwise. Nothing here calls back, starts a
// goroutine or asks for the time, so a provider that is stepped stays deterministic.
//
// # Numbers and keys
//
// [NewKeys] and [NewTable] count, or draw from a function. Counted ones are the same in each run,
// and tell NICs of one process apart. Whoever lets strangers send packets passes a function that
// reads crypto/rand: then a key has 31 bits that say nothing of other keys, and a number 24. A
// simulation passes a generator with a seed.
//
// # Making a queue pair
//
// The provider draws up its queue pair under the lock, in this order, and undoes nothing when a
// step refuses:
//
//	sizes, err := p.core.CheckQP(cfg.Cap, sendCQ, recvCQ) // state of the domain, the CQs, the limits
//	num, ok := d.qps.TakeNum()                            // ErrNoMemory if none is free
//	q := &QP{core: nic.QP{Num: num, Cap: sizes, SignalAll: cfg.SignalAll, CQs: ...}}
//	q.core.Init(&p.core)
//	d.qps.Add(num, q)
//
// Close sets [QP].Closed, lets what executes come to its end, and then calls [QP.Reset],
// [QP.Destroy] and [Table.Remove]. Modify asks [QP.CheckModify], which returns the state to go to:
// for RESET it calls [QP.Reset] once nothing executes any more, for ERR it flushes, otherwise it
// calls [QP.Apply] and sets [QP].State.
//
// # The life of a work request
//
// A post asks [QP.MaySend] once and [QP.CheckSend] for each request, and copies it with
// [SendQueue.Push]; receives likewise ([QP.MayReceive], [QP.CheckRecv], [RecvQueue.Push]). From
// then on the request is a number: [SendQueue].Posted, Executed and Acked count how far requests
// have come, and are moved by the provider. The order of [QP.CheckInvariants] always holds.
//
//	requester  QP.Local                checks the request, and collects its memory
//	responder  QP.Permits              the rights of the queue pair
//	           RecvQueue.Empty         a message that takes a receive may find none: RNR
//	           QP.Target or QP.Accept  the memory of a region, or of a receive
//	requester  QP.Landing              the memory for what a read or atomic brings, when it comes
//
// A responder that gets a message in packets has what its first packet says checked as above, with
// nil for the list, and asks [QP.RemoteSlice] for the place of each packet: a region that is closed
// in the middle of a message ends it there.
//
// What the responder's checks return is the status that the requester's completion has: of a NAK
// REM_INV_REQ_ERR is invalid request, REM_ACCESS_ERR remote access, REM_OP_ERR remote operation.
// [Move] and [FetchAndChange] access words of memory as the contract of the software NICs says; use
// Move in place of copy for payloads, of which it moves those of exactly 8 or 4 bytes as a word.
//
// # Memory outside of the lock
//
// Memory may be touched while the lock is held, or, once it was found, outside of it between
// [Pieces.Hold] and [Pieces.Release], which [Lock.WakeQuiet] follows: MR.Close waits for that. A
// Close of a queue pair waits in the same way, with [Lock.AwaitQuiet] in a loop, until what the
// provider does on its behalf outside of the lock has ended.
//
// # Completions
//
// A completion goes to the queue in these steps:
//
//	c := q.core.CQs[dir]
//	switch {
//	case c.Dead(): // lost
//	case c.Full():
//		c.Overrun() // and every queue pair of which QP.Uses(c) holds fails, with EventQPFatal
//	default:
//		q.core.Sent(c.Next(false), seq, slot) // or Received, Failed
//	}
//
// Only signaled requests have one when they end well ([QP.Signaled]); all have one when they do
// not. [CQ.Reserve] keeps room for those that exist and are not to be seen yet. A queue pair in ERR
// flushes its sends in order, and then its receives, by [SendQueue.TakeUnended] and
// [RecvQueue.Take]; what is posted later is flushed at once. A slot is free again when its
// completion was polled.
//
// A responder that fails where no completion says so raises [Device.Publish] with
// verbs.EventQPReqErr or EventQPAccessErr, under the same lock under which its queue pair goes to
// ERR: a program sees neither without the other.
package nic
