package ibverbx

import (
	"fmt"
	"math"
	"slices"
	"time"

	"ibverbx/internal/ability"
	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/verbs"
)

// railSet is the physical queue pairs of a virtual one: the role of each, their requirements on
// requests, and their free send slots.
//
// Invariant: free is the sum of limit-inUse over the data rails; 0 <= nextRail < len(data); all is
// data, then notify, if there is one, then spares.
type railSet struct {
	data      []*rail // carry data; requests are striped over them
	nextRail  int     // the data rail that round robin tries next
	free      int     // send slots free on all data rails
	lastFreed *rail   // data rail that freed a slot while requests waited: served first

	// abilities has the speeds of the data rails; if nil, they take turns.
	abilities  *ability.Rails
	protocol   *failover.Protocol // if failover is offered; otherwise nil
	atomicRail *rail              // carries atomics: the first data rail, until that is lost

	localDevs, peerDevs uint64 // devices whose keys a request must have, as bits
	maxFragment         uint32 // bytes of a fragment

	notify *rail // carries notifications or SENDs and no data; nil if there is none
	// sendRail carries SENDs and the receives that take them; if nil, SENDs are refused. See
	// assignSends.
	sendRail *rail
	// finalRail carries Spray's notifications and the receives that take them; nil in DQPLB.
	finalRail *rail
	// noNotify means that notifications are refused because no rail carries them: Spray without a
	// notify QP.
	noNotify bool
	all      []*rail // the data rails, then the notify QP, then the spares
	// services are the rails that carry no data, by role; the first live one serves. Without
	// failover the only one is the notify QP.
	services  [failover.Roles][]*rail
	spares    []*rail
	sendDevs  uint64 // devices whose keys the memory of a SEND must have, as bits
	maxInline int    // bytes of an inline request: the least of all rails
}

// newRailSet makes the rails of a virtual queue pair, all of them unused.
func newRailSet(cfg *Config, qps []verbs.QP, notify verbs.QP, spares []verbs.QP) railSet {
	s := railSet{maxFragment: cfg.FragmentSize, maxInline: math.MaxInt}
	for i, qp := range qps {
		s.data = append(s.data, newRail(cfg, qp, i))
	}
	s.all = s.data
	if notify != nil {
		s.notify = newRail(cfg, notify, len(qps))
		s.all = append(slices.Clip(s.data), s.notify)
	}
	for _, qp := range spares {
		r := newRail(cfg, qp, len(s.all))
		s.spares, s.all = append(s.spares, r), append(slices.Clip(s.all), r)
	}
	for _, r := range s.all {
		s.localDevs |= 1 << r.device
		s.maxInline = min(s.maxInline, r.qp.Cap().MaxInline)
	}
	s.peerDevs = s.localDevs
	return s
}

// assignRoles decides what each of several rails carries, and makes their inboxes.
func (s *railSet) assignRoles(scheme Scheme, credits int, recovers bool) {
	s.assignServices(scheme)
	s.assignSends(scheme, false, recovers)
	s.noNotify = scheme == Spray && s.notify == nil
	watches := 1 // see receiver.begin
	if recovers {
		watches = controlRecvs
	}
	for i, r := range s.data {
		switch {
		case scheme == DQPLB:
			r.recvLimit = max(1, min(credits, r.qp.Cap().MaxRecvWR))
			r.inbox = dqplb.NewInbox(r.recvLimit)
		case i > 0:
			r.recvLimit = max(1, min(watches, r.qp.Cap().MaxRecvWR))
			r.inbox = dqplb.NewInbox(r.recvLimit)
		default:
			r.inbox = dqplb.NewInbox(min(watches, r.recvLimit))
		}
	}
	if recovers {
		var roles []failover.Role
		for _, r := range s.all {
			roles = append(roles, r.role)
		}
		s.protocol = failover.New(roles)
		for i, r := range s.all {
			r.recover(s.protocol.Rail(i))
		}
	}
	s.recount()
}

