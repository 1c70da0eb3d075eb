package verbs

import (
	"fmt"
	"testing"
)

// The names of enum ibv_event_type in the order of their values, which count from 0; "" are those
// of what this package does not have, and of one from the future.
var eventNames = [...]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "", "", "", "DEVICE_FATAL",
	"PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "", "", "", "CLIENT_REREGISTER",
	"GID_CHANGE", "", "DEVICE_SPEED_CHANGE", "",
}

func TestEventType(t *testing.T) {
	words := map[string]EventType{}
	for i, name := range eventNames {
		e := EventType(i)
		if name == "" {
			want := fmt.Sprintf("EVENT_%d, unknown event %d", i, i)
			if got := e.Name() + ", " + e.String(); got != want {
				t.Errorf("an event without a name: %q, want %q", got, want)
			}
			if e.IsPort() || e.IsQP() || e.IsCQ() {
				t.Errorf("%v is about something known", e)
			}
			continue
		}
		if e.Name() != name {
			t.Errorf("event %d is %s, want %s", i, e.Name(), name)
		}
		if other, dup := words[e.String()]; dup || e.String() == "" {
			t.Errorf("%s: words %q, also of %s", name, e.String(), other.Name())
		}
		words[e.String()] = e
	}
}

func TestEventString(t *testing.T) {
	rxe := named{name: "rxe0"}
	for _, c := range []struct {
		event          Event
		want           string
		port, qp, isCQ bool
	}{
		{event: Event{Type: EventPortErr, Device: rxe, Port: 1}, want: "rxe0 port 1: port error", port: true},
		{event: Event{Type: EventGIDChange, Device: rxe, Port: 2}, want: "rxe0 port 2: GID table changed",
			port: true},
		{event: Event{Type: EventQPFatal, Device: rxe, QPNum: 17}, want: "rxe0 qp 17: queue pair failed",
			qp: true},
		{event: Event{Type: EventCQErr, Device: rxe}, want: "rxe0: completion queue error", isCQ: true},
		{event: Event{Type: EventDeviceFatal, Device: rxe, Port: 1, QPNum: 17}, want: "rxe0: device failed"},
		{event: Event{Type: 14, Device: rxe}, want: "rxe0: unknown event 14"},
		{event: Event{Type: 99}, want: "no device: unknown event 99"},
	} {
		if got := c.event.String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if e := c.event.Type; e.IsPort() != c.port || e.IsQP() != c.qp || e.IsCQ() != c.isCQ {
			t.Errorf("%v: of a port %t, a queue pair %t, a completion queue %t", e, e.IsPort(), e.IsQP(),
				e.IsCQ())
		}
	}
}

// named is a device that has a name.
type named struct {
	Device
	name string
}

func (d named) Name() string { return d.name }
