package verbs

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"ibverbx/internal/guard"
)

// Event is an asynchronous event of a NIC (struct ibv_async_event); completions of work requests
// are reported elsewhere. [Device.Watch] delivers it. Its type determines which of the fields after
// Device are set.
//
// Events may be lost ([Device.Watch] says when), arrive late, and be outdated when you read them.
// Take one as a reason to look at the state: [Device.QueryPort], [QP.State], [CQ.Poll].
type Event struct {
	Type   EventType
	Device Device
	Port   int    // events of a port, [EventType.IsPort]
	QPNum  uint32 // events of a queue pair, [EventType.IsQP], which may be closed by now
	// CQ is the completion queue of an event with [EventType.IsCQ]. It may be closed by now, and is
	// nil if it was closed before the event was read from the NIC.
	CQ CQ
}

// String returns a line like "rxe0 port 1: port error".
func (e Event) String() string {
	s := "no device"
	if e.Device != nil {
		s = e.Device.Name()
	}
	switch {
	case e.Type.IsPort():
		s += " port " + strconv.Itoa(e.Port)
	case e.Type.IsQP():
		s += " qp " + strconv.FormatUint(uint64(e.QPNum), 10)
	}
	return s + ": " + e.Type.String()
}

// EventType is the kind of an event (enum ibv_event_type).
//
// It has the kernel's number. Events of features that this package lacks have no name here: shared
// receive queues, work queues, alternate paths, drained send queues. Such an event prints as its
// number: "unknown event 14".
type EventType uint32

// The events. Not every NIC raises all of them: rdma_rxe, for example, raises none when a queue
// pair fails as the responder.
const (
	// EventCQErr: a completion queue has overrun, and is dead.
	EventCQErr EventType = 0
	// EventQPFatal: a queue pair failed and could not say so in a completion.
	EventQPFatal EventType = 1
	// EventQPReqErr: a queue pair failed as the responder, because the peer's request was invalid.
	EventQPReqErr EventType = 2
	// EventQPAccessErr: a queue pair failed as the responder, because the peer's request named
	// memory that it must not access.
	EventQPAccessErr EventType = 3
	// EventCommEst: the first message arrived at a queue pair that is still in RTR.
	EventCommEst EventType = 4
	// EventDeviceFatal: the NIC has failed, and everything on it.
	EventDeviceFatal EventType = 8
	// EventPortActive: the port's link is up.
	EventPortActive EventType = 9
	// EventPortErr: the port's link is down.
	EventPortErr EventType = 10
	// EventLIDChange, EventPKeyChange, EventSMChange: the subnet manager gave the port another
	// address, or other partition keys, or was replaced by another.
	EventLIDChange  EventType = 11
	EventPKeyChange EventType = 12
	EventSMChange   EventType = 13
	// EventClientReregister: the subnet manager has lost its registrations.
	EventClientReregister EventType = 17
	// EventGIDChange: an entry of the port's GID table changed.
	EventGIDChange EventType = 18
	// EventDeviceSpeedChange: the port's speed changed.
	EventDeviceSpeedChange EventType = 20
)

// eventSubject is the kind of object that an event concerns.
type eventSubject uint8

const (
	aboutUnknown eventSubject = iota // nothing that this package describes
	aboutDevice
	aboutPort
	aboutQP
	aboutCQ
)

// eventText holds, for each event, its verbs name, its meaning, and its subject. Numbers that this
// package does not name are empty.
var eventText = [...]struct {
	name, words string
	about       eventSubject
}{
	EventCQErr:            {"CQ_ERR", "completion queue error", aboutCQ},
	EventQPFatal:          {"QP_FATAL", "queue pair failed", aboutQP},
	EventQPReqErr:         {"QP_REQ_ERR", "invalid request of the peer", aboutQP},
	EventQPAccessErr:      {"QP_ACCESS_ERR", "access violation by the peer", aboutQP},
	EventCommEst:          {"COMM_EST", "communication established", aboutQP},
	EventDeviceFatal:      {"DEVICE_FATAL", "device failed", aboutDevice},
	EventPortActive:       {"PORT_ACTIVE", "port active", aboutPort},
	EventPortErr:          {"PORT_ERR", "port error", aboutPort},
	EventLIDChange:        {"LID_CHANGE", "local identifier changed", aboutPort},
	EventPKeyChange:       {"PKEY_CHANGE", "partition keys changed", aboutPort},
	EventSMChange:         {"SM_CHANGE", "subnet manager changed", aboutPort},
	EventClientReregister: {"CLIENT_REREGISTER", "subnet manager asks to register again", aboutPort},
	EventGIDChange:        {"GID_CHANGE", "GID table changed", aboutPort},

	EventDeviceSpeedChange: {"DEVICE_SPEED_CHANGE", "speed changed", aboutPort},
}

