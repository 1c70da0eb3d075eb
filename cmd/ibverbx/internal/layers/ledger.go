package layers

import (
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

var (
	// ErrVerify says that completions came out of order or in the wrong number, or that what
	// arrived is not what was sent.
	ErrVerify = errors.New("verification failed")
	// ErrRequests says that requests completed unsuccessfully. The virtual queue pair says why.
	ErrRequests = errors.New("requests failed")
)

// Outcomes counts what became of the requests of one direction of a queue pair, from its connection
// to its reset. Each that was accepted must have exactly one completion.
type Outcomes struct {
	Accepted  uint64 `json:"accepted"`
	Succeeded uint64 `json:"succeeded"`
	Failed    uint64 `json:"failed"`
	Flushed   uint64 `json:"flushed"`
}

// Completed is how many requests were reported, with whatever status.
func (o *Outcomes) Completed() uint64 { return o.Succeeded + o.Failed + o.Flushed }

// Ledger counts what a queue pair accepted and what it reported, to check that each request yields
// exactly one completion.
type Ledger struct {
	Sends, Recvs Outcomes
	Statuses     map[string]int // of failed completions, how many had a status
	broken       error          // the first impossible completion
}

// recvBit distinguishes the IDs of receives from those of sends.
const recvBit = 1 << 63

// MessageOf is the message that a request with an ID is of, and whether it is a receive.
func MessageOf(id uint64) (message int, recv bool) { return int(id &^ recvBit), id&recvBit != 0 }

// Count records a completion.
func (l *Ledger) Count(wc *ibverbx.WC) {
	o, what := &l.Sends, "send"
	if wc.ID&recvBit != 0 {
		o, what = &l.Recvs, "receive"
	}
	// One that the NIC refused permanently has its own error behind those that it flushed.
	stopped := o.Failed > 0 && wc.Status != verbs.StatusWRFlushErr ||
		o.Flushed > 0 && wc.Status == verbs.StatusSuccess
	if stopped && l.broken == nil {
		l.broken = fmt.Errorf("%w: a %s completed with %s behind one that had failed: the first error must "+
			"stop the line", ErrVerify, what, wc.Status.Name())
	}
	switch wc.Status {
	case verbs.StatusSuccess:
		o.Succeeded++
		return
	case verbs.StatusWRFlushErr:
		o.Flushed++
	default:
		o.Failed++
	}
	if l.Statuses == nil {
		l.Statuses = map[string]int{}
	}
	l.Statuses[wc.Status.Name()]++
}

// Check says whether every request has had its one completion, nothing being outstanding.
func (l *Ledger) Check(end string) error {
	if l.Sends.Accepted != l.Sends.Completed() || l.Recvs.Accepted != l.Recvs.Completed() {
		return fmt.Errorf("%w: end %s, at its end: of %d sends %d were reported, of %d receives %d",
			ErrVerify, end, l.Sends.Accepted, l.Sends.Completed(), l.Recvs.Accepted, l.Recvs.Completed())
	}
	if l.broken != nil {
		return fmt.Errorf("end %s: %w", end, l.broken)
	}
	return nil
}
