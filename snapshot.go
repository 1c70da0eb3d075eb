package ibverbx

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/errwrap"
	"ibverbx/verbs"
)

// Snapshot is the state of a virtual CQ and of its virtual queue pairs at one moment.
type Snapshot struct {
	At  time.Time    `json:"at"` // when it was taken, by the wall clock
	CQ  CQStats      `json:"cq"`
	QPs []QPSnapshot `json:"qps"`
	// Closed has the sums of the counters of virtual queue pairs that were closed, so that the sum
	// of all counters never falls: see [Stats.Add].
	Closed Stats `json:"closed"`
}

// QPSnapshot is the part of a [Snapshot] about one virtual queue pair.
type QPSnapshot struct {
	Num   uint32 `json:"num"` // [VirtualQP.Num]
	Stats Stats  `json:"stats"`
	Err   string `json:"err,omitempty"` // [VirtualQP.Err], as text
}

// Total returns the sums of all counters, of closed virtual queue pairs too: see [Stats.Add].
func (s *Snapshot) Total() Stats {
	var total Stats
	total.Add(&s.Closed)
	for i := range s.QPs {
		total.Add(&s.QPs[i].Stats)
	}
	return total
}

// Add adds the counters and the present amounts of o to s, for sums over virtual queue pairs. Of
// the rails s has one entry for each device, without the number of a queue pair; Down says that one
// of its rails is down. Scheme, State and Failover are those of o.
func (s *Stats) Add(o *Stats) {
	s.Scheme, s.State, s.Failover = o.Scheme, o.State, o.Failover
	s.Sends += o.Sends
	s.SendsCompleted += o.SendsCompleted
	s.SendsWaiting += o.SendsWaiting
	s.SendWindow += o.SendWindow
	s.SendRing += o.SendRing
	s.Recvs += o.Recvs
	s.RecvsCompleted += o.RecvsCompleted
	s.RecvWindow += o.RecvWindow
	s.RecvRing += o.RecvRing
	s.RingsGrown += o.RingsGrown
	s.Markers += o.Markers
	s.NumbersSent += o.NumbersSent
	s.NumbersOpen += o.NumbersOpen
	s.OutOfOrder += o.OutOfOrder
	s.Banked += o.Banked
	s.BankedTotal += o.BankedTotal
	s.StaleEvents += o.StaleEvents
	s.RailsLost += o.RailsLost
	s.RailsBack += o.RailsBack
	s.Reposted += o.Reposted
	for i := range o.Rails {
		s.rail(o.Rails[i].Device).add(&o.Rails[i])
	}
	if o.Timing != nil {
		if s.Timing == nil {
			s.Timing = &Timing{}
		}
		s.Timing.add(o.Timing)
	}
}

// rail returns the entry of a device, which it makes if there is none.
func (s *Stats) rail(device string) *RailStats {
	for i := range s.Rails {
		if s.Rails[i].Device == device {
			return &s.Rails[i]
		}
	}
	s.Rails = append(s.Rails, RailStats{Device: device})
	return &s.Rails[len(s.Rails)-1]
}

// add adds the figures of another rail of the same device.
func (r *RailStats) add(o *RailStats) {
	r.Down = r.Down || o.Down
	r.Bytes += o.Bytes
	r.Fragments += o.Fragments
	r.Notifications += o.Notifications
	r.Outstanding += o.Outstanding
	r.Limit += o.Limit
	r.Recvs += o.Recvs
	r.RecvLimit += o.RecvLimit
	r.Rate += o.Rate
	r.Errors += o.Errors
	r.Refused += o.Refused
}

// AddCounters is Add for a virtual queue pair that was closed: it leaves out the present amounts,
// which end with it.
func (s *Stats) AddCounters(o *Stats) {
	kept := *o
	kept.Rails = slices.Clone(o.Rails)
	kept.keepCounters()
	s.Add(&kept)
}

// keepCounters drops the present amounts.
func (s *Stats) keepCounters() {
	s.State, s.Failover, s.NumbersSent = verbs.StateReset, false, 0
	s.SendsWaiting, s.SendWindow, s.SendRing, s.RecvWindow, s.RecvRing = 0, 0, 0, 0, 0
	s.NumbersOpen, s.OutOfOrder, s.Banked = 0, 0, 0
	for i := range s.Rails {
		r := &s.Rails[i]
		*r = RailStats{Device: r.Device, Bytes: r.Bytes, Fragments: r.Fragments,
			Notifications: r.Notifications, Errors: r.Errors, Refused: r.Refused}
	}
}

