package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// Connect takes the virtual queue pair from RESET or INIT to RTS, connected to the peer whose
// business card is given. Both ends call it; either may come first. What is posted before the peer
// has connected is retried for as long as Conn.Timeout and Conn.RetryCount allow (half a second by
// default) and then fails: if the ends may be further apart than that, let them tell each other
// that they are ready.
//
// A card that does not fit (other scheme, other number of queue pairs, no address) is refused and
// changes nothing. When a NIC refuses in the middle, the virtual queue pair is left in between:
// reset or close it.
func (q *VirtualQP) Connect(peer BusinessCard) error {
	q.ports = nil
	if q.closed {
		return q.connectError(ErrClosed, "")
	}
	if err := q.checkPeer(&peer); err != nil {
		return err
	}
	if q.state != verbs.StateReset && q.state != verbs.StateInit {
		return q.connectError(verbs.ErrState, fmt.Sprintf("it is in %v, must be in RESET or INIT: reset it "+
			"first", q.State()))
	}
	card, err := q.Card()
	if err != nil {
		return err
	}
	if err := q.checkAddresses(&peer); err != nil {
		return err
	}
	steps := q.connectSteps(&card, &peer)
	if q.state == verbs.StateInit {
		steps = steps[1:]
	}
	for _, s := range steps {
		if err := q.Modify(s.attr, s.mask, &peer); err != nil {
			return err
		}
	}
	return nil
}

// connectStep is one transition on the way to RTS.
type connectStep struct {
	attr verbs.QPAttr
	mask verbs.QPAttrMask
}

// connectSteps are the transitions to INIT, RTR and RTS.
func (q *VirtualQP) connectSteps(own, peer *BusinessCard) []connectStep {
	conn := &q.cfg.Conn
	mtu, depth := own.MTU, own.RDAtomic
	if peer.MTU != 0 {
		mtu = min(mtu, peer.MTU)
	}
	if peer.RDAtomic != 0 {
		depth = min(depth, peer.RDAtomic)
	}
	return []connectStep{{
		verbs.QPAttr{State: verbs.StateInit, Access: conn.Access},
		verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
	}, {
		verbs.QPAttr{
			State: verbs.StateRTR, PathMTU: mtu, MaxDestRDAtomic: own.RDAtomic, MinRNRTimer: conn.MinRNRTimer,
			AH: verbs.AH{Global: true, HopLimit: 64, TrafficClass: conn.TrafficClass, SL: conn.SL},
		},
		verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer,
	}, {
		verbs.QPAttr{
			State: verbs.StateRTS, Timeout: attr(conn.Timeout), RetryCount: attr(conn.RetryCount),
			RNRRetry:    attr(conn.RNRRetry),
			MaxRDAtomic: depth,
		},
		verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
			verbs.QPAttrSQPSN |
			verbs.QPAttrMaxRDAtomic,
	}}
}

// Modify changes attributes of every physical queue pair, the notify QP included: for programs that
// connect step by step.
//
// With peer given, what differs from queue pair to queue pair is filled in where mask names it:
// DestQPNum, RQPSN and SQPSN, of the address handle the destination and the source GID index, and a
// port of 0 in either. Without, attr is used as it is.
//
// Reaching RTR posts the credits of DQPLB. RESET does what [VirtualQP.Reset] does.
// What a transition needs is checked for all queue pairs before any is touched.
func (q *VirtualQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask, peer *BusinessCard) error {
	q.cq.guard.enter()
	defer q.cq.guard.exit()
	if q.closed {
		return fmt.Errorf("ibverbx: modify virtual qp %d: %w", q.num, ErrClosed)
	}
	if peer != nil {
		if err := q.checkPeer(peer); err != nil {
			return err
		}
	}
	attrs := make([]verbs.QPAttr, 0, len(q.rails)+1)
	for _, r := range q.all {
		a := attr
		if peer != nil {
			if err := q.fillAttr(r, &a, mask, peer); err != nil {
				return err
			}
		}
		if err := verbs.CheckModify(r.qp.State(), &a, mask); err != nil {
			return q.railError(r, err)
		}
		attrs = append(attrs, a)
	}
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.StateReset {
		return q.reset()
	}
	for i, r := range q.all {
		if err := r.qp.Modify(&attrs[i], mask); err != nil {
			return q.railError(r, err)
		}
	}
	if mask&verbs.QPAttrState == 0 {
		return nil
	}
	return q.reached(attr.State, peer)
}

