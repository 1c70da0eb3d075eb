package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/verbs"
)

// Connect takes the virtual queue pair from RESET or INIT to RTS, connected to the peer with this
// business card. Both ends call it, in any order. A request that you post before the peer has
// connected is retried for as long as Conn.Patience allows (3.8 seconds over software NICs, 34 over
// others) and then fails: if the peer may connect later than that, wait until it reports that it is
// ready.
//
// A card that does not fit (other scheme, other number of queue pairs, no address) is refused and
// changes nothing. So are the virtual queue pair's own card, with [ErrOwnCard], and that of a
// software NIC of another fabric, with [verbs.ErrUnreachable]. (To connect a queue pair to itself,
// use [VirtualQP.Modify].) If a NIC refuses a later step, the virtual queue pair is partly
// connected: reset or close it.
func (q *VirtualQP) Connect(peer BusinessCard) error {
	q.enter()
	defer q.exit()
	if q.line.closed {
		return q.connectError(ErrClosed, "")
	}
	if err := q.checkPeer(&peer); err != nil {
		return err
	}
	if q.line.state != verbs.StateReset && q.line.state != verbs.StateInit {
		return q.connectError(verbs.ErrState, fmt.Sprintf("it is in %v, must be in RESET or INIT: reset it "+
			"first", q.State()))
	}
	h := newHandshake(q)
	card, err := h.card()
	if err != nil {
		return err
	}
	if err := h.checkAddresses(&peer); err != nil {
		return err
	}
	steps := h.steps(&card, &peer)
	if q.line.state == verbs.StateInit {
		steps = steps[1:]
	}
	for _, s := range steps {
		if err := h.modify(s.attr, s.mask, &peer); err != nil {
			return err
		}
	}
	return nil
}

// handshake is the state of a Connect or Card. It queries each device's port once.
type handshake struct {
	*VirtualQP
	ports localPorts
}

func newHandshake(q *VirtualQP) *handshake {
	return &handshake{VirtualQP: q, ports: localPorts{conn: &q.cfg.Conn}}
}

// steps returns the transitions to INIT, RTR and RTS.
func (h *handshake) steps(own, peer *BusinessCard) []connectStep {
	conn := &h.cfg.Conn
	// A peer whose card does not say how many reads it serves is like the original, which serves
	// one; NICs answer more with "invalid request".
	mtu, depth := own.MTU, min(own.RDAtomic, max(peer.RDAtomic, 1))
	if peer.MTU != 0 {
		mtu = min(mtu, peer.MTU)
	}
	return []connectStep{{
		verbs.QPAttr{State: verbs.StateInit, Access: conn.Access},
		verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
	}, {
		verbs.QPAttr{
			State: verbs.StateRTR, PathMTU: mtu, MaxDestRDAtomic: own.RDAtomic,
			MinRNRTimer: attr(conn.MinRNRTimer),
			AH:          verbs.AH{Global: true, HopLimit: 64, TrafficClass: conn.TrafficClass, SL: conn.SL},
		},
		verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer,
	}, {
		verbs.QPAttr{
			State: verbs.StateRTS, Timeout: attr(conn.Timeout), RetryCount: attr(conn.RetryCount),
			RNRRetry: attr(conn.RNRRetry), MaxRDAtomic: depth,
		},
		verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
			verbs.QPAttrSQPSN | verbs.QPAttrMaxRDAtomic,
	}}
}

// Modify changes attributes of every physical queue pair, the notify QP included: for programs that
// connect step by step.
//
// If peer is not nil, the attributes that differ between queue pairs are filled in if mask names
// them: DestQPNum, RQPSN and SQPSN, the destination and the source GID index of the address handle,
// and ports that are 0. If peer is nil, attr is used as it is.
//
// Reaching RTR posts the credits of DQPLB. RESET does what [VirtualQP.Reset] does. The requirements
// of a transition are checked for all queue pairs before any is changed.
func (q *VirtualQP) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask, peer *BusinessCard) error {
	q.enter()
	defer q.exit()
	return newHandshake(q).modify(attr, mask, peer)
}