// snapshots passes snapshots from the owner of a virtual CQ to other goroutines.
//
// Invariant: while next is not nil, asked is set or the owner is about to close next.
type snapshots struct {
	asked atomic.Bool // the owner's next poll takes a snapshot

	mu    sync.Mutex
	next  chan struct{} // closed when the snapshot that was asked for is there; nil if none was
	last  Snapshot      // the latest; its time is zero before the first
	ended bool          // the virtual CQ is closed, and last is final
	// traces says that the next snapshot has the trace too; trace is the latest, nil if there is
	// none.
	traces bool
	trace  *Trace
}

// Snapshot returns the state of the virtual CQ and of its virtual queue pairs. Unlike Stats it may
// be called from any goroutine: it is for monitoring. It asks the owner, whose next Poll, Wait or
// other call that polls takes the snapshot, and waits for that; an owner that sleeps in Wait is
// woken. If ctx ends first, because the owner does not poll, Snapshot returns the latest snapshot,
// however old: see [Snapshot].At. If there is none, it returns ctx's error. Of a closed virtual CQ
// it returns the last state. The owner itself must not call it: nobody would poll meanwhile.
func (c *VirtualCQ) Snapshot(ctx context.Context) (Snapshot, error) {
	s := &c.snapshots
	err := c.ask(ctx, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.last.At.IsZero() {
		return Snapshot{}, c.error("snapshot of", err)
	}
	return s.last, nil
}

// ErrNoTrace means that no virtual queue pair of a virtual CQ records events: set [Config.Trace].
var ErrNoTrace = errors.New("no virtual queue pair records events: set Config.Trace")

// Trace returns the last events of the virtual queue pairs that have [Config.Trace], also of those
// that were closed. It asks the owner for a copy, and behaves like [VirtualCQ.Snapshot], but an old
// copy is no answer: if ctx ends first, Trace returns its error. What it returns is the caller's
// own. If there was no such virtual queue pair, the error is [ErrNoTrace]. Of a closed virtual CQ
// it returns the events up to the end, without Rails.
func (c *VirtualCQ) Trace(ctx context.Context) (*Trace, error) {
	if err := c.ask(ctx, true); err != nil {
		return nil, c.error("trace of", err)
	}
	c.snapshots.mu.Lock()
	shared := c.snapshots.trace // which nobody writes
	c.snapshots.mu.Unlock()
	if shared == nil {
		return nil, c.error("trace of", ErrNoTrace)
	}
	t := *shared
	t.Events, t.Rails = slices.Clone(t.Events), slices.Clone(t.Rails)
	return &t, nil
}

// ask asks the owner for a snapshot, with the trace or without, and waits until it is there.
func (c *VirtualCQ) ask(ctx context.Context, trace bool) error {
	s := &c.snapshots
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return nil
	}
	if s.next == nil {
		s.next = make(chan struct{})
	}
	next := s.next
	s.traces = s.traces || trace
	s.asked.Store(true)
	s.mu.Unlock()
	if c.channel != nil {
		c.channel.Signal()
	}
	select {
	case <-next:
		return nil
	case <-ctx.Done():
		return errwrap.ContextErr(ctx)
	}
}

// takeTrace returns a copy of the events; nil if there are none.
func (c *VirtualCQ) takeTrace() *Trace {
	if c.recorder == nil || c.recorder.events == nil {
		return nil
	}
	t := c.recorder.copied()
	for _, q := range c.vqps {
		if q.observer == nil || !q.observer.events {
			continue
		}
		for i, rl := range q.send.rails.all {
			t.Rails = append(t.Rails, TraceRail{VirtualQP: q.num, Rail: i, Device: rl.qp.Device().Name(),
				QPNum: rl.num, PeerQPNum: rl.peerNum})
		}
	}
	return t
}

// takeSnapshot answers those who have asked; ended says that the virtual CQ is being closed.
func (c *VirtualCQ) takeSnapshot(ended bool) {
	s := &c.snapshots
	s.asked.Store(false) // whoever asks from here on asks again
	shot := Snapshot{At: time.Now(), CQ: cqStats(c), QPs: make([]QPSnapshot, 0, len(c.vqps))}
	shot.Closed.Add(&c.gone)
	for _, q := range c.vqps {
		one := QPSnapshot{Num: q.num, Stats: qpStats(q)}
		if err := q.Err(); err != nil {
			one.Err = err.Error()
		}
		shot.QPs = append(shot.QPs, one)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.traces || ended {
		s.trace, s.traces = c.takeTrace(), false
	}
	s.last, s.ended = shot, ended
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}
