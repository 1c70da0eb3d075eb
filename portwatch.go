package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/verbs"
)

// portWatch is what the NICs of a virtual CQ report of their ports. A virtual queue pair that
// offers failover need not wait there for the retries to be up.
type portWatch struct {
	events chan verbs.Event // nil until a virtual queue pair has failover in force
	// wake has the same events for a goroutine that raises an event of the completion channel:
	// somebody may sleep there. Nil where there is none.
	wake  chan verbs.Event
	awake chan struct{} // closed when the goroutine has ended
	stops []func()
	// states are the answers of the last moment: each of a thousand virtual queue pairs asks.
	states []portState
}

// portState is what a port has answered.
type portState struct {
	device verbs.DeviceID
	port   int
	at     time.Time
	down   error // nil if it is active
}

const (
	// portEvents is how many events of a NIC may come between two polls until some are lost.
	portEvents = 64
	// portStateFor is for how long the answer of a port counts.
	portStateFor = time.Millisecond
)

// watchPorts begins to listen to the NICs.
func (c *VirtualCQ) watchPorts() {
	w := &c.ports
	if w.events != nil {
		return
	}
	w.events = make(chan verbs.Event, portEvents*len(c.cqs))
	for i := range c.cqs {
		w.stops = append(w.stops, c.cqs[i].cq.Device().Watch(w.events))
	}
	if c.channel == nil {
		return
	}
	w.wake, w.awake = make(chan verbs.Event, 2), make(chan struct{})
	for i := range c.cqs {
		w.stops = append(w.stops, c.cqs[i].cq.Device().Watch(w.wake))
	}
	go func() {
		defer close(w.awake)
		for range w.wake {
			c.channel.Signal()
		}
	}()
}

// end stops listening.
func (w *portWatch) end() {
	for _, stop := range w.stops {
		stop()
	}
	if w.wake != nil {
		close(w.wake)
		<-w.awake
	}
	*w = portWatch{}
}

// hear handles what the NICs have reported.
func (c *VirtualCQ) hear() {
	lost := false
	for len(c.ports.events) != 0 {
		c.heard(<-c.ports.events)
		// It was full before, or nearly: the last place is kept for a NIC's death.
		lost = lost || len(c.ports.events) >= cap(c.ports.events)-2
	}
	if lost {
		for _, q := range c.vqps {
			q.lookAtPorts()
		}
	}
}

// heard handles one event. A CQ or a NIC that is dead says so when it is polled, and a queue pair
// that has failed by its completions.
func (c *VirtualCQ) heard(e verbs.Event) {
	if e.Type != verbs.EventPortErr && e.Type != verbs.EventPortActive {
		return
	}
	c.ports.states = c.ports.states[:0]
	for _, q := range c.vqps {
		switch {
		case e.Port != int(q.cfg.Conn.port(e.Device)):
		case e.Type == verbs.EventPortErr:
			q.suspectPort(uint8(e.Device.ID()))
		default:
			q.clearPort(uint8(e.Device.ID()))
		}
	}
}

// portDown is why a port is not active; nil if it is.
func (c *VirtualCQ) portDown(dev verbs.Device, port int, now time.Time) error {
	w := &c.ports
	w.states = slices.DeleteFunc(w.states, func(s portState) bool {
		return s.at.After(now) || now.Sub(s.at) >= portStateFor
	})
	for _, s := range w.states {
		if s.device == dev.ID() && s.port == port {
			return s.down
		}
	}
	attr, err := dev.QueryPort(port)
	switch {
	case errors.Is(err, verbs.ErrDeviceGone):
		err = fmt.Errorf("%s: %w", dev.Name(), verbs.ErrDeviceGone)
	case err != nil:
		err = fmt.Errorf("%s port %d does not say whether it is up: %w", dev.Name(), port, err)
	case attr.State != verbs.PortActive:
		err = fmt.Errorf("%s port %d is down", dev.Name(), port)
	}
	w.states = append(w.states, portState{dev.ID(), port, now, err})
	return err
}

// portDown is why the port of a device is not active; nil if it is.
func (q *VirtualQP) portDown(dev verbs.Device) error {
	return q.cq.portDown(dev, int(q.cfg.Conn.port(dev)), q.line.clock())
}

