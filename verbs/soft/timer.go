package soft

import "ibverbx/verbs/internal/nic"

// timerKind says what happens when a timer runs out.
type timerKind uint8

const (
	timerRetry  timerKind = iota // a receiver was not ready, or the peer did not answer
	timerAck                     // the oldest acknowledgement is back
	timerArrive                  // the oldest message that is still on its way to a receive is there
	timerLate                    // a late message arrives, or late data is placed
	timerKinds
)

// timer is something that happens to a queue pair at a time. Each has one of every kind.
type timer = nic.Timer[timed]

// timed is what a timer is for.
type timed struct {
	qp   *QP
	kind timerKind
}

// precise reports whether being late, by the scheduler's delays, would spoil a simulated speed.
func (t timed) precise() bool { return t.kind != timerRetry }