// measure starts to measure the data rails, to share fragments by ability.
func (s *railSet) measure(clock func() time.Time) {
	s.abilities = ability.NewRails(len(s.data), uint64(s.maxFragment), clock)
	for i, r := range s.data {
		r.ability = s.abilities.Rail(i)
	}
}

// assignServices assigns the roles of rails that carry no data. There are spares if failover is
// offered: in DQPLB for SENDs, in Spray first for these and then for notifications.
func (s *railSet) assignServices(scheme Scheme) {
	spares, first := s.spares, failover.Sends
	if s.notify != nil {
		if scheme == Spray {
			first = failover.Notifications
			spares = s.spares[:(len(s.spares)+1)/2]
		}
		s.services[first] = []*rail{s.notify}
	}
	s.services[failover.Sends] = append(s.services[failover.Sends], spares...)
	s.services[failover.Notifications] = append(s.services[failover.Notifications], s.spares[len(spares):]...)
	for role, rails := range s.services {
		for _, r := range rails {
			r.role = failover.Role(role)
		}
	}
}

// onDevice returns a rail of a device that has one.
func (s *railSet) onDevice(device uint8) *rail {
	for _, rl := range s.all {
		if rl.device == device {
			return rl
		}
	}
	return nil
}

// group returns the rails of a role.
func (s *railSet) group(role failover.Role) []*rail {
	if role == failover.Data {
		return s.data
	}
	return s.services[role]
}

// assignSends decides which rails carry SENDs and Spray's notifications. The notify QP carries the
// notifications. SENDs use data rail 0 in Spray, or with failover a rail of their own. In DQPLB
// they use the notify QP, because the receive queues of the data rails hold only credits, which a
// SEND would consume. With a plain peer, whose card has no more than one of the C++ original, SENDs
// use data rail 0 in either scheme.
func (s *railSet) assignSends(scheme Scheme, plainPeer, recovers bool) {
	s.sendRail, s.finalRail, s.atomicRail = s.data[0], nil, s.data[0]
	if scheme == Spray {
		s.finalRail = s.notify
	}
	switch sends := s.services[failover.Sends]; {
	case recovers && len(sends) != 0:
		s.sendRail = sends[0]
	case scheme == DQPLB && !plainPeer:
		s.sendRail = s.notify
	}
	s.sendDevs = 0
	if s.sendRail == nil {
		return
	}
	s.sendDevs = 1 << s.sendRail.device
	if recovers {
		for _, r := range s.services[failover.Sends] {
			s.sendDevs |= 1 << r.device
		}
	}
}

// sharesRecvs reports whether SENDs and DQPLB's notifications share the receive queue of a rail, as
// they do with a plain peer.
func (s *railSet) sharesRecvs(scheme Scheme, rl *rail) bool {
	return scheme == DQPLB && rl == s.data[0] && rl == s.sendRail
}

// recount counts the free slots again, after limits have changed or all slots were given back.
func (s *railSet) recount() {
	s.free = 0
	for _, r := range s.data {
		s.free += r.limit - r.inUse
	}
}

// limitTo lowers the limit of every data rail to the peer's credits: more messages on the way than
// the peer has receives for would only make the NICs retry. Nothing is outstanding yet.
func (s *railSet) limitTo(credits int) {
	for _, r := range s.data {
		r.limit = min(r.slots, credits)
	}
	s.recount()
}

// take counts a slot of a rail as in use. The rail has room.
func (s *railSet) take(rl *rail) {
	rl.inUse++
	if rl.role != failover.Data {
		return
	}
	s.free--
	if s.abilities != nil {
		rl.ability.Add(0)
	}
}

// takeData is take for a data rail. The caller adds to the rail's ability.
func (s *railSet) takeData(rl *rail) {
	rl.inUse++
	s.free--
}

// give counts a slot as free. waiting says whether requests have data that waits for one.
func (s *railSet) give(rl *rail, waiting bool) {
	if rl.role != failover.Data {
		rl.inUse--
		return
	}
	s.giveData(rl, waiting, false)
}

// giveData is give for a data rail. ok says whether a fragment was carried, which shows the speed.
func (s *railSet) giveData(rl *rail, waiting, ok bool) {
	rl.inUse--
	s.free++
	if waiting {
		s.lastFreed = rl
	}
	if s.abilities != nil {
		rl.ability.End(ok)
	}
}

