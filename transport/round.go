package transport

// event is a callback that is due, and what it is called with.
type event struct {
	kind eventKind
	peer *peerState
	m    *Message
	comp *Completion
	err  error
}

type eventKind uint8

const (
	eventMessage  eventKind = iota // the handler of m
	eventComplete                  // comp counts an operation, which ended with err
	eventError                     // OnError of peer, with err
)

// round is what the present round of progress reports. Its callbacks run at its end, in the order
// of its events; the callbacks of later belong to the next round, and follow at once.
//
// Invariant: later is empty while events is. Worker.progressing guards events, Worker.mu the rest.
type round struct {
	events []event
	later  []event
	number uint64 // of the round, from 1 on
}

func newRound() round { return round{events: make([]event, 0, 2*pollBatch), number: 1} }

// report queues an event.
func (r *round) report(e event) { r.events = append(r.events, e) }

// reportLater queues an event for the next round.
func (r *round) reportLater(e event) { r.later = append(r.later, e) }

// next begins the next round, with the events that were queued for it.
func (r *round) next() {
	clear(r.events)
	r.events = append(r.events[:0], r.later...)
	r.later = r.later[:0]
	r.number++
}

// drop forgets the events of a dead worker, whose callbacks do not run.
func (r *round) drop() { r.events, r.later = nil, nil }
