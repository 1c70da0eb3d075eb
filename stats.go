package ibverbx

import (
	"slices"

	"ibverbx/verbs"
)

// Stats is a snapshot of a virtual queue pair. Counters count since it was made.
type Stats struct {
	Scheme Scheme        `json:"scheme"` // as configured; with a single queue pair it has no effect
	State  verbs.QPState `json:"state"`  // as [VirtualQP.State] says: SQD while Drain awaits sends
	Rails  []RailStats   `json:"rails"`  // the data rails, then the notify QP, then the spares

	Sends          uint64 `json:"sends"`           // send requests accepted
	SendsCompleted uint64 `json:"sends_completed"` // of a single queue pair: with success only
	SendsWaiting   int    `json:"sends_waiting"`   // accepted, not yet wholly handed to the rails
	SendWindow     int    `json:"send_window"`     // accepted, not yet reported
	SendRing       int    `json:"send_ring"`       // slots of the ring that holds them
	Recvs          uint64 `json:"recvs"`
	RecvsCompleted uint64 `json:"recvs_completed"`
	RecvWindow     int    `json:"recv_window"`
	RecvRing       int    `json:"recv_ring"`
	RingsGrown     uint64 `json:"rings_grown"` // how often one of the two was enlarged

	// Of DQPLB.
	Markers     uint64 `json:"markers"`      // zero-byte messages sent to prove that plain data had arrived
	NumbersSent uint64 `json:"numbers_sent"` // numbered messages sent since the last reset
	NumbersOpen int    `json:"numbers_open"` // of those, not all acknowledged from the oldest on
	OutOfOrder  int    `json:"out_of_order"` // messages received that wait for an earlier one
	Banked      int    `json:"banked"`       // notifications that wait for a receive
	BankedTotal uint64 `json:"banked_total"` // notifications that have ever waited
	StaleEvents uint64 `json:"stale_events"` // completions that belonged to nothing, and were dropped

	// Of failover. Failover says that it is in force: this end and its peer have offered it.
	Failover  bool   `json:"failover,omitempty"`
	RailsLost uint64 `json:"rails_lost"` // queue pairs taken out of service
	RailsBack uint64 `json:"rails_back"` // queue pairs put back into service
	Reposted  uint64 `json:"reposted"`   // work requests posted again on another one
}

// RailStats is one rail's share.
type RailStats struct {
	Device        string `json:"device"`
	QPNum         uint32 `json:"qp_num"`
	Notify        bool   `json:"notify,omitempty"` // the notify QP
	Spare         bool   `json:"spare,omitempty"`  // stands in for the notify QP, or carries SENDs in Spray
	Down          bool   `json:"down,omitempty"`   // taken out of service: others have its work
	Bytes         uint64 `json:"bytes"`            // handed to it to send, or to read
	Fragments     uint64 `json:"fragments"`
	Notifications uint64 `json:"notifications"` // and SENDs
	// Outstanding counts the work requests in its send queue or about to be there, Recvs the
	// receives and credits posted. Both are 0 on a single queue pair, which tracks nothing.
	Outstanding int `json:"outstanding"`
	Limit       int `json:"limit"` // how many there may be
	Recvs       int `json:"recvs"`
	RecvLimit   int `json:"recv_limit"`
	// Rate is how many bytes a second it was seen to carry, with [ByAbility]; 0 is not known. It
	// says less where the program polls seldom.
	Rate    uint64 `json:"rate,omitempty"`
	Errors  uint64 `json:"errors"`  // failed completions, and posts refused permanently
	Refused uint64 `json:"refused"` // posts refused, permanently or for now
}

// Stats takes a snapshot. It follows the ownership rule of [VirtualQP].
func (q *VirtualQP) Stats() Stats {
	q.enter()
	defer q.exit()
	s := Stats{Scheme: q.cfg.Scheme, State: q.State(), StaleEvents: q.stale, Failover: q.failover != nil}
	if x := q.offered; x != nil {
		s.RailsLost, s.RailsBack, s.Reposted = x.railsLost, x.railsBack, x.reposted
	}
	if p := q.pass; p != nil {
		s.Sends, s.SendsCompleted, s.Recvs, s.RecvsCompleted = p.sends, p.sendsDone, p.recvs, p.recvsDone
	} else {
		q.send.stats(&s)
		q.recv.stats(&s)
	}
	for _, r := range q.send.rails.all {
		bytes, fragments := r.stats.bytes, r.stats.fragments
		if q.pass != nil {
			bytes, fragments = q.pass.bytes, q.pass.sends
		}
		s.Rails = append(s.Rails, RailStats{
			Device: r.qp.Device().Name(), QPNum: r.qp.Num(), Notify: r == q.send.rails.notify,
			Spare: slices.Contains(q.send.rails.spares, r), Down: r.down,
			Bytes: bytes, Fragments: fragments, Notifications: r.stats.messages,
			Outstanding: r.inUse, Limit: r.limit, Recvs: r.recvs, RecvLimit: r.recvLimit,
			Errors: r.stats.errors, Refused: r.stats.refused,
		})
		if r.ability != nil && r.ability.cost != 0 {
			s.Rails[len(s.Rails)-1].Rate = uint64(1e9 / r.ability.cost)
		}
	}
	return s
}

// stats fills in the figures of the send direction. Requests are numbered from 1, so the cursors
// count them.
func (s *sender) stats(to *Stats) {
	to.Sends, to.SendsCompleted = s.win.Tail-1, s.win.Head-1
	to.SendsWaiting = int(s.win.Tail - s.next)
	to.SendWindow, to.SendRing = s.win.Len(), s.win.Cap()
	to.RingsGrown += s.win.Grown()
	to.Markers, to.NumbersSent, to.NumbersOpen = s.markers, s.numbers.Sent(), s.numbers.Open()
}

// stats fills in the figures of the receive direction.
func (s *receiver) stats(to *Stats) {
	to.Recvs, to.RecvsCompleted = s.win.Tail-1, s.win.Head-1
	to.RecvWindow, to.RecvRing = s.win.Len(), s.win.Cap()
	to.RingsGrown += s.win.Grown()
	to.OutOfOrder, to.Banked, to.BankedTotal = s.order.Held(), s.bank.Len(), s.bankedEver
}

// CQStats is a snapshot of a virtual CQ.
type CQStats struct {
	Num        uint32 `json:"num"` // as [VirtualCQ.Num] says
	VirtualQPs int    `json:"virtual_qps"`
	Ready      int    `json:"ready"`      // completions that wait to be polled
	ReadyRing  int    `json:"ready_ring"` // slots of the ring that holds them
	// Retrying is how many virtual queue pairs must be polled though no event may come: they try
	// again what a NIC has refused for now, or have failed and linger, see [Config.Linger].
	Retrying    int    `json:"retrying"`
	StaleEvents uint64 `json:"stale_events"` // completions of queue pairs that were closed a moment before
}

// Stats takes a snapshot. It follows the ownership rule of [VirtualCQ].
func (c *VirtualCQ) Stats() CQStats {
	c.enter()
	defer c.exit()
	return CQStats{Num: c.num, VirtualQPs: len(c.vqps), Ready: c.ready.Len(), ReadyRing: c.ready.Cap(),
		Retrying: len(c.touched), StaleEvents: c.stale}
}
