package transport

import (
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/verbs"
)

// watch collects the events of a worker's NICs. When a NIC dies, its completions only say that
// requests were flushed; an event says why.
type watch struct {
	nics []watchedNIC
	seen seenEvents
}

// watchedNIC is a watched NIC. It has its own channel, whose last place is for the NIC's death.
type watchedNIC struct {
	dev    verbs.Device
	events chan verbs.Event
	stop   func()
}

const (
	watchRoom = 64 // events of a NIC between two looks; each round of progress takes one
	watchKept = 64 // events of queue pairs that are kept
)

// begin watches the NICs of a domain.
func (t *watch) begin(dom *ibverbx.Domain) {
	for _, dev := range dom.Devices() {
		c := make(chan verbs.Event, watchRoom)
		t.nics = append(t.nics, watchedNIC{dev, c, dev.Watch(c)})
	}
}

// end stops watching.
func (t *watch) end() {
	for i := range t.nics {
		t.nics[i].stop()
	}
}

// look reads the events that have come since the last look.
func (t *watch) look() {
	for i := range t.nics {
		if len(t.nics[i].events) != 0 {
			t.take(&t.nics[i])
		}
	}
}

// take reads a NIC's events. If events may have been lost, it queries which ports are up: only such
// lost events explain later failures.
func (t *watch) take(nic *watchedNIC) {
	lost := len(nic.events) >= watchRoom-1
	for len(nic.events) != 0 {
		t.seen.note(<-nic.events)
	}
	if lost {
		t.askPort(nic.dev)
	}
}

// askPort records the state of a NIC's port as if the NIC had just reported it.
func (t *watch) askPort(dev verbs.Device) {
	port := dev.DefaultPort()
	attr, err := dev.QueryPort(port)
	if err != nil {
		return
	}
	e := verbs.Event{Type: verbs.EventPortErr, Device: dev, Port: port}
	if attr.State == verbs.PortActive {
		e.Type = verbs.EventPortActive
	}
	t.seen.note(e)
}

// seenEvents are events that may explain a failure, oldest first: the newest of each NIC or port
// and kind, and of queue pairs the newest watchKept.
type seenEvents []verbs.Event

// note records an event that may explain a failure. A port that is up again explains nothing.
func (s *seenEvents) note(e verbs.Event) {
	switch e.Type {
	case verbs.EventPortActive:
		s.drop(verbs.EventPortErr, &e)
	case verbs.EventDeviceFatal, verbs.EventPortErr, verbs.EventCQErr:
		s.drop(e.Type, &e)
		*s = append(*s, e)
	case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
		s.dropOldQP()
		*s = append(*s, e)
	}
}

// drop drops events of a kind for the NIC and port of an event.
func (s *seenEvents) drop(kind verbs.EventType, e *verbs.Event) {
	*s = slices.DeleteFunc(*s, func(o verbs.Event) bool {
		return o.Type == kind && o.Device == e.Device && o.Port == e.Port
	})
}

// dropOldQP makes room for an event of a queue pair.
func (s *seenEvents) dropOldQP() {
	oldest, n := -1, 0
	for i := range *s {
		if (*s)[i].Type.IsQP() {
			if n++; oldest < 0 {
				oldest = i
			}
		}
	}
	if n >= watchKept {
		*s = slices.Delete(*s, oldest, oldest+1)
	}
}

// explains returns the event of a NIC of this end that explains why a queue pair of an endpoint has
// failed; nil if there is none. Events of larger scope come first: a NIC, a CQ, a port, a queue
// pair.
func (t *watch) explains(failed *ibverbx.FailedError) *verbs.Event {
	if len(t.seen) == 0 || !explicable(failed.Err) {
		return nil
	}
	for _, kinds := range [...][]verbs.EventType{
		{verbs.EventDeviceFatal}, {verbs.EventCQErr}, {verbs.EventPortErr},
		{verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr},
	} {
		for i := len(t.seen) - 1; i >= 0; i-- {
			e := &t.seen[i]
			switch {
			case !slices.Contains(kinds, e.Type):
			case failed.Device != "" && failed.Device != e.Device.Name():
			case e.Type.IsQP() && e.QPNum != failed.RailQPNum:
			default:
				found := *e
				return &found
			}
		}
	}
	return nil
}

// explicable reports whether an error may follow from a failure that a NIC of this end reports by
// an event. Others, such as an access error, state the cause themselves.
func explicable(err error) bool {
	var status verbs.Status
	if !errors.As(err, &status) {
		return true
	}
	switch status {
	case verbs.StatusWRFlushErr, verbs.StatusRetryExcErr, verbs.StatusFatalErr, verbs.StatusGeneralErr:
		return true
	}
	return false
}
