package verbs

import (
	"sync"
	"testing"
)

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
