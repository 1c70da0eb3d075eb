package ibverbx

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"ibverbx/verbs"
)

// Events are functions that a virtual queue pair calls when something happens that a program may
// want to log or count. All are optional, and the zero value calls none. [LogEvents] fills them
// all.
//
// The methods of the virtual queue pair and of its virtual CQ call them, in the order in which
// things happen, on the goroutine of the caller. They must not call these methods, and must not
// wait: the connection stands still meanwhile. A value may serve any number of virtual queue pairs;
// if these belong to several virtual CQs, its functions are called concurrently.
//
// There is no event for a full completion queue: a virtual CQ reserves room for everything that its
// queue pairs can have outstanding, so it cannot happen.
type Events struct {
	// Connected is called when all queue pairs have reached RTS, again after each reset.
	Connected func(ConnectedEvent)
	// Rail is called when failover takes a queue pair out of service or puts it back.
	Rail func(RailEvent)
	// Settled is called once after each loss that Rail reports, when both ends have agreed on what
	// of the queue pair's work has arrived. The rest is sent again from then on. If the connection
	// fails before that, it is not called.
	Settled func(SettledEvent)
	// Withheld is called when this end makes its peer wait, because the program does not post
	// receives for notifications: the bank is full ([Config.MaxBanked]). It is called once, and
	// again after the bank was empty.
	Withheld func(WithheldEvent)
	// Failed is called with what [VirtualQP.Err] returns from then on: once for a connection, and
	// again if the Reset behind it fails, too.
	Failed func(*FailedError)
}

// ConnectedEvent reports that a virtual queue pair is connected.
type ConnectedEvent struct {
	VirtualQP uint32 // [VirtualQP.Num]
	Carrier   Carrier
}

// RailEvent reports that a queue pair was taken out of service, or is back.
type RailEvent struct {
	VirtualQP uint32 // [VirtualQP.Num]
	Rail      int    // as in [Stats].Rails
	Device    string
	QPNum     uint32
	Down      bool
	Cause     error // why it was taken out of service; nil when it is back
}

// SettledEvent reports that the ends have agreed on what of a lost queue pair has arrived.
type SettledEvent struct {
	VirtualQP uint32 // [VirtualQP.Num]
	Rail      int    // as in [Stats].Rails
	Device    string
	Arrived   int           // work requests that were outstanding, and have arrived
	Again     int           // work requests to be posted on another queue pair
	Bytes     uint64        // of the latter
	Took      time.Duration // from the loss of the queue pair until now
}

// WithheldEvent reports that this end makes its peer wait.
type WithheldEvent struct {
	VirtualQP uint32 // [VirtualQP.Num]
	Banked    int    // notifications that wait for a receive
}

// String returns one line for a log.
func (e ConnectedEvent) String() string {
	return fmt.Sprintf("virtual qp %d: connected over %v", e.VirtualQP, e.Carrier)
}

// String returns one line for a log.
func (e RailEvent) String() string {
	s := fmt.Sprintf("virtual qp %d: rail %d (%s qp %d) ", e.VirtualQP, e.Rail, e.Device, e.QPNum)
	if !e.Down {
		return s + "is back in service"
	}
	return s + fmt.Sprintf("is out of service: %v", e.Cause)
}

// String returns one line for a log.
func (e SettledEvent) String() string {
	return fmt.Sprintf("virtual qp %d: rail %d (%s) settled after %v: %d arrived, %d go again with %d bytes",
		e.VirtualQP, e.Rail, e.Device, e.Took, e.Arrived, e.Again, e.Bytes)
}

// String returns one line for a log.
func (e WithheldEvent) String() string {
	return fmt.Sprintf("virtual qp %d: the peer must wait: %d notifications have found no receive: post "+
		"receives", e.VirtualQP, e.Banked)
}

// Carrier describes what carries a connection.
type Carrier struct {
	Scheme   Scheme       `json:"scheme"`   // as configured; a single queue pair ignores it
	Failover bool         `json:"failover"` // whether it is in force
	NICs     []CarrierNIC `json:"nics"`     // in the order of the rails
}

// CarrierNIC is a NIC of a [Carrier], with the port of the peer that its queue pairs reach.
type CarrierNIC struct {
	Device string `json:"device"`
	// Provider is the name of the device's provider, such as "rdmacore" or "roce"; empty if the
	// device does not say.
	Provider string    `json:"provider,omitempty"`
	Software bool      `json:"software"` // the NIC is software
	QPs      int       `json:"qps"`      // queue pairs over it
	GID      verbs.GID `json:"gid"`      // this end's; zero on InfiniBand without a global route
	PeerGID  verbs.GID `json:"peer_gid"`
	MTU      int       `json:"mtu"` // path MTU in bytes; 0 before the connection
}

