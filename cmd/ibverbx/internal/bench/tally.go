package bench

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// Ledger is what became of the requests of one direction of an end, from its connection to its
// reset. Each that was accepted must have just one completion.
type Ledger struct {
	Accepted  uint64 `json:"accepted"`
	Succeeded uint64 `json:"succeeded"`
	Failed    uint64 `json:"failed"`
	Flushed   uint64 `json:"flushed"`
}

// Completed is how many requests were reported, in whatever way.
func (l *Ledger) Completed() uint64 { return l.Succeeded + l.Failed + l.Flushed }

// tally counts what an end posted and what was reported, to see that each request yields just one
// completion.
type tally struct {
	sends, recvs Ledger
	statuses     map[string]int // failed completions, by status
	broken       error          // the first completion that must not be
}

// recvBit tells the IDs of receives from those of sends.
const recvBit = 1 << 63

// count takes in a completion.
func (t *tally) count(wc *ibverbx.WC) {
	l, what := &t.sends, "send"
	if wc.ID&recvBit != 0 {
		l, what = &t.recvs, "receive"
	}
	// One that the NIC refused for good has its own error behind those that it flushed.
	stopped := l.Failed > 0 && wc.Status != verbs.StatusWRFlushErr || l.Flushed > 0 &&
		wc.Status == verbs.StatusSuccess
	if stopped && t.broken == nil {
		t.broken = fmt.Errorf("%w: a %s completed with %s behind one that had failed: the first error must "+
			"stop the line",
			ErrVerify, what, wc.Status.Name())
	}
	switch wc.Status {
	case verbs.StatusSuccess:
		l.Succeeded++
		return
	case verbs.StatusWRFlushErr:
		l.Flushed++
	default:
		l.Failed++
	}
	if t.statuses == nil {
		t.statuses = map[string]int{}
	}
	t.statuses[wc.Status.Name()]++
}

// check says whether every request has had its one completion, nothing being outstanding.
func (t *tally) check(end string) error {
	if t.sends.Accepted != t.sends.Completed() || t.recvs.Accepted != t.recvs.Completed() {
		return fmt.Errorf("%w: end %s, at its end: of %d sends %d were reported, of %d receives %d",
			ErrVerify, end, t.sends.Accepted, t.sends.Completed(), t.recvs.Accepted, t.recvs.Completed())
	}
	if t.broken != nil {
		return fmt.Errorf("end %s: %w", end, t.broken)
	}
	return nil
}