func (h *handshake) modify(attr verbs.QPAttr, mask verbs.QPAttrMask, peer *BusinessCard) error {
	if h.line.closed {
		return fmt.Errorf("ibverbx: modify virtual qp %d: %w", h.num, ErrClosed)
	}
	if peer != nil {
		if err := h.checkPeer(peer); err != nil {
			return err
		}
	}
	rails := h.connecting(peer)
	attrs := make([]verbs.QPAttr, 0, len(rails))
	for _, r := range rails {
		a := attr
		if peer != nil {
			if err := h.fillAttr(r, &a, mask, peer); err != nil {
				return err
			}
		}
		if err := verbs.CheckModify(r.qp.State(), &a, mask); err != nil {
			return h.railError(r, err)
		}
		attrs = append(attrs, a)
	}
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.StateReset {
		return h.reset()
	}
	for i, r := range rails {
		if err := r.qp.Modify(&attrs[i], mask); err != nil {
			return h.railError(r, err)
		}
		if mask&verbs.QPAttrSQPSN != 0 {
			r.lastPSN = attrs[i].SQPSN
		}
		if mask&verbs.QPAttrTimeout != 0 && mask&verbs.QPAttrRetryCount != 0 {
			r.givesUp = givesUpAfter(attr.Timeout, attr.RetryCount)
		}
		if r.back != nil {
			r.back.note(&attrs[i], mask)
		}
	}
	if mask&verbs.QPAttrState == 0 {
		return nil
	}
	if attr.State == verbs.StateInit && peer != nil && h.cfg.Scheme == Spray {
		h.send.rails.assignSends(Spray, false, h.failsOver(peer)) // from here on receives may be posted
	}
	return h.reached(attr.State, peer)
}

// connecting returns the rails that have a counterpart at the peer: the spares only with failover.
func (q *VirtualQP) connecting(peer *BusinessCard) []*rail {
	rails := &q.send.rails
	if peer != nil && !q.failsOver(peer) {
		return rails.all[:len(rails.all)-len(rails.spares)]
	}
	return rails.all
}

// failsOver reports whether both ends offer failover.
func (q *VirtualQP) failsOver(peer *BusinessCard) bool {
	return q.offered != nil && peer.Failover && len(peer.Rails) != 0
}

// reached records the state that all queue pairs have reached.
func (q *VirtualQP) reached(state verbs.QPState, peer *BusinessCard) error {
	q.line.state = state
	if state == verbs.StateRTS && q.cfg.Events.Connected != nil {
		q.cfg.Events.Connected(ConnectedEvent{q.num, q.send.rails.carrier(&q.cfg, q.failover != nil)})
	}
	if state == verbs.StateRTS && q.failover != nil {
		q.failover.checkPorts() // events before this moment may have been missed
		q.cq.touch(q)
	}
	if state != verbs.StateRTR {
		return nil
	}
	if peer != nil {
		if err := q.adopt(peer); err != nil {
			return err
		}
	}
	if q.pass != nil {
		return nil
	}
	q.recv.begin(&q.send.rails, q.cfg.Scheme, q.failover != nil)
	q.postDueCredits(true)
	return q.Err()
}

// adopt sets up the data path from the peer's card. Nothing is outstanding yet.
func (q *VirtualQP) adopt(peer *BusinessCard) error {
	rails := &q.send.rails
	rails.peerDevs = 0
	for _, r := range q.connecting(peer) {
		r.peerDev = r.device
		if len(peer.Rails) != 0 {
			r.peerDev = uint8(peer.Rails[r.index()].Device)
		}
		rails.peerDevs |= 1 << r.peerDev
	}
	q.line.schemeUnsaid = peer.Scheme == "" && q.pass == nil
	if q.pass != nil {
		return nil
	}
	leader := false
	if q.failsOver(peer) {
		card, err := newHandshake(q).card()
		if err != nil {
			return err
		}
		leader = leads(&card, peer)
		q.failover = q.offered
		q.cq.ports.begin(q.cq.Devices(), q.cq.channel)
	}
	rails.assignSends(q.cfg.Scheme, peer.isPlain(), q.failover != nil)
	if q.failover != nil {
		q.failover.begin(leader)
	}
	if q.cfg.Scheme != DQPLB {
		return nil
	}
	switch {
	case peer.Credits > 0 && q.failover != nil:
		rails.limitTo(max(1, peer.Credits-failover.ControlSlots))
	case peer.Credits > 0:
		rails.limitTo(peer.Credits)
	}
	// The original posts its credits with the first receive for a notification, and uses data rail
	// 0 for SENDs and receives with memory, too. Which of the two a message meets there depends on
	// the programs, and SENDs would consume credits that were posted first.
	q.recv.creditsWait = peer.isPlain() && !q.recv.live(q.recv.win.Head, false)
	first := uint32(0)
	if q.cfg.Testing.FirstNumber != 0 && peer.FirstNumber != 0 {
		q.send.numbers, first = dqplb.NewSender(q.cfg.Testing.FirstNumber), peer.FirstNumber
	}
	q.send.rawImm = peer.RawImm
	q.recv.order = dqplb.NewReceiver(first, peer.RawImm)
	return nil
}