// String names the NICs: "rdmacore mlx5_0, mlx5_1".
func (c Carrier) String() string {
	var names []string
	provider := ""
	for _, n := range c.NICs {
		if name := strings.TrimSpace(n.Provider + " " + n.Device); n.Provider != provider {
			provider = n.Provider
			names = append(names, name)
		} else {
			names = append(names, n.Device)
		}
	}
	return strings.Join(names, ", ")
}

// LogEvents returns events that write to a logger, one line each: what carries a connection, and a
// rail that is back, at INFO; a lost rail, what is sent again, and a peer that must wait, at WARN;
// a failure at ERROR, with the fields of [FailedError]. Of one kind of event of one rail it writes
// at most one line a second; the next line's field held_back counts those it left out. The
// functions may be called concurrently, and the result may serve any number of virtual queue pairs.
func LogEvents(to *slog.Logger) Events {
	l := &eventLog{to: to, clock: time.Now, last: map[eventKey]*eventPace{}}
	return l.events()
}

// eventLog writes events to a logger.
type eventLog struct {
	to    *slog.Logger
	clock func() time.Time

	mu   sync.Mutex
	last map[eventKey]*eventPace
}

// eventKey is one kind of event of one rail.
type eventKey struct {
	kind string
	qp   uint32
	rail int
}

// eventPace is when an event of one kind was last written, and how many were left out since.
type eventPace struct {
	at   time.Time
	held int
}

const (
	// eventInterval is the least time between two lines of one kind of event of one rail.
	eventInterval = time.Second
	// maxEventKeys bounds the memory of an eventLog. With more rails than that in trouble within a
	// second it forgets what it has written, and may write one of them again.
	maxEventKeys = 4096
)

func (l *eventLog) events() Events {
	return Events{
		Connected: func(e ConnectedEvent) {
			l.write(slog.LevelInfo, eventKey{"connected", e.VirtualQP, 0}, "virtual_qp", e.VirtualQP,
				"nics", e.Carrier.String(), "scheme", e.Carrier.Scheme.String(),
				"failover", e.Carrier.Failover, "carrier", e.Carrier.NICs)
		},
		Rail: func(e RailEvent) {
			kind, level := "rail back", slog.LevelInfo
			args := []any{"virtual_qp", e.VirtualQP, "rail", e.Rail, "device", e.Device, "qp_num", e.QPNum}
			if e.Down {
				kind, level = "rail lost", slog.LevelWarn
				args = append(args, "cause", e.Cause)
			}
			l.write(level, eventKey{kind, e.VirtualQP, e.Rail}, args...)
		},
		Settled: func(e SettledEvent) {
			l.write(slog.LevelWarn, eventKey{"failover settled", e.VirtualQP, e.Rail}, "virtual_qp",
				e.VirtualQP, "rail", e.Rail, "device", e.Device, "arrived", e.Arrived, "again", e.Again,
				"bytes", e.Bytes, "took", e.Took)
		},
		Withheld: func(e WithheldEvent) {
			l.write(slog.LevelWarn, eventKey{"peer must wait for receives", e.VirtualQP, 0}, "virtual_qp",
				e.VirtualQP, "banked", e.Banked)
		},
		Failed: func(f *FailedError) {
			l.write(slog.LevelError, eventKey{"failed", f.QPNum, f.Rail}, "virtual_qp", f.QPNum, "err", f)
		},
	}
}

// write writes a line, unless one of the same key was written less than eventInterval ago.
func (l *eventLog) write(level slog.Level, key eventKey, args ...any) {
	held, ok := l.admit(key)
	if !ok {
		return
	}
	if held != 0 {
		args = append(args, "held_back", held)
	}
	l.to.Log(context.Background(), level, "ibverbx: "+key.kind, args...)
}

// admit reports whether a line may be written, and how many of its key were held back before.
func (l *eventLog) admit(key eventKey) (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	p := l.last[key]
	if p != nil && now.Sub(p.at) < eventInterval {
		p.held++
		return 0, false
	}
	if p == nil {
		if len(l.last) >= maxEventKeys {
			clear(l.last)
		}
		p = &eventPace{}
		l.last[key] = p
	}
	held, p.held, p.at = p.held, 0, now
	return held, true
}
