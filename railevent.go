package ibverbx

import "fmt"

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

// announce tells the user of a rail that is lost, or back.
func (q *VirtualQP) announce(rl *rail, cause error) {
	if q.cfg.OnRail != nil {
		q.cfg.OnRail(RailEvent{VirtualQP: q.num, Rail: rl.index(), Device: rl.qp.Device().Name(),
			QPNum: rl.num, Down: cause != nil, Cause: cause})
	}
}