// fillAttr fills in the attributes that differ from rail to rail; mask selects those that are used.
func (h *handshake) fillAttr(r *rail, a *verbs.QPAttr, mask verbs.QPAttrMask, peer *BusinessCard) error {
	described := len(peer.Rails) != 0
	if a.Port == 0 {
		a.Port = h.cfg.Conn.port(r.qp.Device())
	}
	a.DestQPNum = peer.numbers()[r.index()]
	r.peerNum = a.DestQPNum
	if described {
		a.RQPSN, a.SQPSN = peer.Rails[r.index()].PSN, r.psn
	}
	if mask&verbs.QPAttrAV == 0 {
		return nil
	}
	port, err := h.ports.of(r.qp.Device())
	if err != nil {
		return h.portError(r, err)
	}
	a.AH.SGIDIndex = uint8(port.gid.Index)
	if h.cfg.Conn.SpreadPaths && a.AH.FlowLabel == 0 {
		a.AH.FlowLabel = h.send.rails.flowLabelOf(r)
	}
	if a.AH.Port == 0 {
		a.AH.Port = h.cfg.Conn.port(r.qp.Device())
	}
	switch gids := h.cfg.Conn.PeerGIDs; {
	case r.index() < len(gids):
		a.AH.DGID = gids[r.index()]
	case described:
		a.AH.DGID, a.AH.DLID = peer.Rails[r.index()].GID, peer.Rails[r.index()].LID
	default:
		return h.connectError(verbs.ErrInvalid, "the peer's card has no GIDs: give Config.Conn.PeerGIDs")
	}
	r.gidPort = 0
	if _, same := a.AH.DGID.UDPAddr(); !same && !peer.isOurs() {
		own, _ := port.gid.GID.UDPAddr()
		r.gidPort = own.Port()
	}
	if a.AH.DGID.IsZero() && port.attr.LinkLayer == verbs.LinkLayerEthernet {
		return h.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer's GID for rail %d is empty", r.index()))
	}
	return nil
}

// checkPeer returns why a card does not fit this end.
func (q *VirtualQP) checkPeer(peer *BusinessCard) error {
	if err := peer.validate(); err != nil {
		return err
	}
	switch {
	case len(peer.QPNums) != len(q.send.rails.data):
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer has %d queue pairs, this end %d: "+
			"configure both alike", len(peer.QPNums), len(q.send.rails.data)))
	case peer.Scheme != "" && q.pass == nil && peer.Scheme != q.cfg.Scheme.String():
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("the peer uses %.20q, this end %v: configure "+
			"both alike", peer.Scheme, q.cfg.Scheme))
	case (peer.NotifyQPNum != 0) != (q.send.rails.notify != nil):
		return q.connectError(verbs.ErrInvalid, "one end has a notify QP and the other has not: configure "+
			"both alike")
	case peer.ImmLittleEndian != q.cfg.Conn.ImmLittleEndian && peer.isOurs():
		return q.connectError(verbs.ErrInvalid, "one end has Conn.ImmLittleEndian and the other has not: "+
			"configure both alike")
	case q.failsOver(peer) && len(peer.SpareQPNums) != len(q.send.rails.spares):
		return q.connectError(verbs.ErrInvalid, fmt.Sprintf("both ends offer failover, the peer with %d "+
			"spare queue pairs, this end with %d: give both as many NICs, or leave Config.Failover off",
			len(peer.SpareQPNums), len(q.send.rails.spares)))
	case q.offered != nil && !q.failsOver(peer) && q.cfg.Scheme == Spray && q.line.state < verbs.StateRTR &&
		q.send.rails.sendRail != q.send.rails.data[0] && q.recv.live(q.recv.win.Head, true):
		return q.connectError(verbs.ErrInvalid, "the peer does not offer failover, so SENDs travel on queue "+
			"pair 0: post receives with memory after Connect")
	case peer.isPlain() && q.pass == nil && q.cfg.Scheme == DQPLB && q.line.state < verbs.StateRTR:
		return q.checkPlainPeer()
	}
	return nil
}