// firstLive returns the first live rail of a role.
func (s *railSet) firstLive(role failover.Role) *rail {
	for _, rl := range s.group(role) {
		if !rl.down {
			return rl
		}
	}
	return nil
}

// nextForAtomics returns the live rail that takes over the atomics, if possible to the same NIC of
// the peer, because that NIC may have atomics of others on the same memory.
func (s *railSet) nextForAtomics() *rail {
	for _, rl := range s.data {
		if !rl.down && rl.peerDev == s.data[0].peerDev {
			return rl
		}
	}
	return s.firstLive(failover.Data)
}

// serving returns the field of the rail in service, for a role without data; the field is nil for
// none.
func (s *railSet) serving(role failover.Role) **rail {
	if role == failover.Sends {
		return &s.sendRail
	}
	return &s.finalRail
}

// downRails counts the rails that are out of service.
func (s *railSet) downRails() (n int) {
	for _, rl := range s.all {
		if rl.down {
			n++
		}
	}
	return n
}

// takeOut ends the service of a rail: it has no room any more, and failover's protocol handles its
// work.
func (s *railSet) takeOut(rl *rail) {
	if rl.role == failover.Data {
		s.free -= rl.limit - rl.inUse
	}
	rl.down, rl.dirty, rl.recvsRefused = true, false, true
	rl.limit, rl.inUse = 0, 0
	if rl.ability != nil {
		rl.ability.TakeOut()
	}
	if s.lastFreed == rl {
		s.lastFreed = nil
	}
}

// fitFailover returns why rails cannot replace each other, and makes them carry equally long
// messages.
func (s *railSet) fitFailover(scheme Scheme) error {
	if len(s.data) == 1 {
		return nil
	}
	if scheme == Spray && len(s.spares) == 0 {
		return fmt.Errorf("ibverbx: new virtual qp: %w: Failover in spray has SENDs on a queue pair of "+
			"their own: take Domain.NewQP, or dqplb", verbs.ErrInvalid)
	}
	least := s.all[0]
	for _, rl := range s.all {
		if rl.maxSGE != least.maxSGE {
			return fmt.Errorf("ibverbx: new virtual qp: %w: Failover, and a queue pair of %s takes %d "+
				"pieces of memory, one of %s %d: make them alike", verbs.ErrInvalid,
				rl.qp.Device().Name(), rl.maxSGE, least.qp.Device().Name(), least.maxSGE)
		}
		if rl.maxMessage < least.maxMessage {
			least = rl
		}
	}
	for _, rl := range s.all {
		rl.maxMessage = least.maxMessage
	}
	return nil
}

// pick chooses the data rail for the next fragment: first the one that just freed a slot while
// requests waited, then round robin; nil when all are full.
func (s *railSet) pick() *rail {
	if s.free == 0 {
		return nil
	}
	if rl := s.lastFreed; rl != nil {
		s.lastFreed = nil
		if rl.hasRoom() {
			return rl
		}
	}
	for {
		rl := s.data[s.nextRail]
		if s.nextRail++; s.nextRail == len(s.data) {
			s.nextRail = 0
		}
		if rl.hasRoom() {
			return rl
		}
	}
}

// pickAble chooses the data rail for the next fragment, of size bytes: the one that will finish it
// first. It is nil if that rail is full, because waiting takes less time than another rail. Similar
// rails take turns, and so do all for small fragments before any speed is known.
func (s *railSet) pickAble(size uint64) *rail {
	if s.abilities.Alike(size) {
		return s.pick()
	}
	s.lastFreed = nil
	best := s.abilities.Soonest(size)
	if best < 0 || !s.data[best].hasRoom() {
		return nil
	}
	s.abilities.Passed(best)
	return s.data[best]
}

// width returns the least number of pieces of memory that a data rail takes per fragment, and
// whether all take the same number.
func (s *railSet) width() (least int, same bool) {
	least, same = s.data[0].maxSGE, true
	for _, rl := range s.data {
		same = same && rl.maxSGE == least
		least = min(least, rl.maxSGE)
	}
	return least, same
}