// reached notes the state that all queue pairs have come to.
func (q *VirtualQP) reached(state verbs.QPState, peer *BusinessCard) error {
	q.state = state
	if state != verbs.StateRTR {
		return nil
	}
	if peer != nil {
		q.adopt(peer)
	}
	if q.single {
		return nil
	}
	if q.cfg.Scheme == DQPLB {
		for _, r := range q.rails {
			r.owed = r.recvLimit
			q.owed += r.owed
		}
	} else {
		q.watchRails()
	}
	q.postCredits(atOnce)
	return q.Err()
}

// watchRails prepares one receive for every data rail of Spray but the one that carries SENDs. No
// message ever takes it; it is flushed when the queue pair fails, as after a remote access error of
// the peer, and without it a receiver would not learn of that.
func (q *VirtualQP) watchRails() {
	for _, r := range q.rails[1:] {
		r.owed = r.recvLimit
		q.owed += r.owed
	}
}

// atOnce is the share at which credits are posted whatever their number.
const atOnce = 1 << 20

// adopt keeps what the peer's card says for the data path. Nothing is outstanding yet.
func (q *VirtualQP) adopt(peer *BusinessCard) {
	q.rawImm = q.cfg.Scheme == DQPLB && peer.RawImm
	q.peerDevs = 0
	if q.cfg.Scheme == DQPLB && !q.single && peer.Credits > 0 {
		// More in flight than the peer has receives for would only make the NICs retry.
		q.free = 0
		for _, r := range q.rails {
			r.limit = min(r.slots, peer.Credits)
			q.free += r.limit
		}
	}
	if q.cfg.Scheme == DQPLB && !q.single && q.cfg.FirstNumber != 0 && peer.FirstNumber != 0 {
		q.numbers = newNumberSender(maxWindow, q.cfg.FirstNumber)
		q.arrived.next = peer.FirstNumber
	}
	for _, r := range q.all {
		r.peerDev = r.device
		if len(peer.Rails) != 0 {
			r.peerDev = uint8(peer.Rails[r.index()].Device)
		}
		q.peerDevs |= 1 << r.peerDev
	}
}

// fillAttr fills in what differs from rail to rail.
func (q *VirtualQP) fillAttr(r *rail, a *verbs.QPAttr, mask verbs.QPAttrMask, peer *BusinessCard) error {
	described := len(peer.Rails) != 0
	if a.Port == 0 {
		a.Port = q.port(r)
	}
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
	port, err := q.localPort(r)
	if err != nil {
		return err
	}
	a.AH.SGIDIndex = uint8(port.gid.Index)
	if a.AH.Port == 0 {
		a.AH.Port = q.port(r)
	}
	switch gids := q.cfg.Conn.PeerGIDs; {
	case r.index() < len(gids):
		a.AH.DGID = gids[r.index()]
	case described:
		a.AH.DGID, a.AH.DLID = peer.Rails[r.index()].GID, peer.Rails[r.index()].LID
	default:
		return q.connectError(verbs.ErrInvalid, "the peer's card has no GIDs: give Config.Conn.PeerGIDs")
	}
	if a.AH.DGID.IsZero() && port.attr.LinkLayer == verbs.LinkLayerEthernet {
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer's GID for rail %d is empty", r.index()))
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
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer has %d queue pairs, this end %d: "+
			"configure both alike", len(peer.QPNums), len(q.rails)))
	case peer.Scheme != "" && !q.single && peer.Scheme != q.cfg.Scheme.String():
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer uses %.20q, this end %v: configure "+
			"both alike", peer.Scheme, q.cfg.Scheme))
	case (peer.NotifyQPNum != 0) != (q.notify != nil):
		return q.connectError(verbs.ErrInvalid, "one end has a notify QP and the other has not: configure "+
			"both alike")
	}
	return nil
}

