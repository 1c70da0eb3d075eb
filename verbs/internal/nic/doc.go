// Package nic holds the parts of software NICs that do not depend on how work requests execute:
// protection domains, memory regions and their keys, completion queues, the queues of queue pairs,
// their states and attributes, and every check of the contract of package verbs. All providers that
// build on it refuse the same calls with the same errors.
//
// # The model
//
// A provider's own types implement the interfaces of package verbs. Each has a field core, of type
// [Device], [PD], [MR], [CQ] or [QP]. It is a named field and not embedded, because programs must
// not see these methods. The provider's methods call the core's and add their own work.
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
// and Close of PD, MR and CQ are calls of a program and take it themselves. Call everything else
// with the lock held, unless its comment says otherwise. Nothing here calls back, starts a
// goroutine or reads the time, so a stepped provider stays deterministic.
//
// # Numbers and keys
//
// [NewKeys] and [NewTable] count, or draw from a function. Counted values are the same in each run,
// and distinguish the NICs of one process. If strangers can send packets, pass a function that
// reads crypto/rand: a key then has 31 bits that reveal nothing about other keys, and a number 24.
// A simulation passes a seeded generator.
//
// # Making a queue pair
//
// The provider makes its queue pair under the lock, in this order; if a step refuses, there is
// nothing to undo:
//
//	sizes, err := p.core.CheckQP(cfg.Cap, sendCQ, recvCQ) // state of the domain, the CQs, the limits
//	num, ok := d.qps.TakeNum()                            // ErrNoMemory if none is free
//	q := &QP{core: nic.QP{Num: num, Cap: sizes, SignalAll: cfg.SignalAll, CQs: ...}}
//	q.core.Init(&p.core)
//	d.qps.Add(num, q)
//
// Close sets [QP].Closed, lets what executes come to its end, and then calls [QP.Reset],
// [QP.Destroy] and [Table.Remove]. Modify calls [QP.CheckModify], which returns the next state. For
// RESET it then calls [QP.Reset] once nothing executes any more, for ERR it flushes, otherwise it
// calls [QP.Apply] and sets [QP].State.
//
// # The life of a work request
//
// A post calls [QP.MaySend] once and [QP.CheckSend] for each request, and copies it with
// [SendQueue.Push]; receives likewise ([QP.MayReceive], [QP.CheckRecv], [RecvQueue.Push]). From
// then on the request is a number. The provider advances [SendQueue].Posted, Executed and Acked,
// which count how far requests have come. The order of [QP.CheckInvariants] always holds.
//
//	requester  QP.Local                checks the request, and collects its memory
//	responder  QP.Permits              the rights of the queue pair
//	           RecvQueue.Empty         a message that takes a receive may find none: RNR
//	           QP.Target or QP.Accept  the memory of a region, or of a receive
//	requester  QP.Landing              the memory for what a read or atomic brings, when it comes
//
// A responder that gets a message in packets checks the first packet as above, with nil for the
// list, and calls [QP.RemoteSlice] for the place of each packet: closing a region in the middle of
// a message ends the message there.
//
// The responder's checks return the status of the requester's completion. In a NAK, REM_INV_REQ_ERR
// is invalid request, REM_ACCESS_ERR remote access, REM_OP_ERR remote operation. [Move] and
// [FetchAndChange] access words of memory as the contract of the software NICs requires. Use Move
// instead of copy for payloads: it moves payloads of exactly 8 or 4 bytes as a word.
//
// # Memory outside of the lock
//
// You may access memory while the lock is held. Once you have found it, you may also access it
// without the lock, between [Pieces.Hold] and [Pieces.Release], followed by [Lock.WakeQuiet]:
// MR.Close waits for that. In the same way Close of a queue pair waits, with [Lock.AwaitQuiet] in a
// loop, for everything that the provider does on its behalf outside the lock.
//
// # Completions
//
// A completion goes to the queue in these steps:
//
//	c := q.core.CQs[dir]
//	switch {
//	case c.Dead(): // lost
//	case c.Full():
//		c.Overrun() // and every queue pair for which QP.Uses(c) is true fails, with EventQPFatal
//	default:
//		q.core.Sent(c.Next(false), seq, slot) // or Received, Failed
//	}
//
// Of the requests that succeed only signaled ones have a completion ([QP.Signaled]); all that fail
// have one. [CQ.Reserve] keeps room for completions that exist and are not visible yet. A queue
// pair in ERR flushes its sends in order, and then its receives, by [SendQueue.TakeUnended] and
// [RecvQueue.Take]; later posts are flushed at once. A slot is free again when its completion has
// been polled.
//
// A responder that fails without a completion calls [Device.Publish] with verbs.EventQPReqErr or
// EventQPAccessErr, under the lock under which its queue pair goes to ERR, so a program sees
// neither without the other.
package nic
