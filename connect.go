package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// Connect takes the virtual queue pair from RESET or INIT to RTS, connected to the peer whose business card is given. Both
// ends call it; either may come first, and may post as soon as its own Connect has returned.
//
// A card that does not fit (other scheme, other number of queue pairs) is refused and changes nothing. When a NIC refuses in
// the middle, the virtual queue pair is left in between: reset or close it.
func (q *VirtualQP) Connect(peer BusinessCard) error {
	if q.closed {
		return q.connectError(ErrClosed, "")
	}
	if err := q.checkPeer(&peer); err != nil {
		return err
	}
	if q.state != verbs.StateReset && q.state != verbs.StateInit {
		return q.connectError(verbs.ErrState, fmt.Sprintf("it is in %v, must be in RESET or INIT: reset it first", q.State()))
	}
	mtu, err := q.pathMTU(&peer)
	if err != nil {
		return err
	}
	var refused error // an address that is missing shows before anything is changed
	q.eachRail(func(r *rail) {
		if err := q.fillAttr(r, &verbs.QPAttr{}, verbs.QPAttrAV, &peer); err != nil && refused == nil {
			refused = err
		}
	})
	if refused != nil {
		return refused
	}
	conn := &q.cfg.Conn
	if q.state == verbs.StateReset {
		attr := verbs.QPAttr{State: verbs.StateInit, Port: conn.Port, Access: conn.Access}
		if err := q.Modify(attr, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess, nil); err != nil {
			return err
		}
	}
	attr := verbs.QPAttr{
		State:           verbs.StateRTR,
		PathMTU:         mtu,
		MaxDestRDAtomic: q.maxRDAtomic(),
		MinRNRTimer:     conn.MinRNRTimer,
		AH: verbs.AH{
			Global:       true,
			Port:         conn.Port,
			HopLimit:     64,
			TrafficClass: conn.TrafficClass,
			SL:           conn.SL,
		},
	}
	const toRTR = verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum | verbs.QPAttrRQPSN |
		verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer
	if err := q.Modify(attr, toRTR, &peer); err != nil {
		return err
	}
	attr = verbs.QPAttr{
		State:       verbs.StateRTS,
		Timeout:     conn.Timeout,
		RetryCount:  conn.RetryCount,
		RNRRetry:    conn.RNRRetry,
		MaxRDAtomic: q.maxRDAtomic(),
	}
	const toRTS = verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrSQPSN |
		verbs.QPAttrMaxRDAtomic
	return q.Modify(attr, toRTS, &peer)
}

// Modify changes attributes of every physical queue pair, the notify QP included: for programs that connect step by step.
//
// With peer given, what differs from queue pair to queue pair is filled in where mask names it: DestQPNum, RQPSN and SQPSN,
// and of the address handle the destination and the source GID index. Without, attr is used as it is.
//
// Reaching RTR posts the credits of DQPLB. Reaching RESET ends what is outstanding as flushed and forgets the failure.
// What a transition needs is checked for all queue pairs before any is touched.
func (q *VirtualQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask, peer *BusinessCard) error {
	q.cq.guard.enter()
	defer q.cq.guard.exit()
	if q.closed {
		return q.connectError(ErrClosed, "")
	}
	if peer != nil {
		if err := q.checkPeer(peer); err != nil {
			return err
		}
	}
	attrs := make([]verbs.QPAttr, 0, len(q.rails)+1)
	var refused error
	q.eachRail(func(r *rail) {
		a := attr
		if peer != nil && refused == nil {
			refused = q.fillAttr(r, &a, mask, peer)
		}
		if err := verbs.CheckModify(r.qp.State(), &a, mask); err != nil && refused == nil {
			refused = q.railError(r, err)
		}
		attrs = append(attrs, a)
	})
	if refused != nil {
		return refused
	}
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.StateReset {
		q.collect() // what has completed is reported as such
	}
	q.eachRail(func(r *rail) {
		if refused == nil {
			if err := r.qp.Modify(&attrs[r.index()], mask); err != nil {
				refused = q.railError(r, err)
			}
		}
	})
	if refused == nil && mask&verbs.QPAttrState != 0 {
		q.reached(attr.State, peer)
	}
	return refused
}

