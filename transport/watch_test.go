package transport

import (
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
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
	if !slices.ContainsFunc(seen, func(e verbs.Event) bool {
		return e.Type == verbs.EventQPFatal && e.QPNum == 999
	}) {
		t.Errorf("the last one of a queue pair is missing: %v", seen)
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
