package ibverbx

import (
	"slices"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/internal/ring"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// sender is the send direction of a virtual queue pair over several physical ones: the live
// requests, their progress, and the rails that carry them. It posts, and returns refusals and
// failures; [VirtualQP] decides what follows.
//
// A request's data goes out first, cut into fragments or whole. Some requests end with a *final
// message*, which waits until the data of the request and of all earlier ones is acknowledged: the
// notification of a WRITE_WITH_IMM in Spray, and an ordinary SEND, which has no other data.
//
// The cursors count requests by number and only move forward:
//
//	win.Head <= finalsPosted <= dataDone <= next <= win.Tail
//	  |           |               |           |        |
//	  |           |               |           |        number of the next request
//	  |           |               |           all before it are wholly handed to the rails
//	  |           |               all before it have their data acknowledged
//	  |           all before it have had their final message staged, if they have one
//	  all before it were reported
//
// Invariant: the order of the cursors; finals counts the live requests that have a final message; a
// rail has a batch if and only if it is in staged.
type sender struct {
	rails railSet // a value: each rail is a load closer than behind a pointer (16 fragments: 7 %)
	win   ring.Window[sendReq]

	next, dataDone, finalsPosted uint64
	finals                       int
	staged                       []*rail // rails to post on; some may have nothing staged any more
	batches                      *batchPool
	blocked                      bool // the last post was refused for now: work stays staged

	scheme   Scheme
	imms     immOrder
	numbers  dqplb.Sender // DQPLB
	rawImm   bool         // DQPLB: both ends carry the user's immediate
	logs     bool         // failover is in force: rails log their outstanding work
	markers  uint64       // DQPLB: how many markers were staged, ever
	observer *observer    // nil without Config.Timing and Config.Trace
	// sprayed means that a notification of Spray has been acknowledged on this connection.
	sprayed bool
}

// newSender makes a sender over rails with assigned roles, with the batches of its virtual CQ.
func newSender(rails railSet, batches *batchPool, cfg *Config) sender {
	s := sender{rails: rails, batches: batches, win: ring.NewWindow[sendReq](), next: 1, dataDone: 1,
		finalsPosted: 1, scheme: cfg.Scheme, imms: immOrder(cfg.Conn.ImmLittleEndian)}
	s.restart()
	return s
}

// restart begins a connection. Nothing is outstanding. Requests continue their numbering, so that
// completions of the previous connection are recognised.
func (s *sender) restart() {
	s.rawImm, s.blocked, s.sprayed, s.logs = false, false, false, false
	if s.scheme == DQPLB {
		s.numbers = dqplb.NewSender(0)
	}
}

// waiting reports whether the data of a request waits for free slots.
func (s *sender) waiting() bool { return s.next != s.win.Tail }

// busy reports whether a progress may find something to stage or to post: waiting data, a final
// message that may have come due, or work that a queue pair has refused for now.
func (s *sender) busy() bool {
	return s.next != s.win.Tail || s.finals != 0 && s.finalsPosted != s.next || s.blocked
}

// resolve finds the live request of a work-request id.
func (s *sender) resolve(id uint64) (n uint64, ok bool) {
	return s.win.Resolve(wrid.Number(id), wrid.NumberMask)
}

// notified reports whether a notification has been acknowledged on this connection: then the peer
// has receives for it, as the scheme demands.
func (s *sender) notified() bool {
	if s.sprayed || s.numbers.Sent() >= dqplb.Mod {
		return true
	}
	for n := s.win.Head; n != s.win.Tail; n++ {
		// The oldest request that was given numbers; those before it were reported.
		if r := s.win.At(n); r.plan == planNumbered && r.fragments+uint32(r.markers) != 0 {
			return r.firstNum != s.numbers.First()
		}
	}
	return s.numbers.Sent() != 0
}

// enqueue gives a checked request its number and its slot. length and keys are what checkSend
// returned. The window is not full.
func (s *sender) enqueue(wr *SendWR, length uint64, keys *Keys) {
	r := s.win.Open()
	r.sendProgress = sendProgress{}
	r.id = wr.ID
	r.imm = wr.Imm
	r.opcode = wr.Opcode
	r.fence = wr.Flags&verbs.SendFence != 0
	r.solicited = wr.Flags&verbs.SendSolicited != 0
	r.remoteAddr = wr.Remote.Addr
	r.remoteKeys = wr.Remote.Keys
	if r.remoteKeys == nil {
		r.remoteKeys = &noKeys // a request of no bytes, or a SEND
	}
	r.scattered = len(wr.SGL) > 1
	r.inline = wr.Flags&verbs.SendInline != 0
	r.localAddr = wr.Local.Addr
	if len(wr.SGL) == 1 {
		r.localAddr = wr.SGL[0].Addr
	}
	r.localKeys = keys
	r.length = length
	r.plan = planFragments
	switch {
	case wr.Opcode == verbs.OpRDMAWriteWithImm:
		if s.scheme == DQPLB {
			r.plan = planNumbered
		} else {
			r.final = finalDue
			s.finals++
		}
	case wr.Opcode.IsSend() && wr.Relaxed:
		r.plan = planMessage
	case wr.Opcode.IsSend():
		r.plan = planNone
		r.final = finalDue
		s.finals++
	case wr.Opcode.IsAtomic():
		r.plan = planAtomic
	case wr.EveryRail:
		r.plan = planEvery
	}
	if r.scattered || r.inline || r.plan == planAtomic {
		r.enqueueExt(wr)
	}
}

// report reports finished requests in posting order, for the virtual queue pair with number num.
func (s *sender) report(l *line, num uint32, out *sink) {
	s.advanceDataDone()
	for s.win.Head != s.finalsPosted {
		r := s.win.Front()
		if !r.complete() {
			return
		}
		if l.flushes(s.win.Head) {
			r.status, r.vendorErr = verbs.StatusWRFlushErr, 0
		}
		if r.status != verbs.StatusSuccess && l.err != nil { // an atomic whose answer was lost does not count
			l.sendReported(r.status)
		}
		*out.slot() = WC{
			ID:        r.id,
			Status:    r.status,
			Opcode:    r.opcode.WCOpcode(),
			VendorErr: r.vendorErr,
			QPNum:     num,
			ByteLen:   r.length,
		}
		if r.final != finalNone {
			if s.finals--; s.finals == 0 {
				s.finalsPosted = s.dataDone // no live request has a final message
			}
		}
		out.release(r)
		s.win.Head++
	}
}

// stopFrom drops the work of request n and later ones that is not posted yet. Their work on the
// NICs completes or is flushed, and only then are they reported.
func (s *sender) stopFrom(n uint64) {
	// Requests are dispatched in order, so the failed request lies at or before next.
	for ; s.next != s.win.Tail; s.next++ {
		r := s.win.At(s.next)
		r.dispatched, r.immDue = true, false
		r.flushUnlessFailed()
	}
	s.unstage(n)
	for i := max(n, s.finalsPosted); i < s.win.Tail; i++ {
		// A final message that is not staged yet never goes out, because its request or an earlier
		// one failed.
		if r := s.win.At(i); r.final == finalDue {
			r.final = finalDone
			r.flushUnlessFailed()
		}
	}
}

// unstage takes back staged work, not yet posted, of request from and later ones.
func (s *sender) unstage(from uint64) {
	for _, rl := range s.staged {
		rl.batch.drop(func(id uint64) bool {
			n, ok := s.resolve(id)
			if ok && n < from {
				return false
			}
			if ok {
				r := s.win.At(n)
				if wrid.Kind(id) == wrid.Final {
					r.final = finalDone
				} else if r.left > 0 {
					r.left--
				}
				r.flushUnlessFailed()
			}
			s.rails.give(rl, false)
			return true
		})
	}
}

// firstUnposted returns the first request that is not completely posted.
func (s *sender) firstUnposted() uint64 {
	first := s.next
	for n := s.finalsPosted; n < first; n++ {
		if s.win.At(n).final == finalDue {
			first = n
		}
	}
	for _, rl := range s.staged {
		b := rl.batch
		for i := b.head; i < b.tail; i++ { // a SEND may be staged behind data of later requests
			n, _ := s.resolve(b.wrs[i].ID)
			first = min(first, n)
		}
	}
	return first
}

// firstBehindImm returns the first request with work staged on a rail behind a user's immediate, or
// never. It may be an earlier request than the immediate's, posted again for a lost rail: if only
// the immediate were taken back, the peer would take that work for the immediate.
func (s *sender) firstBehindImm(rl *rail) (first uint64) {
	first = never
	b, behind := rl.batch, false
	for i := b.head; i < b.tail; i++ {
		if behind {
			n, _ := s.resolve(b.wrs[i].ID)
			first = min(first, n)
		}
		behind = behind || wrid.Kind(b.wrs[i].ID) == wrid.Imm
	}
	return first
}

// abandon ends every request, once no NIC holds any of its work: incomplete ones as flushed. It
// returns the first of these, or never.
func (s *sender) abandon() (flushed uint64) {
	flushed = never
	for n := s.win.Head; n != s.win.Tail; n++ {
		r := s.win.At(n)
		if !r.complete() {
			flushed = min(flushed, n)
			r.flushUnlessFailed()
		}
		r.left, r.dispatched, r.immDue = 0, true, false
		if r.final != finalNone {
			r.final = finalDone
		}
	}
	s.next, s.dataDone, s.finalsPosted = s.win.Tail, s.win.Tail, s.win.Tail
	for _, rl := range s.staged { // emptied by railSet.abandon
		s.batches.giveBack(rl.batch)
		rl.batch = nil
	}
	s.staged = s.staged[:0]
	return flushed
}

// check panics where the invariant does not hold.
func (s *sender) check() {
	if s.win.Head > s.finalsPosted || s.finalsPosted > s.dataDone || s.dataDone > s.next ||
		s.next > s.win.Tail {
		broken("sender: cursors %d, %d, %d, %d, %d", s.win.Head, s.finalsPosted, s.dataDone, s.next,
			s.win.Tail)
	}
	for _, rl := range s.rails.all {
		if (rl.batch != nil) != slices.Contains(s.staged, rl) {
			broken("sender: rail %d has a batch and is not listed, or the other way round", rl.index())
		}
	}
	if s.win.Len() > checkedRequests {
		return
	}
	finals := 0
	for n := s.win.Head; n != s.win.Tail; n++ {
		r := s.win.At(n)
		if r.offset > r.length {
			broken("sender: request %d: %d of %d bytes handed out", n, r.offset, r.length)
		}
		if r.final != finalNone {
			finals++
		}
	}
	if finals != s.finals {
		broken("sender: %d requests with a final message, counted %d", finals, s.finals)
	}
}

// stats fills in the figures of the send direction. Requests are numbered from 1, so the cursors
// are counts.
func (s *sender) stats(to *Stats) {
	to.Sends, to.SendsCompleted = s.win.Tail-1, s.win.Head-1
	to.SendsWaiting = int(s.win.Tail - s.next)
	to.SendWindow, to.SendRing = s.win.Len(), s.win.Cap()
	to.RingsGrown += s.win.Grown()
	to.Markers, to.NumbersSent, to.NumbersOpen = s.markers, s.numbers.Sent(), s.numbers.Open()
}

// dataCompleted handles the completion of a fragment, marker, atomic or raw immediate. It returns
// the request, or 0 if the completion fits none.
func (s *sender) dataCompleted(rl *rail, wc *verbs.WC) uint64 {
	n, ok := s.resolve(wc.ID)
	if !ok {
		return 0
	}
	r := s.win.At(n)
	if r.left == 0 || rl.role != failover.Data || !rl.onNIC() {
		return 0
	}
	if s.logs && !rl.log.Complete(wc.ID) {
		return 0
	}
	r.left--
	s.rails.giveData(rl, s.waiting(), wc.Status == verbs.StatusSuccess)
	if wc.Status != verbs.StatusSuccess {
		return n
	}
	if wrid.Kind(wc.ID) == wrid.Numbered {
		s.numbers.Ack(wrid.Aux(wc.ID))
	}
	return n
}

// finalCompleted handles the completion of a request's final message. It returns the request, or 0.
func (s *sender) finalCompleted(rl *rail, wc *verbs.WC) uint64 {
	n, ok := s.resolve(wc.ID)
	if !ok {
		return 0
	}
	r := s.win.At(n)
	if r.final != finalPosted || rl != s.carrier(r) || !rl.onNIC() {
		return 0
	}
	if s.logs && !rl.log.Complete(wc.ID) {
		return 0
	}
	r.final = finalDone
	s.rails.give(rl, s.waiting())
	s.sprayed = s.sprayed || r.plan != planNone && wc.Status == verbs.StatusSuccess
	return n
}

// messageCompleted handles the completion of a relaxed SEND. It returns the request, or 0.
func (s *sender) messageCompleted(rl *rail, wc *verbs.WC) uint64 {
	n, ok := s.resolve(wc.ID)
	if !ok {
		return 0
	}
	r := s.win.At(n)
	if r.plan != planMessage || r.left == 0 || rl != s.rails.sendRail || !rl.onNIC() {
		return 0
	}
	if s.logs && !rl.log.Complete(wc.ID) {
		return 0
	}
	r.left = 0
	s.rails.give(rl, s.waiting())
	return n
}

// awaits reports whether a request waits for room on a rail that carries no data.
func (s *sender) awaits(rl *rail) bool {
	s.advanceDataDone()
	if n := s.finalsPosted; n != s.dataDone {
		if r := s.win.At(n); r.final == finalDue && s.carrier(r) == rl {
			return true
		}
	}
	return s.next != s.win.Tail && s.win.At(s.next).plan == planMessage && s.rails.sendRail == rl
}

// advanceDataDone moves the cursor over every request whose data is acknowledged. It is called
// before uses of the cursor, not for each completion.
func (s *sender) advanceDataDone() {
	for s.dataDone != s.next && s.win.At(s.dataDone).dataComplete() {
		s.dataDone++
	}
	if s.finals == 0 {
		s.finalsPosted = s.dataDone
	}
}
