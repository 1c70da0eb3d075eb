package transport

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// What is kept of events is bounded: one for each NIC, or port of one, of each kind, and the last
// ones that concern queue pairs, which take the place of no others.
func TestEventsAreKeptPerNICAndKind(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(fabric.Device(0), fabric.Device(1))
	if err != nil {
		t.Fatal(err)
	}
	var w watch
	w.begin(dom)
	send := func(typ verbs.EventType, dev, port int, qp uint32) {
		w.nics[dev].events <- verbs.Event{Type: typ, Device: fabric.Device(dev), Port: port, QPNum: qp}
		w.look()
	}
	send(verbs.EventQPFatal, 1, 0, 5000) // the oldest
	send(verbs.EventDeviceFatal, 0, 0, 0)
	for i := range 1000 {
		send(verbs.EventPortErr, 1, 1+i%2, 0)
		send(verbs.EventCQErr, 1, 0, 0)
		send(verbs.EventQPFatal, 1, 0, uint32(i))
		send(verbs.EventCommEst, 1, 0, uint32(i))
	}
	send(verbs.EventPortActive, 1, 2, 0)
	seen := w.seen
	if len(seen) != 3+watchKept {
		t.Errorf("%d events are kept, want %d", len(seen), 3+watchKept)
	}
	count := map[verbs.EventType]int{}
	for _, e := range seen {
		count[e.Type]++
		if e.Type == verbs.EventPortErr && e.Port != 1 {
			t.Errorf("%v, though it is up again", e)
		}
	}
	if count[verbs.EventDeviceFatal] != 1 || count[verbs.EventCQErr] != 1 || count[verbs.EventPortErr] != 1 {
		t.Errorf("kept are %v", count)
	}
	for _, e := range seen {
		if e.Type.IsQP() && (e.QPNum < 1000-watchKept || e.QPNum > 999) {
			t.Errorf("queue pair %d failed too long ago to be kept", e.QPNum)
		}
	}

	w.end()
	if err := dom.Close(); err != nil {
		t.Error(err)
	}
	if err := fabric.Close(); err != nil {
		t.Error(err)
	}
}

// What a port reported last may be lost among many events; its state is asked for then.
func TestPortsAreAskedWhereEventsMayBeLost(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 1})
	if err != nil {
		t.Fatal(err)
	}
	nic := fabric.Device(0)
	dom, err := ibverbx.NewDomain(nic)
	if err != nil {
		t.Fatal(err)
	}
	var w watch
	w.begin(dom)
	defer w.end()
	for flaps := 25; flaps < 40; flaps++ {
		for _, up := range []bool{false, true} {
			for range flaps {
				nic.SetLink(!up)
				nic.SetLink(up)
			}
			w.look()
			down := slices.ContainsFunc(w.seen,
				func(e verbs.Event) bool { return e.Type == verbs.EventPortErr })
			if down == up || len(w.seen) > 1 {
				t.Errorf("%d flaps, up %v: %v", flaps, up, w.seen)
			}
		}
	}
	if err := dom.Close(); err != nil {
		t.Error(err)
	}
}

// What a NIC has reported explains a failure of its own queue pairs, what concerns more before what
// concerns less; an event of another NIC or queue pair explains nothing, nor does any event explain
// an error that states its cause itself.
func TestEventsThatExplain(t *testing.T) {
	null := verbstest.NewNull(2)
	here, there := null.Device(0), null.Device(1)
	port := func(e verbs.EventType, dev verbs.Device, n int) verbs.Event {
		return verbs.Event{Type: e, Device: dev, Port: n}
	}
	qp := func(e verbs.EventType, dev verbs.Device, n uint32) verbs.Event {
		return verbs.Event{Type: e, Device: dev, QPNum: n}
	}
	fatal, overrun := verbs.Event{Type: verbs.EventDeviceFatal, Device: here},
		verbs.Event{Type: verbs.EventCQErr, Device: here}
	down := port(verbs.EventPortErr, here, 1)
	died := qp(verbs.EventQPFatal, here, 17)
	for _, c := range []struct {
		name   string
		events []verbs.Event
		err    error // nil: WR_FLUSH_ERR
		want   verbs.EventType
		none   bool
	}{
		{name: "nothing was reported", none: true},
		{name: "the device", events: []verbs.Event{fatal, overrun, down, died}, want: verbs.EventDeviceFatal},
		{name: "the CQ", events: []verbs.Event{died, down, overrun}, want: verbs.EventCQErr},
		{name: "the port", events: []verbs.Event{down, died}, want: verbs.EventPortErr},
		{name: "the queue pair", events: []verbs.Event{died}, want: verbs.EventQPFatal},
		{name: "its request", events: []verbs.Event{qp(verbs.EventQPReqErr, here, 17)},
			want: verbs.EventQPReqErr},
		{name: "its access", events: []verbs.Event{qp(verbs.EventQPAccessErr, here, 17)},
			want: verbs.EventQPAccessErr},
		{name: "another queue pair", events: []verbs.Event{qp(verbs.EventQPFatal, here, 18)}, none: true},
		{name: "another NIC", events: []verbs.Event{port(verbs.EventPortErr, there, 1),
			qp(verbs.EventQPFatal, there, 17)}, none: true},
		{name: "another NIC, and this one", events: []verbs.Event{
			{Type: verbs.EventDeviceFatal, Device: there}, died}, want: verbs.EventQPFatal},
		{name: "harmless", events: []verbs.Event{port(verbs.EventPortActive, here, 1),
			qp(verbs.EventCommEst, here, 17)}, none: true},
		{name: "the port is back", events: []verbs.Event{down, port(verbs.EventPortActive, here, 1)},
			none: true},
		{name: "another port is back", events: []verbs.Event{down, port(verbs.EventPortActive, here, 2)},
			want: verbs.EventPortErr},
		{name: "the other NIC's port is back", events: []verbs.Event{down,
			port(verbs.EventPortActive, there, 1)}, want: verbs.EventPortErr},
		{name: "the port is back, the device is not", events: []verbs.Event{fatal,
			port(verbs.EventPortActive, here, 1)}, want: verbs.EventDeviceFatal},
		{name: "no answer", err: verbs.StatusRetryExcErr, events: []verbs.Event{down},
			want: verbs.EventPortErr},
		{name: "fatal", err: verbs.StatusFatalErr, events: []verbs.Event{down}, want: verbs.EventPortErr},
		{name: "general", err: verbs.StatusGeneralErr, events: []verbs.Event{down}, want: verbs.EventPortErr},
		{name: "no status", err: verbs.ErrDeviceGone, events: []verbs.Event{down}, want: verbs.EventPortErr},
		{name: "a wrong key", err: verbs.StatusRemAccessErr, events: []verbs.Event{fatal}, none: true},
		{name: "no receive", err: verbs.StatusRNRRetryExcErr, events: []verbs.Event{fatal}, none: true},
	} {
		var w watch
		for _, e := range c.events {
			w.seen.note(e)
		}
		failed := &ibverbx.FailedError{Device: here.Name(), RailQPNum: 17, Err: c.err}
		if c.err == nil {
			failed.Err = fmt.Errorf("put: %w", verbs.StatusWRFlushErr)
		}
		got := w.explains(failed)
		if (got == nil) != c.none || got != nil && (got.Type != c.want || got.Device != here) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	// Where it is not known which NIC failed, any may explain it.
	var w watch
	w.seen.note(port(verbs.EventPortErr, there, 1))
	if e := w.explains(&ibverbx.FailedError{Err: errors.New("no NIC is named")}); e == nil {
		t.Error("nothing explains the failure of a NIC that is not named")
	}
}