// Reset takes the virtual queue pair back to RESET, whatever became of it: what is outstanding completes as flushed, the
// failure is forgotten, and it can be connected again. The peer must do the same.
func (q *VirtualQP) Reset() error {
	return q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState, nil)
}

// reached notes the state that all queue pairs have come to.
func (q *VirtualQP) reached(state verbs.QPState, peer *BusinessCard) {
	q.state = state
	switch state {
	case verbs.StateReset:
		q.restart()
	case verbs.StateRTR:
		if peer != nil {
			q.adopt(peer)
		}
		if q.cfg.Scheme == DQPLB && !q.single {
			for _, r := range q.rails {
				r.owed = r.recvLimit
			}
			q.postCredits(atOnce)
		}
	}
}

// atOnce is the share at which credits are posted at once.
const atOnce = 1 << 20

// adopt keeps what the peer's card says for the data path.
func (q *VirtualQP) adopt(peer *BusinessCard) {
	q.rawImm = q.cfg.Scheme == DQPLB && peer.RawImm
	q.peerDevs = 0
	q.eachRail(func(r *rail) {
		r.peerDev = r.device
		if len(peer.Rails) != 0 {
			r.peerDev = uint8(peer.Rails[r.index()].Device)
		}
		q.peerDevs |= 1 << r.peerDev
	})
}

// restart gives a virtual queue pair that was reset its first state back. Requests keep counting on, so that completions of
// the former life are recognised.
func (q *VirtualQP) restart() {
	if !q.single {
		q.abandon()
		out := sink{}
		q.reportSends(&out)
		q.progressRecvs(&out)
		out.settle()
		q.next, q.dataDone, q.noted = q.send.tail, q.send.tail, q.send.tail
		q.free = 0
		for _, r := range q.rails {
			q.free += r.limit
		}
	}
	q.inflight, q.recv.torn = 0, false
	q.failure, q.suspect, q.killed, q.stopAt, q.freed, q.turn, q.notes = nil, nil, false, never, nil, 0, 0
	if q.cfg.Scheme == DQPLB && !q.single {
		q.numbers = newNumberSender(maxWindow)
		q.arrived = numberReceiver{}
		q.recv.bank = fifo[notification]{}
	}
	q.eachRail(func(r *rail) {
		r.dirty = false
		r.inbox = creditInbox{next: r.credited, slots: r.inbox.slots, mask: r.inbox.mask}
		clear(r.inbox.slots)
	})
}

// fillAttr fills in what differs from rail to rail.
func (q *VirtualQP) fillAttr(r *rail, a *verbs.QPAttr, mask verbs.QPAttrMask, peer *BusinessCard) error {
	described := len(peer.Rails) != 0
	if mask&verbs.QPAttrDestQPNum != 0 {
		a.DestQPNum = peer.NotifyQPNum
		if r != q.notify {
			a.DestQPNum = peer.QPNums[r.index()]
		}
	}
	if described {
		a.RQPSN, a.SQPSN = peer.Rails[r.index()].PSN, r.psn
	}
	if mask&verbs.QPAttrAV == 0 {
		return nil
	}
	_, entry, err := q.localPort(r)
	if err != nil {
		return err
	}
	a.AH.SGIDIndex = uint8(entry.Index)
	switch gids := q.cfg.Conn.PeerGIDs; {
	case r.index() < len(gids):
		a.AH.DGID = gids[r.index()]
	case described:
		a.AH.DGID, a.AH.DLID = peer.Rails[r.index()].GID, peer.Rails[r.index()].LID
	default:
		return q.connectError(verbs.ErrInvalid, "the peer's card has no GIDs: give Config.Conn.PeerGIDs")
	}
	return nil
}

