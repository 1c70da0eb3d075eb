package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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

func TestWatchers(t *testing.T) {
	var w Watchers
	w.Publish(Event{Type: EventPortErr}) // nobody watches
	a, b := make(chan Event, 4), make(chan Event, 4)
	stopA, stopB := w.Watch(a), w.Watch(b)
	defer stopB()
	w.Publish(Event{Type: EventPortActive, Port: 1})
	for name, c := range map[string]chan Event{"first": a, "second": b} {
		if len(c) != 1 {
			t.Fatalf("the %s watcher has %d events, want the one since it watches", name, len(c))
		}
		if e := <-c; e.Type != EventPortActive || e.Port != 1 {
			t.Errorf("the %s watcher has %v", name, e)
		}
	}
	stopA()
	close(a) // the caller may: nothing is sent any more
	w.Publish(Event{Type: EventPortErr})
	stopA()
	w.Publish(Event{Type: EventPortErr})
	if len(b) != 2 {
		t.Errorf("the other watcher has %d events, want 2", len(b))
	}
}

// A watcher without room loses events; no other watcher does, and Publish does not wait.
func TestWatchersDoNotBlock(t *testing.T) {
	var w Watchers
	full, roomy := make(chan Event, 1), make(chan Event, 4)
	for _, c := range []chan Event{full, nil, make(chan Event), roomy} {
		defer w.Watch(c)()
	}
	for i := range 3 {
		w.Publish(Event{Port: i})
	}
	if len(full) != 1 || len(roomy) != 3 {
		t.Fatalf("%d and %d events, want 1 and 3", len(full), len(roomy))
	}
	if e := <-full; e.Port != 0 {
		t.Errorf("the first event gave way to event %d", e.Port)
	}
	for want := range 3 {
		if e := <-roomy; e.Port != want {
			t.Errorf("event %d, want %d", e.Port, want)
		}
	}
}

// One channel may watch several times, and each of them ends by itself.
func TestWatchersSameChannel(t *testing.T) {
	var w Watchers
	c := make(chan Event, 8)
	stop := w.Watch(c)
	defer w.Watch(c)()
	w.Publish(Event{})
	stop()
	stop()
	w.Publish(Event{})
	if len(c) != 3 {
		t.Errorf("%d events, want two and one", len(c))
	}
}

// Watchers come and go while events are published. A send after stop would be one to a closed
// channel.
func TestWatchersConcurrent(t *testing.T) {
	var w Watchers
	var publishers, watchers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		publishers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					w.Publish(Event{Type: EventPortErr})
				}
			}
		})
	}
	for range 4 {
		watchers.Go(func() {
			for range 50 {
				c := make(chan Event, 1)
				stop := w.Watch(c)
				<-c
				stop()
				close(c)
			}
		})
	}
	watchers.Wait()
	close(done)
	publishers.Wait()
	if len(w.list) != 0 {
		t.Errorf("%d watchers are left", len(w.list))
	}
}

// The last place of a channel is for the NIC's death, which comes through however much was reported
// before.
func TestWatchersLearnOfDeath(t *testing.T) {
	var w Watchers
	c, tiny := make(chan Event, 4), make(chan Event, 1)
	defer w.Watch(c)()
	defer w.Watch(tiny)()
	for i := range 10 {
		w.Publish(Event{Type: EventPortErr, Port: i})
	}
	w.Publish(Event{Type: EventDeviceFatal})
	w.Publish(Event{Type: EventPortErr})
	w.Publish(Event{Type: EventDeviceFatal})
	for i, want := range []EventType{EventPortErr, EventPortErr, EventPortErr, EventDeviceFatal} {
		if e := <-c; e.Type != want || want == EventPortErr && e.Port != i {
			t.Errorf("event %d: %v", i, e)
		}
	}
	if e := <-tiny; e.Type != EventPortErr { // which has no other place
		t.Errorf("the channel of one: %v", e)
	}
}

func TestCompChannelMerges(t *testing.T) {
	c := NewCompChannel()
	for range 10 {
		c.Signal() // never blocks
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Events():
		t.Error("ten signals without a wait between them are more than one event")
	default:
	}
	c.Signal()
	<-c.Events()
}

func TestCompChannelWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCompChannel()
		woken := make(chan error)
		go func() { woken <- c.Wait(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-woken:
			t.Fatalf("returned without an event: %v", err)
		default:
		}
		c.Signal()
		if err := <-woken; err != nil {
			t.Error(err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		go func() { woken <- c.Wait(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-woken; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}

		ctx, cancel = context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Hour {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestCompChannelOneWaiter: one event wakes one of two waiters.
func TestCompChannelOneWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCompChannel()
		woken := make(chan error, 2)
		for range 2 {
			go func() { woken <- c.Wait(t.Context()) }()
		}
		synctest.Wait()
		c.Signal()
		synctest.Wait()
		if len(woken) != 1 {
			t.Errorf("one event woke %d", len(woken))
		}
		c.Signal()
		<-woken
		<-woken
	})
}
