package transport

import (
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/verbs"
)

// watch is what the NICs of a worker have reported beside completions. When one dies, its
// completions say that requests were flushed, and only an event says why.
type watch struct {
	events chan verbs.Event
	stops  []func()
	seen   []verbs.Event // that may explain a failure, oldest first
}

// The channel has room for what comes between two looks, which every round of progress takes where
// there is something; of what was seen the last few matter.
const (
	watchRoom = 64
	watchKept = 64
)

// begin watches the NICs of a domain.
func (t *watch) begin(dom *ibverbx.Domain) {
	t.events = make(chan verbs.Event, watchRoom)
	for _, dev := range dom.Devices() {
		t.stops = append(t.stops, dev.Watch(t.events))
	}
}

// end stops watching.
func (t *watch) end() {
	for _, stop := range t.stops {
		stop()
	}
	t.stops = nil
}

// look takes in what was reported since the last time.
func (t *watch) look() {
	for {
		select {
		case e := <-t.events:
			t.note(e)
		default:
			return
		}
	}
}

// note keeps an event that may explain a failure. A port that is up again explains nothing.
func (t *watch) note(e verbs.Event) {
	switch e.Type {
	case verbs.EventPortActive:
		t.seen = slices.DeleteFunc(t.seen, func(o verbs.Event) bool {
			return o.Type == verbs.EventPortErr && o.Device == e.Device && o.Port == e.Port
		})
	case verbs.EventDeviceFatal, verbs.EventPortErr, verbs.EventCQErr, verbs.EventQPFatal,
		verbs.EventQPReqErr,
		verbs.EventQPAccessErr:
		if len(t.seen) == watchKept {
			t.seen = slices.Delete(t.seen, 0, 1)
		}
		t.seen = append(t.seen, e)
	}
}

// explains returns the event of a NIC of this end that explains why a queue pair of an endpoint has
// failed; nil if there is none. What concerns more goes before what concerns less.
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

// explicable reports whether an error may follow from something that a NIC of this end reports by
// an event. Others, such as an access error, tell the cause themselves.
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