// String returns the event in words.
func (t EventType) String() string {
	if t.about() != aboutUnknown {
		return eventText[t].words
	}
	return "unknown event " + strconv.FormatUint(uint64(t), 10)
}

// Name returns the verbs name of the event: "PORT_ERR".
func (t EventType) Name() string {
	if t.about() != aboutUnknown {
		return eventText[t].name
	}
	return "EVENT_" + strconv.FormatUint(uint64(t), 10)
}

// IsPort reports whether the event concerns a port, Event.Port.
func (t EventType) IsPort() bool { return t.about() == aboutPort }

// IsQP reports whether the event concerns a queue pair, Event.QPNum.
func (t EventType) IsQP() bool { return t.about() == aboutQP }

// IsCQ reports whether the event concerns a completion queue, Event.CQ.
func (t EventType) IsCQ() bool { return t.about() == aboutCQ }

func (t EventType) about() eventSubject {
	if int(t) < len(eventText) {
		return eventText[t].about
	}
	return aboutUnknown
}

// Watchers sends the events of a device to its watchers. It is for providers, which keep one for
// each device to implement [Device.Watch]; programs do not need it. The zero value is ready. It is
// safe for concurrent use. Its lock is taken last and nothing waits under it, so a provider may
// publish while it holds its own locks.
type Watchers struct {
	_    guard.NoCopy
	mu   sync.Mutex
	list []*watcher
}

// watcher is one call of Watch. Several calls may have the same channel.
type watcher struct{ c chan<- Event }

// Watch is [Device.Watch].
func (w *Watchers) Watch(c chan<- Event) (stop func()) {
	one := &watcher{c}
	w.mu.Lock()
	w.list = append(w.list, one)
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if i := slices.Index(w.list, one); i >= 0 {
			w.list = slices.Delete(w.list, i, i+1)
		}
	}
}

// Publish sends an event to every watcher that has room for it. The last place of a channel with
// room for two or more is reserved for EventDeviceFatal, so a NIC's death is delivered even if
// earlier events were not read. Publish never blocks and calls nothing, so it may be called with
// locks held. It holds the lock while it sends, so that nothing is sent after stop.
func (w *Watchers) Publish(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.list {
		if e.Type != EventDeviceFatal && cap(one.c) > 1 && len(one.c) >= cap(one.c)-1 {
			continue
		}
		select {
		case one.c <- e:
		default:
		}
	}
}

// CompChannel carries completion events: an armed CQ raises one when a completion is added to it.
// CQs of several devices and providers may share a channel, so that one wait covers them all. It is
// safe for concurrent use.
//
// Events merge: any number of events that nobody has taken yet count as one. So take an event as a
// reason to poll every CQ of the channel, not as a count of completions.
type CompChannel struct {
	_     guard.NoCopy
	event chan struct{}
}

// NewCompChannel makes a completion channel.
func NewCompChannel() *CompChannel { return &CompChannel{event: make(chan struct{}, 1)} }

// Wait blocks until there is an event, and takes it. If ctx ends first it returns ctx's error.
func (c *CompChannel) Wait(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("verbs: wait: %w: no context", ErrInvalid)
	}
	select {
	case <-c.event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Events returns the channel on which events arrive, for use in a select. Receiving takes the
// event.
func (c *CompChannel) Events() <-chan struct{} { return c.event }

// Signal raises an event. It is for providers; it never blocks.
func (c *CompChannel) Signal() {
	select {
	case c.event <- struct{}{}:
	default:
	}
}