// toError moves every queue pair to ERR, so that the NICs flush what they still hold.
func (s *railSet) toError() {
	for _, rl := range s.all {
		rl.toError()
	}
}

// stopAgain moves to ERR the queue pairs that have refused that, and reports whether all are there
// now.
func (s *railSet) stopAgain() (stopped bool) {
	stopped = true
	for _, rl := range s.all {
		if rl.stopErr != nil {
			rl.toError()
			stopped = stopped && rl.stopErr == nil
		}
	}
	return stopped
}

// abandon takes back everything that is staged or on the NICs, once no NIC holds any of it. Credits
// continue their numbering, so that later completions are recognised as stale: a NIC that is gone
// may flush late.
func (s *railSet) abandon() {
	for _, rl := range s.all {
		rl.inUse, rl.recvs, rl.recvsToPost = 0, 0, 0
		rl.inbox.Restart(rl.creditsPosted)
		if rl.batch != nil {
			rl.batch.clear()
		}
		if rl.back != nil {
			*rl.back = comeback{state: rl.back.state}
			rl.log.Clear()
		}
	}
	if s.abilities != nil {
		s.abilities.Abandon()
	}
	if s.protocol != nil {
		s.protocol.Abandon()
	}
	s.recount()
}

// restart restores the first state of rails whose queue pairs were reset and hold nothing.
func (s *railSet) restart() {
	for _, r := range s.all {
		r.railConn = r.newConn()
		if r.back != nil {
			*r.back = comeback{state: r.back.state}
			r.log.Clear()
		}
	}
	if s.protocol != nil {
		s.protocol.Restart()
	}
	if s.abilities != nil {
		s.abilities.Restart()
	}
	s.peerDevs, s.nextRail, s.lastFreed = s.localDevs, 0, nil
	s.recount()
}

// check panics if the invariant does not hold.
func (s *railSet) check() {
	free := 0
	for _, r := range s.data {
		free += r.limit - r.inUse
	}
	if free != s.free {
		broken("railSet: %d slots are free, counted %d", free, s.free)
	}
	if s.nextRail < 0 || s.nextRail >= len(s.data) {
		broken("railSet: next rail %d of %d", s.nextRail, len(s.data))
	}
	for _, r := range s.all {
		if r.ability != nil {
			if err := r.ability.Check(r.inUse); err != nil {
				broken("rail %d: %v", r.index(), err)
			}
		}
		if r.staged() < 0 || r.staged() > r.inUse || r.inUse > r.slots {
			broken("rail %d: %d staged, %d in use of %d", r.index(), r.staged(), r.inUse, r.slots)
		}
		if r.recvs < 0 || r.recvsToPost < 0 {
			broken("rail %d: %d receives, %d to repost", r.index(), r.recvs, r.recvsToPost)
		}
	}
}

// flowLabel returns the flow label of a virtual queue pair's i-th queue pair on a device, with
// ConnConfig.SpreadPaths; first is the number of the first one. It is never 0, which would leave
// the path to the kernel.
//
// On RoCE v2 the UDP source port is 0xc000 plus the low 14 bits of the label, with the high 6
// folded in by exclusive or (rdma_flow_label_to_udp_sport of rdma-core). Switches hash the port;
// some use only a few bits of it. An odd step near the golden section of 2^14 makes ports that
// differ in their low bits and spread over the range.
func flowLabel(first uint32, i int) uint32 {
	const step = 10125
	port := (first*2654435761>>18 + uint32(i)*step) & 0x3fff // Knuth's multiplicative hash, 14 bits
	if port == 0 {
		return 1<<14 | 1 // folds to 0
	}
	return port
}

// flowLabelOf returns a rail's flow label, by its place among the rails of its device.
func (s *railSet) flowLabelOf(r *rail) uint32 {
	i, first := 0, r.num
	for _, other := range s.all[:r.index()] {
		if other.device == r.device {
			if i == 0 {
				first = other.num
			}
			i++
		}
	}
	return flowLabel(first, i)
}