// checkPeer says why a card does not fit this end.
func (q *VirtualQP) checkPeer(peer *BusinessCard) error {
	if err := peer.validate(); err != nil {
		return err
	}
	switch {
	case len(peer.QPNums) != len(q.rails):
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer has %d queue pairs, this end %d: configure both alike", len(peer.QPNums), len(q.rails)))
	case peer.Scheme != "" && !q.single && peer.Scheme != q.cfg.Scheme.String():
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer uses %s, this end %v: configure both alike", peer.Scheme, q.cfg.Scheme))
	case (peer.NotifyQPNum != 0) != (q.notify != nil):
		return q.connectError(verbs.ErrInvalid, "one end has a notify QP and the other has not: configure both alike")
	}
	return nil
}

// pathMTU is the MTU to connect with.
func (q *VirtualQP) pathMTU(peer *BusinessCard) (verbs.MTU, error) {
	card, err := q.Card()
	if err != nil {
		return 0, err
	}
	mtu := card.MTU
	if peer.MTU != 0 {
		mtu = min(mtu, peer.MTU)
	}
	return mtu, nil
}

// maxRDAtomic is how many reads and atomics a queue pair may have outstanding, as far as every device allows.
func (q *VirtualQP) maxRDAtomic() uint8 {
	n := q.cfg.Conn.MaxRDAtomic
	q.eachRail(func(r *rail) {
		if attr, err := r.qp.Device().Query(); err == nil && attr.MaxRDAtomic > 0 && attr.MaxRDAtomic < int(n) {
			n = uint8(attr.MaxRDAtomic)
		}
	})
	return n
}

// localPort describes a rail's port and the entry of its GID table that it uses.
func (q *VirtualQP) localPort(r *rail) (verbs.PortAttr, verbs.GIDEntry, error) {
	dev, conn := r.qp.Device(), &q.cfg.Conn
	port, err := dev.QueryPort(int(conn.Port))
	if err != nil {
		return port, verbs.GIDEntry{}, q.railError(r, err)
	}
	if conn.GIDIndex != 0 {
		entry, err := dev.QueryGID(int(conn.Port), conn.GIDIndex-1)
		if err != nil {
			return port, entry, q.railError(r, err)
		}
		return port, entry, nil
	}
	var best verbs.GIDEntry
	bestRank := 0
	for i := range port.GIDTableLen {
		entry, err := dev.QueryGID(int(conn.Port), i)
		if err != nil {
			continue // tables may have holes
		}
		if rank := gidRank(entry); rank > bestRank {
			best, bestRank = entry, rank
		}
	}
	if bestRank == 0 {
		return port, best, q.connectError(verbs.ErrInvalid, fmt.Sprintf("%s port %d has no GID: give the interface behind it an address", dev.Name(), conn.Port))
	}
	return port, best, nil
}

// gidRank orders GIDs as users expect them to be chosen: RoCE v2 over IPv4, RoCE v2, anything that is set.
func gidRank(e verbs.GIDEntry) int {
	switch {
	case e.GID.IsZero():
		return 0
	case e.Type != verbs.GIDTypeRoCEv2:
		return 1
	case e.GID.IsIPv4():
		return 3
	}
	return 2
}

func (q *VirtualQP) connectError(err error, detail string) error {
	if detail == "" {
		return fmt.Errorf("ibverbx: connect virtual qp %d: %w", q.num, err)
	}
	return fmt.Errorf("ibverbx: connect virtual qp %d: %w: %s", q.num, err, detail)
}

func (q *VirtualQP) railError(r *rail, err error) error {
	return fmt.Errorf("ibverbx: connect virtual qp %d: rail %d (%s qp %d): %w", q.num, r.index(), r.qp.Device().Name(), r.qp.Num(), err)
}