// portActive reports whether the port of a device is active; then nothing speaks against it any
// more.
func (q *VirtualQP) portActive(dev verbs.Device) bool {
	if q.portDown(dev) != nil {
		return false
	}
	q.clearPort(uint8(dev.ID()))
	return true
}

// suspect is a device whose port was reported to be down, and not to be up again.
type suspect struct {
	device uint8
	since  time.Time
	down   error // what the port has said after PortTimeout; nil before
}

// lookAtPorts asks all ports, where a report was lost or came too early to be heard.
func (q *VirtualQP) lookAtPorts() {
	for i := range q.cq.cqs {
		dev := q.cq.cqs[i].cq.Device()
		if q.watchesPort(uint8(dev.ID())) && !q.portActive(dev) {
			q.suspectPort(uint8(dev.ID()))
		}
	}
}

// watchesPort reports whether it matters that the port of a device is down.
func (q *VirtualQP) watchesPort(device uint8) bool {
	return q.failover != nil && q.cfg.PortTimeout >= 0 && q.send.rails.localDevs&(1<<device) != 0
}

// suspectPort notes that the port of a device may be down.
func (q *VirtualQP) suspectPort(device uint8) {
	if !q.watchesPort(device) || q.failover.suspects(device) {
		return
	}
	f := q.failover
	f.portsDown = append(f.portsDown, suspect{device: device, since: q.line.clock()})
	f.degraded = true
	q.cq.touch(q)
}

// clearPort forgets that the port of a device was down. Others are judged again: it can stand in.
func (q *VirtualQP) clearPort(device uint8) {
	if f := q.failover; f != nil && f.suspects(device) {
		f.portsDown = slices.DeleteFunc(f.portsDown, func(s suspect) bool { return s.device == device })
		q.cq.touch(q)
	}
}

// suspects reports whether the port of a device may be down.
func (f *failover) suspects(device uint8) bool {
	return slices.ContainsFunc(f.portsDown, func(s suspect) bool { return s.device == device })
}

// judgePorts takes the rails of devices out whose ports have been down for too long, where others
// can stand in. Where none can, the retries go on: the link may come back before they are up. A
// port stays suspected until it is up, so that it stands in for no other.
func (q *VirtualQP) judgePorts() {
	f := q.failover
	if len(f.portsDown) == 0 {
		return
	}
	now := q.line.clock()
	for i := 0; i < len(f.portsDown); i++ {
		s := &f.portsDown[i]
		switch {
		case s.down != nil:
		case now.Sub(s.since) < q.cfg.PortTimeout:
			q.cq.touch(q) // time passes without completions
		default:
			if s.down = q.portDown(q.cq.physical(verbs.DeviceID(s.device)).cq.Device()); s.down == nil {
				f.portsDown = slices.Delete(f.portsDown, i, i+1)
				i--
			}
		}
	}
	for _, s := range f.portsDown {
		if s.down != nil && q.survivesDevice(s.device, f.portsDown) {
			q.losePort(s)
		}
	}
}

// losePort takes the rails of a device out whose port is down.
func (q *VirtualQP) losePort(s suspect) {
	for _, rl := range q.send.rails.all {
		if rl.device == s.device && rl.works() {
			q.loseRail(rl, s.down)
		}
	}
}

// survivesDevice reports whether the connection can do without the rails of a device, and without
// those of suspects.
func (q *VirtualQP) survivesDevice(device uint8, suspects []suspect) bool {
	if q.failover == nil {
		return false
	}
	left := [roles]int{}
	for _, rl := range q.send.rails.all {
		suspected := slices.ContainsFunc(suspects, func(s suspect) bool { return s.device == rl.device })
		if !rl.down && rl.device != device && !suspected {
			left[rl.role]++
		}
	}
	for _, rl := range q.send.rails.all {
		if rl.device == device && (!q.survives(rl) && !rl.down || left[rl.role] == 0) {
			return false
		}
	}
	return true
}

// works reports whether a rail carries work, or waits for its peer to carry some.
func (r *rail) works() bool { return !r.down || r.recovery.stage >= railReady }
