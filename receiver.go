package ibverbx

import (
	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/internal/ring"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// receiver is the receive direction of a virtual queue pair over several physical ones: the user's
// receives, the credits that DQPLB keeps posted, and the notifications that wait for a receive. It
// returns what a queue pair refused and what the peer did wrong; [VirtualQP] decides what follows.
//
// Invariant: win.Head <= nextMessage, nextBare <= win.Tail. Of the receives with memory those
// before nextMessage were posted on the rail that carries SENDs, or have ended as flushed. Of the
// bare ones, without memory, those before nextBare were posted on the notify rail (Spray), have
// been given their notification (DQPLB), or have ended as flushed. Nothing is banked while a bare
// receive waits. recvsToPost is the sum over the rails.
type receiver struct {
	win                   ring.Window[recvReq]
	nextMessage, nextBare uint64

	order       dqplb.Receiver                // DQPLB: puts numbered messages in order
	bank        ring.FIFO[dqplb.Notification] // DQPLB: notifications that wait for a receive
	bankedEver  uint64                        // notifications that were ever banked
	recvsToPost int                           // credits and watches to be posted on all rails
	batch       *recvBatch                    // of the virtual CQ; holds receives to post

	maxBanked int
	imms      immOrder
	// creditsWait says that the peer is plain and that no receive for a notification was posted on
	// this connection yet: until then the data rails hold no credits. See VirtualQP.adopt.
	creditsWait bool
	// withheld says that credits were withheld since the bank was last empty.
	withheld bool
	// notifiedYet says that a notification has arrived on this connection.
	notifiedYet bool
	observer    *observer // nil without Config.Timing and Config.Trace
	// flushRest says that a receive was reported with an error. All later ones are reported as
	// flushed: on a single connection nothing arrives after an error.
	flushRest bool
}

// newReceiver makes the receive direction of a virtual queue pair in RESET.
func newReceiver(batch *recvBatch, cfg *Config) receiver {
	return receiver{win: ring.NewWindow[recvReq](), nextMessage: 1, nextBare: 1, batch: batch,
		maxBanked: cfg.MaxBanked, imms: immOrder(cfg.Conn.ImmLittleEndian)}
}

// restart begins a connection. Nothing is outstanding. Receives continue their numbering.
func (s *receiver) restart() {
	s.order, s.bank, s.flushRest = dqplb.Receiver{}, ring.FIFO[dqplb.Notification]{}, false
	s.creditsWait, s.notifiedYet, s.withheld = false, false, false
}

// recvReq is a live receive. Its fields are valid from PostRecv until it is reported.
type recvReq struct {
	id        uint64
	bytes     uint64 // bytes that have arrived
	status    verbs.Status
	opcode    verbs.WCOpcode
	imm       uint32
	vendorErr uint32
	hasImm    bool
	message   bool      // has memory: takes a SEND, not a notification
	done      bool      // has ended, and is reported in its turn
	pieces    []Segment // its memory; kept by the slot
}

// enqueue checks a receive, holds its memory and gives it its slot. The window is not full.
func (s *receiver) enqueue(rails *railSet, held *holder, i int, wr *RecvWR) error {
	if len(wr.SGL) != 0 && wr.Local != (Segment{}) {
		return refuseRecv(i, wr, verbs.ErrInvalid, "both Local and SGL are set: use one")
	}
	pieces := wr.SGL
	if len(pieces) == 0 && wr.Local.Length != 0 {
		pieces = []Segment{wr.Local}
	}
	message := false
	for _, p := range pieces {
		message = message || p.Length != 0
	}
	if message {
		if err := rails.checkRecv(i, wr, pieces); err != nil {
			return err
		}
		if bad := held.holdPieces(pieces); bad >= 0 {
			return refuseRecv(i, wr, ErrClosed, pieces[bad].closedText())
		}
	} else if err := rails.checkBareRecv(i, wr); err != nil {
		return err
	}
	// Field by field: a composite would copy the struct, with write barriers.
	r := s.win.Open()
	r.id, r.bytes, r.status, r.imm, r.vendorErr = wr.ID, 0, verbs.StatusSuccess, 0, 0
	r.hasImm, r.message, r.done = false, message, false
	r.opcode = verbs.WCRecvRDMAWithImm
	if message {
		r.opcode = verbs.WCRecv
		r.pieces = append(r.pieces[:0], pieces...)
	}
	return nil
}

// recvRefusal is a queue pair's refusal of a receive.
type recvRefusal struct {
	rail *rail
	err  error
	f    *FailedError // describes the receive
}

// postWaiting posts the waiting receives of one kind, from *next on, as far as their rail has room.
// next is the cursor of that kind.
func (s *receiver) postWaiting(rl *rail, message bool, next *uint64) *recvRefusal {
	if rl == nil {
		*next = s.win.Tail // no receive of this kind was accepted
		return nil
	}
	if rl.recvsRefused {
		return nil
	}
	for *next != s.win.Tail {
		batch, stop := s.gather(rl, message, *next)
		if len(batch) == 0 {
			*next = stop
			return nil
		}
		accepted, err := rl.qp.PostRecv(batch)
		rl.recvs += accepted
		if rl.back != nil {
			rl.back.state.Posted(accepted)
		}
		if err != nil {
			// The cursor first: accepted receives belong to the NIC, whatever the refusal leads to.
			*next, _ = s.win.Resolve(wrid.Number(batch[accepted].ID), wrid.NumberMask)
			return &recvRefusal{rl, err, describeRecv(s.win.At(*next))}
		}
		*next = stop
	}
	return nil
}

// postedOn reports whether receive n was posted on a rail, or on one of the same role.
func (s *receiver) postedOn(rl *rail, n uint64) bool {
	r, role, next := s.win.At(n), failover.Notifications, s.nextBare
	if r.message {
		role, next = failover.Sends, s.nextMessage
	}
	return !r.done && rl.role == role && n < next
}

// rewind makes the receives of one kind that came back from a lost rail be posted again. Messages
// take receives in order, so these begin at the first that is not done. next is the cursor of that
// kind.
func (s *receiver) rewind(message bool, next *uint64) {
	for n := s.win.Head; n < *next; n++ {
		if r := s.win.At(n); r.message == message && !r.done {
			*next = n
			return
		}
	}
}

// live reports whether a receive of one kind is live, from number n on.
func (s *receiver) live(n uint64, message bool) bool {
	for ; n != s.win.Tail; n++ {
		if s.win.At(n).message == message {
			return true
		}
	}
	return false
}

// gather fills the batch with receives of one kind from request n on, as the rail has room.
func (s *receiver) gather(rl *rail, message bool, n uint64) (batch []verbs.RecvWR, stop uint64) {
	count := 0
	for ; n != s.win.Tail; n++ {
		r := s.win.At(n)
		if r.message != message {
			continue
		}
		if count == len(s.batch.wrs) || rl.recvs+rl.recvsToPost+count >= rl.recvLimit {
			break
		}
		wr := &s.batch.wrs[count]
		wr.ID, wr.SGL = wrid.New(wrid.Recv, rl.idBits, 0, n), nil
		if message {
			wr.SGL = appendSGL(s.batch.list(count), r.pieces, rl.device)
		}
		count++
	}
	return s.batch.wrs[:count], n
}

// deliverBanked gives banked notifications to the receives that wait for one, and reports whether
// it gave any.
func (s *receiver) deliverBanked() (any bool) {
	for s.bank.Len() != 0 {
		r := s.takeBare()
		if r == nil {
			break
		}
		n := s.bank.Pop()
		r.deliver(n)
		if s.observer != nil {
			s.observer.released(s.nextBare-1, n)
		}
		any = true
	}
	return any
}

// takeBare returns the oldest waiting bare receive and moves past it; nil if there is none.
func (s *receiver) takeBare() *recvReq {
	for s.nextBare != s.win.Tail {
		r := s.win.At(s.nextBare)
		s.nextBare++
		if !r.message {
			return r
		}
	}
	return nil
}

func (r *recvReq) deliver(n dqplb.Notification) {
	r.done = true
	r.bytes, r.imm, r.hasImm = n.Bytes, n.Imm, true
}

// notified gives a notification to the oldest receive that waits for one, or banks it for the next.
func (s *receiver) notified(n dqplb.Notification) {
	s.notifiedYet = true
	if s.bank.Len() == 0 {
		if r := s.takeBare(); r != nil {
			r.deliver(n)
			if s.observer != nil {
				s.observer.released(s.nextBare-1, n)
			}
			return
		}
	}
	s.bank.Push(n)
	s.bankedEver++
}

// completed handles the completion of a receive of the user. It returns the receive, or nil if the
// completion fits none. If the NIC reports a success with a message of the other kind, the receive
// gets LOC_QP_OP_ERR.
func (s *receiver) completed(rails *railSet, rl *rail, wc *verbs.WC) *recvReq {
	n, ok := s.win.Resolve(wrid.Number(wc.ID), wrid.NumberMask)
	if !ok {
		return nil
	}
	r := s.win.At(n)
	carrier, posted := rails.finalRail, n < s.nextBare
	if r.message {
		carrier, posted = rails.sendRail, n < s.nextMessage
	}
	if r.done || !posted || rl != carrier && (!rl.down || !s.postedOn(rl, n)) {
		return nil
	}
	rl.recvs--
	r.done = true
	switch {
	case wc.Status != verbs.StatusSuccess:
		r.status, r.vendorErr = wc.Status, wc.VendorErr
	case wc.Opcode != r.opcode:
		r.status = verbs.StatusLocQPOpErr
	default:
		s.notifiedYet = s.notifiedYet || !r.message
		if s.observer != nil {
			s.observer.took(rl, n, wc)
		}
		r.bytes = uint64(wc.ByteLen)
		r.imm, r.hasImm = wc.Imm, wc.Flags&verbs.WCWithImm != 0
	}
	return r
}

// busy reports whether a progress may find something to post, to deliver or to report. A bare
// receive of DQPLB waits for a notification, so it counts only while one is banked.
func (s *receiver) busy(scheme Scheme) bool {
	return s.recvsToPost != 0 || s.nextMessage != s.win.Tail ||
		s.nextBare != s.win.Tail && (scheme != DQPLB || s.bank.Len() != 0) ||
		s.win.Head != s.win.Tail && s.win.Front().done
}

// report reports finished receives in posting order, for the virtual queue pair with number num.
func (s *receiver) report(l *line, num uint32, out *sink) {
	for s.win.Head != s.win.Tail {
		r := s.win.Front()
		if !r.done || r.status != verbs.StatusSuccess && l.withholds() {
			break
		}
		if s.flushRest {
			r.status, r.vendorErr, r.bytes, r.hasImm = verbs.StatusWRFlushErr, 0, 0, false
		}
		s.flushRest = r.status != verbs.StatusSuccess
		wc := out.slot()
		*wc = WC{
			ID:        r.id,
			Status:    r.status,
			Opcode:    r.opcode,
			VendorErr: r.vendorErr,
			QPNum:     num,
			ByteLen:   r.bytes,
		}
		if r.hasImm {
			wc.Imm, wc.Flags = s.imms.turn(r.imm), verbs.WCWithImm
		}
		if r.message {
			out.releasePieces(r.pieces)
		}
		s.win.Head++
	}
	// Receives of the other kind may have been passed by.
	s.nextMessage, s.nextBare = max(s.nextMessage, s.win.Head), max(s.nextBare, s.win.Head)
}

// flushWaiting completes receives that are not on a NIC as flushed; the NIC completes the others.
func (s *receiver) flushWaiting() {
	for n := s.win.Head; n != s.win.Tail; n++ {
		r := s.win.At(n)
		waits := n >= s.nextBare
		if r.message {
			waits = n >= s.nextMessage
		}
		if waits && !r.done {
			r.done, r.status = true, verbs.StatusWRFlushErr
		}
	}
	s.nextMessage, s.nextBare = s.win.Tail, s.win.Tail
}

// abandon ends every receive as flushed, once no NIC holds any, and drops the credits.
func (s *receiver) abandon() {
	s.nextMessage, s.nextBare = s.win.Head, s.win.Head
	s.flushWaiting()
	s.recvsToPost = 0
}

// check panics if the invariant does not hold.
func (s *receiver) check(rails *railSet) {
	if min(s.nextMessage, s.nextBare) < s.win.Head || max(s.nextMessage, s.nextBare) > s.win.Tail {
		broken("receiver: cursors %d, %d, %d, %d", s.win.Head, s.nextMessage, s.nextBare, s.win.Tail)
	}
	sum := 0
	for _, rl := range rails.data {
		sum += rl.recvsToPost
	}
	if sum != s.recvsToPost {
		broken("receiver: %d credits to repost, counted %d", sum, s.recvsToPost)
	}
	if s.bank.Len() == 0 || s.win.Tail-s.nextBare > checkedRequests {
		return
	}
	for n := s.nextBare; n != s.win.Tail; n++ {
		if !s.win.At(n).message {
			broken("receiver: receive %d waits beside %d banked notifications", n, s.bank.Len())
		}
	}
}

// stats fills in the figures of the receive direction.
func (s *receiver) stats(to *Stats) {
	to.Recvs, to.RecvsCompleted = s.win.Tail-1, s.win.Head-1
	to.RecvWindow, to.RecvRing = s.win.Len(), s.win.Cap()
	to.RingsGrown += s.win.Grown()
	to.OutOfOrder, to.Banked, to.BankedTotal = s.order.Held(), s.bank.Len(), s.bankedEver
}

// begin makes the rails' own receives due, with none posted: in DQPLB the credits of every data
// rail; in Spray a watch on each but the one that carries SENDs. No message ever takes a watch. It
// is flushed when the queue pair fails, for example after a remote access error of the peer, which
// a receiver would not notice otherwise. With failover every data rail has watches, and control
// messages take them.
func (s *receiver) begin(rails *railSet, scheme Scheme, recovers bool) {
	own := rails.data
	if scheme == Spray && !recovers {
		own = own[1:]
	}
	for _, r := range own {
		n := r.recvLimit
		switch {
		case scheme == Spray:
			n = min(n, controlRecvs)
		case r == rails.sendRail:
			n -= n / 2 // the rest is for receives that take SENDs
		}
		r.own, r.recvsToPost = n, n // it is 0 after a reset
		s.recvsToPost += n
	}
}

// dropCredits drops the lost rail's own receives that were due.
func (s *receiver) dropCredits(rl *rail) {
	s.recvsToPost -= rl.recvsToPost
	rl.recvsToPost = 0
}

// creditUsed counts a credit that a message used up.
func (s *receiver) creditUsed(rl *rail) {
	if rl.role != failover.Data {
		return // the receive was for GO: see recovery.postOwn
	}
	rl.recvsToPost++
	s.recvsToPost++
}

// withholdsCredits reports whether the bank is full, or too many messages are held out of order.
// Used credits are then not posted again, which stops the sender without losing anything.
func (s *receiver) withholdsCredits() bool {
	return s.bank.Len() >= s.maxBanked || s.order.Held() > dqplb.MaxHeld/2
}

// postCredits posts a rail's used credits again.
func (s *receiver) postCredits(rl *rail) error {
	for {
		// The inbox has a slot for every credit from the oldest unhandled one; none is posted
		// beyond that.
		batch := s.batch.wrs[:min(rl.recvsToPost, len(s.batch.wrs), rl.inbox.Room(rl.creditsPosted))]
		if len(batch) == 0 {
			return nil
		}
		for i := range batch {
			batch[i].ID = wrid.New(wrid.Credit, rl.idBits, 0, rl.creditsPosted+uint64(i))
			if batch[i].SGL != nil {
				batch[i].SGL = nil
			}
		}
		n, err := rl.qp.PostRecv(batch)
		rl.recvsToPost -= n
		s.recvsToPost -= n
		rl.recvs += n
		rl.creditsPosted += uint64(n)
		if rl.back != nil {
			rl.back.state.Posted(n)
		}
		if err != nil {
			return err
		}
	}
}

// arrived puts a rail's next message into the order of the connection and delivers the
// notifications that become due. An error is a violation of the protocol by the peer.
func (s *receiver) arrived(rl *rail, imm, bytes uint32) error {
	if s.observer != nil {
		s.observer.arrived(rl, imm, bytes)
	}
	n, due, err := s.order.Arrive(&rl.inbox, imm, bytes)
	if err != nil {
		return err
	}
	if due {
		s.notified(n)
	}
	for s.order.Ready() {
		if n, due = s.order.Take(); due {
			s.notified(n)
		}
	}
	return nil
}