// checkPlainPeer returns why this end, in DQPLB, cannot follow the rules of a plain peer.
func (q *VirtualQP) checkPlainPeer() error {
	const rule = "the peer's card names no scheme and no credits, so it has SENDs on queue pair 0"
	switch {
	case q.send.rails.data[0].recvLimit < 2:
		return q.connectError(verbs.ErrInvalid, rule+", which needs Credits of 2 at least")
	case q.recv.live(q.recv.win.Head, true):
		return q.connectError(verbs.ErrInvalid, rule+": post receives with memory after Connect")
	}
	return nil
}

// checkAddresses returns which address of either end is missing, or why the peer's cannot be right.
func (h *handshake) checkAddresses(peer *BusinessCard) error {
	own := map[qpAddress]bool{}
	var to []qpAddress
	rails := h.connecting(peer)
	for _, r := range rails {
		var a verbs.QPAttr
		if err := h.fillAttr(r, &a, verbs.QPAttrAV, peer); err != nil {
			return err
		}
		to = append(to, qpAddress{a.AH.DGID, a.AH.DLID, a.DestQPNum})
		port := h.ports.known[r.qp.Device().ID()] // fillAttr has queried it
		own[qpAddress{port.gid.GID, port.attr.LID, r.num}] = true
	}
	for i, r := range rails {
		if own[to[i]] {
			return h.connectError(ErrOwnCard, fmt.Sprintf("queue pair %d of the card is this end's: give "+
				"the "+
				"card of the other end", to[i].num))
		}
		if dev, ok := r.qp.Device().(verbs.PathChecker); ok {
			if err := dev.CheckPath(int(h.cfg.Conn.port(r.qp.Device())), to[i].gid); err != nil {
				return h.railError(r, err)
			}
		}
	}
	return nil
}

func (h *handshake) card() (BusinessCard, error) {
	card := BusinessCard{RDAtomic: h.maxRDAtomic(), ImmLittleEndian: h.cfg.Conn.ImmLittleEndian,
		Failover: h.offered != nil}
	if h.pass == nil { // a single queue pair uses plain verbs
		card.Scheme, card.RawImm = h.cfg.Scheme.String(), h.cfg.Scheme == DQPLB
	}
	var failed error
	for _, r := range h.send.rails.all {
		port, err := h.ports.of(r.qp.Device())
		if err != nil && failed == nil {
			failed = h.portError(r, err)
		}
		if card.MTU == 0 || port.attr.ActiveMTU < card.MTU {
			card.MTU = port.attr.ActiveMTU
		}
		card.Rails = append(card.Rails, RailCard{Device: verbs.DeviceID(r.device), GID: port.gid.GID,
			LID: port.attr.LID, PSN: r.psn})
		switch i := r.index(); {
		case r == h.send.rails.notify:
			card.NotifyQPNum = r.qp.Num()
		case i < len(h.send.rails.data):
			card.QPNums = append(card.QPNums, r.qp.Num())
		default:
			card.SpareQPNums = append(card.SpareQPNums, r.qp.Num())
		}
	}
	if h.cfg.Conn.MTU != 0 {
		card.MTU = min(card.MTU, h.cfg.Conn.MTU)
	}
	if card.RawImm {
		card.Credits, card.FirstNumber = h.Config().Credits, h.cfg.Testing.FirstNumber
	}
	return card, failed
}

// maxRDAtomic returns how many reads and atomics a queue pair may have outstanding on every device.
func (h *handshake) maxRDAtomic() uint8 {
	n := h.cfg.Conn.MaxRDAtomic
	for _, r := range h.send.rails.all {
		if attr, err := r.qp.Device().Query(); err == nil && attr.MaxRDAtomic > 0 &&
			attr.MaxRDAtomic < int(n) {
			n = uint8(attr.MaxRDAtomic)
		}
	}
	return n
}

// portError returns why a rail's local port or GID cannot be used.
func (h *handshake) portError(r *rail, err error) error {
	if noGID := gidError(""); errors.As(err, &noGID) {
		return h.connectError(verbs.ErrInvalid, err.Error())
	}
	return h.railError(r, err)
}

// qpAddress is the destination of packets for a queue pair.
type qpAddress struct {
	gid verbs.GID
	lid uint16
	num uint32
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
