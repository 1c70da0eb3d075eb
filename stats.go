package ibverbx

import (
	"fmt"

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

// RailEvent says that a queue pair was taken out of service, or has come back.
type RailEvent struct {
	VirtualQP uint32 // [VirtualQP.Num]
	Rail      int    // as in [Stats].Rails
	Device    string
	QPNum     uint32
	Down      bool
	Cause     error // why it was taken out
}

// String is a line for a log.
func (e RailEvent) String() string {
	s := fmt.Sprintf("virtual qp %d: rail %d (%s qp %d) ", e.VirtualQP, e.Rail, e.Device, e.QPNum)
	if !e.Down {
		return s + "is back in service"
	}
	return s + fmt.Sprintf("is out of service: %v", e.Cause)
}