// checkAddresses says what is missing of the addresses of either end.
func (q *VirtualQP) checkAddresses(peer *BusinessCard) error {
	for _, r := range q.all {
		if err := q.fillAttr(r, &verbs.QPAttr{}, verbs.QPAttrAV, peer); err != nil {
			return err
		}
	}
	return nil
}

// maxRDAtomic is how many reads and atomics a queue pair may have outstanding, as far as every
// device allows.
func (q *VirtualQP) maxRDAtomic() uint8 {
	n := q.cfg.Conn.MaxRDAtomic
	for _, r := range q.all {
		if attr, err := r.qp.Device().Query(); err == nil && attr.MaxRDAtomic > 0 &&
			attr.MaxRDAtomic < int(n) {
			n = uint8(attr.MaxRDAtomic)
		}
	}
	return n
}

// port is the number of a rail's local port.
func (q *VirtualQP) port(r *rail) uint8 {
	if p := q.cfg.Conn.Port; p != 0 {
		return p
	}
	return uint8(r.qp.Device().DefaultPort())
}

// localPort is what a rail's end of the connection looks like: its port, and the entry of the
// port's GID table that it uses.
type localPort struct {
	attr verbs.PortAttr
	gid  verbs.GIDEntry
}

// localPort finds out about a rail's port, once a device: GID tables may have hundreds of entries.
func (q *VirtualQP) localPort(r *rail) (localPort, error) {
	if p, ok := q.ports[r.device]; ok {
		return p, nil
	}
	p, err := q.queryPort(r)
	if err != nil {
		return p, err
	}
	if q.ports == nil {
		q.ports = map[uint8]localPort{}
	}
	q.ports[r.device] = p
	return p, nil
}

func (q *VirtualQP) queryPort(r *rail) (p localPort, err error) {
	dev, port, index := r.qp.Device(), int(q.port(r)), q.cfg.Conn.GIDIndex
	if p.attr, err = dev.QueryPort(port); err != nil {
		return p, q.railError(r, err)
	}
	if index != 0 {
		if p.gid, err = dev.QueryGID(port, max(0, index)); err != nil {
			return p, q.railError(r, err)
		}
		if p.gid.GID.IsZero() && p.attr.LinkLayer == verbs.LinkLayerEthernet {
			return p, q.connectError(verbs.ErrInvalid,
				fmt.Sprintf("entry %d of the GID table of %s port %d is empty", max(0, index), dev.Name(),
					port))
		}
		return p, nil
	}
	best := 0
	var hole error // an entry that cannot be read is no reason to give up, unless no other is found
	for i := range p.attr.GIDTableLen {
		entry, err := dev.QueryGID(port, i)
		if err != nil {
			hole = err
			continue
		}
		if rank := gidRank(entry); rank > best {
			p.gid, best = entry, rank
		}
	}
	if best == 0 && hole != nil {
		return p, q.railError(r, hole)
	}
	if best == 0 {
		return p, q.connectError(verbs.ErrInvalid,
			fmt.Sprintf("%s port %d has no GID: give the interface behind it an address", dev.Name(), port))
	}
	return p, nil
}

// gidRank orders GIDs as users expect them to be chosen: RoCE v2 before anything else, of these the
// routable before the link-local, and IPv4 before IPv6.
func gidRank(e verbs.GIDEntry) int {
	switch {
	case e.GID.IsZero():
		return 0
	case e.Type != verbs.GIDTypeRoCEv2:
		return 1
	}
	rank := 2
	if !e.GID.IsLinkLocal() {
		rank += 2
	}
	if e.GID.IsIPv4() {
		rank++
	}
	return rank
}

func (q *VirtualQP) connectError(err error, detail string) error {
	if detail == "" {
		return fmt.Errorf("ibverbx: connect virtual qp %d: %w", q.num, err)
	}
	return fmt.Errorf("ibverbx: connect virtual qp %d: %w: %s", q.num, err, detail)
}

func (q *VirtualQP) railError(r *rail, err error) error {
	return fmt.Errorf("ibverbx: virtual qp %d: rail %d (%s qp %d): %w", q.num, r.index(),
		r.qp.Device().Name(), r.qp.Num(), err)
}
