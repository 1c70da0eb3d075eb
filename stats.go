package ibverbx

import "ibverbx/verbs"

// Stats is a snapshot of a virtual queue pair. Its counters start at zero when the virtual queue
// pair is made.
type Stats struct {
	Scheme Scheme        `json:"scheme"` // as configured; a single queue pair ignores it
	State  verbs.QPState `json:"state"`  // as in [VirtualQP.State]: SQD while Drain waits for sends
	Rails  []RailStats   `json:"rails"`  // the data rails, then the notify QP, then the spares

	Sends          uint64 `json:"sends"`           // send requests accepted
	SendsCompleted uint64 `json:"sends_completed"` // for a single queue pair: only the successful ones
	SendsWaiting   int    `json:"sends_waiting"`   // accepted, not yet completely posted to the rails
	SendWindow     int    `json:"send_window"`     // accepted, but not yet reported
	SendRing       int    `json:"send_ring"`       // slots of the ring that holds them
	Recvs          uint64 `json:"recvs"`
	RecvsCompleted uint64 `json:"recvs_completed"`
	RecvWindow     int    `json:"recv_window"`
	RecvRing       int    `json:"recv_ring"`
	RingsGrown     uint64 `json:"rings_grown"` // how often one of the two rings was enlarged

	// These are for DQPLB.
	Markers     uint64 `json:"markers"`      // zero-byte messages that prove the arrival of plain data
	NumbersSent uint64 `json:"numbers_sent"` // numbered messages sent since the last reset
	NumbersOpen int    `json:"numbers_open"` // of these, in flight: from the oldest unacknowledged on
	OutOfOrder  int    `json:"out_of_order"` // messages that have arrived ahead of an earlier one
	Banked      int    `json:"banked"`       // notifications that wait for a receive now
	BankedTotal uint64 `json:"banked_total"` // notifications that have waited for a receive
	StaleEvents uint64 `json:"stale_events"` // completions that matched no request, and were dropped

	// These are for failover. Failover reports whether it is in force: both this end and its peer
	// have offered it.
	Failover  bool   `json:"failover,omitempty"`
	RailsLost uint64 `json:"rails_lost"` // queue pairs taken out of service
	RailsBack uint64 `json:"rails_back"` // queue pairs put back into service
	Reposted  uint64 `json:"reposted"`   // work requests of lost queue pairs posted again on another one

	Timing *Timing `json:"timing,omitempty"` // with [Config.Timing]; otherwise nil
}

// RailStats is the part of [Stats] about one rail.
type RailStats struct {
	Device        string `json:"device"`
	QPNum         uint32 `json:"qp_num"`
	Notify        bool   `json:"notify,omitempty"` // the notify QP
	Spare         bool   `json:"spare,omitempty"`  // a spare of the notify QP, or it carries SENDs in Spray
	Down          bool   `json:"down,omitempty"`   // out of service: other rails have its work
	Bytes         uint64 `json:"bytes"`            // given to the rail to send or read
	Fragments     uint64 `json:"fragments"`
	Notifications uint64 `json:"notifications"` // notifications and SENDs
	// Outstanding counts the work requests that are in the rail's send queue or staged for it, and
	// Recvs the receives and credits posted. Both are 0 for a single queue pair, which tracks
	// nothing.
	Outstanding int `json:"outstanding"`
	Limit       int `json:"limit"` // the most that may be outstanding
	Recvs       int `json:"recvs"`
	RecvLimit   int `json:"recv_limit"`
	// Rate is the rail's measured speed in bytes a second, with [ByAbility]; 0 means unknown. It is
	// less reliable if the program polls seldom.
	Rate    uint64 `json:"rate,omitempty"`
	Errors  uint64 `json:"errors"`  // failed completions, and posts refused permanently
	Refused uint64 `json:"refused"` // posts refused, permanently or for now
}

// CQStats is a snapshot of a virtual CQ.
type CQStats struct {
	Num        uint32 `json:"num"` // as in [VirtualCQ.Num]
	VirtualQPs int    `json:"virtual_qps"`
	Ready      int    `json:"ready"`      // completions waiting to be polled
	ReadyRing  int    `json:"ready_ring"` // slots of the ring that holds them
	// Retrying counts the virtual queue pairs that must be polled although no event may come: they
	// retry a post that a NIC has refused for now, or have failed and linger, see [Config.Linger].
	Retrying    int    `json:"retrying"`
	StaleEvents uint64 `json:"stale_events"` // completions of queue pairs that had just been closed
}
