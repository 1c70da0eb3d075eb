package verbs

import "testing"

// The names of enum ibv_event_type in the order of their values, which count from 0.
var eventNames = [...]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR",
	"DEVICE_FATAL",
	"PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR", "SRQ_LIMIT_REACHED",
	"QP_LAST_WQE_REACHED",
	"CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL", "DEVICE_SPEED_CHANGE",
}

func TestEventType(t *testing.T) {
	if len(eventText) != len(eventNames) {
		t.Errorf("%d events, want %d", len(eventText), len(eventNames))
	}
	words := map[string]EventType{}
	for i, name := range eventNames {
		e := EventType(i)
		if e.Name() != name {
			t.Errorf("event %d is %s, want %s", i, e.Name(), name)
		}
		if other, dup := words[e.String()]; dup || e.String() == "" {
			t.Errorf("%s: words %q, also of %s", name, e.String(), other.Name())
		}
		words[e.String()] = e
	}
	future := EventType(len(eventNames))
	if got := future.Name() + ", " + future.String(); got != "EVENT_21, unknown event 21" {
		t.Errorf("an event from the future: %q", got)
	}
	if future.IsPort() || future.IsQP() || future.IsCQ() {
		t.Error("an event from the future is about something known")
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
		{event: Event{Type: EventSRQErr, Device: rxe}, want: "rxe0: shared receive queue error"},
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
