package ibverbx

import (
	"fmt"
	"slices"
	"time"

	"ibverbx/verbs"
)

// portWatch is what the NICs of a virtual CQ report of their ports. A virtual queue pair that
// offers failover need not wait there for the retries to be up.
type portWatch struct {
	events chan verbs.Event // nil until a virtual queue pair has failover in force
	stops  []func()
}

// portEvents is how many events of a NIC may come between two polls until some are lost.
const portEvents = 16

// watchPorts begins to listen to the NICs.
func (c *VirtualCQ) watchPorts() {
	if c.ports.events != nil {
		return
	}
	c.ports.events = make(chan verbs.Event, portEvents*len(c.cqs))
	for i := range c.cqs {
		c.ports.stops = append(c.ports.stops, c.cqs[i].cq.Device().Watch(c.ports.events))
	}
}

// end stops listening.
func (w *portWatch) end() {
	for _, stop := range w.stops {
		stop()
	}
	*w = portWatch{}
}

// hear handles what the NICs have reported.
func (c *VirtualCQ) hear() {
	lost := len(c.ports.events) >= cap(c.ports.events)-1
	for len(c.ports.events) != 0 {
		c.heard(<-c.ports.events)
	}
	if !lost {
		return
	}
	for i := range c.cqs {
		for _, q := range c.vqps {
			if !q.portActive(c.cqs[i].cq.Device()) {
				q.suspectPort(uint8(c.cqs[i].device))
			}
		}
	}
}

// heard handles one event. A CQ or a NIC that is dead says so when it is polled, and a queue pair
// that has failed by its completions.
func (c *VirtualCQ) heard(e verbs.Event) {
	if e.Type != verbs.EventPortErr && e.Type != verbs.EventPortActive {
		return
	}
	for _, q := range c.vqps {
		switch {
		case e.Port != int(q.cfg.Conn.port(e.Device)):
		case e.Type == verbs.EventPortErr:
			q.suspectPort(uint8(e.Device.ID()))
		case q.failover != nil:
			q.failover.clear(uint8(e.Device.ID()))
		}
	}
}

// suspect is a device whose port is down, and since when.
type suspect struct {
	device uint8
	since  time.Time
}

// suspectPort notes that the port of a device may be down.
func (q *VirtualQP) suspectPort(device uint8) {
	f := q.failover
	if f == nil || q.cfg.PortTimeout < 0 || q.send.rails.localDevs&(1<<device) == 0 ||
		slices.ContainsFunc(f.portsDown, func(s suspect) bool { return s.device == device }) {
		return
	}
	f.portsDown = append(f.portsDown, suspect{device, q.line.clock()})
	f.degraded = true
	q.cq.touch(q)
}

// clear forgets that the port of a device was down.
func (f *failover) clear(device uint8) {
	f.portsDown = slices.DeleteFunc(f.portsDown, func(s suspect) bool { return s.device == device })
}

// judgePorts takes the rails of devices out whose ports have been down for too long, where other
// rails can stand in. Where none can, the retries go on: the link may come back before they are up.
func (q *VirtualQP) judgePorts() {
	f := q.failover
	if len(f.portsDown) == 0 {
		return
	}
	q.cq.touch(q) // time passes without completions
	now := q.line.clock()
	over := func(s suspect) bool { return now.Sub(s.since) >= q.cfg.PortTimeout }
	for _, s := range f.portsDown {
		if over(s) && q.survivesDevice(s.device, f.portsDown) {
			q.losePort(s.device)
		}
	}
	f.portsDown = slices.DeleteFunc(f.portsDown, over)
}

// losePort takes the rails of a device out if its port is down.
func (q *VirtualQP) losePort(device uint8) {
	dev := q.cq.physical(verbs.DeviceID(device)).cq.Device()
	if q.portActive(dev) {
		return
	}
	cause := fmt.Errorf("%s port %d is down", dev.Name(), q.cfg.Conn.port(dev))
	for _, rl := range q.send.rails.all {
		if rl.device == device && rl.works() {
			q.loseRail(rl, cause)
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
