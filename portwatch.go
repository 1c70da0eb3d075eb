package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/failover"
	"ibverbx/verbs"
)

// portWatch receives what the NICs of a virtual CQ report about their ports, so that failover need
// not wait until retries are used up.
type portWatch struct {
	events chan verbs.Event // nil until a virtual queue pair has failover in force
	// wake has the same events for a goroutine that raises an event of the completion channel,
	// because the program may sleep there. nil if there is no channel.
	wake  chan verbs.Event
	awake chan struct{} // closed when the goroutine has ended
	stops []func()
	// states caches recent answers, because each of a thousand virtual queue pairs may ask.
	states []portState
}

// portState is a port's answer.
type portState struct {
	device verbs.DeviceID
	port   int
	at     time.Time
	down   error // nil if it is active
}

const (
	// portEvents is how many events of a NIC may arrive between two polls before some are lost.
	portEvents = 64
	// portStateFor is how long a port's answer is valid.
	portStateFor = time.Millisecond
)

// begin watches the NICs of a virtual CQ, whose channel may be nil.
func (w *portWatch) begin(devices []verbs.Device, channel *verbs.CompChannel) {
	if w.events != nil {
		return
	}
	w.events = make(chan verbs.Event, portEvents*len(devices))
	for _, dev := range devices {
		w.stops = append(w.stops, dev.Watch(w.events))
	}
	if channel == nil {
		return
	}
	w.wake, w.awake = make(chan verbs.Event, 2), make(chan struct{})
	for _, dev := range devices {
		w.stops = append(w.stops, dev.Watch(w.wake))
	}
	go func() {
		defer close(w.awake)
		for range w.wake {
			channel.Signal()
		}
	}()
}

// end stops watching.
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

// next takes the next event that the NICs have reported. lost says that the channel was full, so
// events may be lost; its last slot is reserved for the death of a NIC.
func (w *portWatch) next() (e verbs.Event, lost bool) {
	e = <-w.events
	return e, len(w.events) >= cap(w.events)-2
}

// forget drops the ports' answers.
func (w *portWatch) forget() { w.states = w.states[:0] }

// down returns why a port is not active; nil if it is.
func (w *portWatch) down(dev verbs.Device, port int, now time.Time) error {
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

// suspect is a device whose port was reported to be down, and not to be up again.
type suspect struct {
	device uint8
	since  time.Time
	down   error // the port's answer after PortTimeout; nil before
}

// portDown returns why the port of a device is not active; nil if it is.
func (x *recovery) portDown(dev verbs.Device) error {
	return x.ports.down(dev, int(x.cfg.Conn.port(dev)), x.line.clock())
}

// portActive reports whether the port of a device is active, and if so stops suspecting it.
func (x *recovery) portActive(dev verbs.Device) bool {
	if x.portDown(dev) != nil {
		return false
	}
	x.clearPort(uint8(dev.ID()))
	return true
}

// withPort adds the state of a port that is down to the cause of a loss, because a flush does not
// say why.
func (x *recovery) withPort(rl *rail, cause error) error {
	var status verbs.Status
	if x.cfg.Events.Rail != nil && (errors.As(cause, &status) || errors.Is(cause, errIdleErr)) {
		if down := x.portDown(rl.qp.Device()); down != nil {
			return fmt.Errorf("%w: %w", down, cause)
		}
	}
	return cause
}

// checkPorts asks all ports, because a report may have been lost, or arrived before this
// connection.
func (x *recovery) checkPorts() {
	asked := uint64(0)
	for _, rl := range x.rails.all {
		if asked&(1<<rl.device) != 0 {
			continue
		}
		asked |= 1 << rl.device
		if dev := rl.qp.Device(); x.watchesPort(rl.device) && !x.portActive(dev) {
			x.suspectPort(rl.device)
		}
	}
}

// handleEvent handles an event of a NIC, and reports whether it concerns the connection: a port has
// gone down, or come up, or a queue pair has failed, perhaps with nothing outstanding.
func (x *recovery) handleEvent(e verbs.Event) bool {
	device := uint8(e.Device.ID())
	switch e.Type {
	case verbs.EventPortErr, verbs.EventPortActive:
		if e.Port != int(x.cfg.Conn.port(e.Device)) {
			return false
		}
		if e.Type == verbs.EventPortActive {
			x.clearPort(device)
		} else {
			x.suspectPort(device)
		}
	case verbs.EventDeviceFatal, verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
		failed := func(rl *rail) bool { return rl.device == device && (!e.Type.IsQP() || rl.num == e.QPNum) }
		if !slices.ContainsFunc(x.rails.all, failed) {
			return false
		}
		x.suspectIdle()
	default:
		return false
	}
	return true
}

// watchesPort reports whether the connection uses the port of a device.
func (x *recovery) watchesPort(device uint8) bool {
	return x.cfg.PortTimeout >= 0 && x.rails.localDevs&(1<<device) != 0
}

// suspectPort records that the port of a device may be down.
func (x *recovery) suspectPort(device uint8) {
	if !x.watchesPort(device) || x.suspected(device) {
		return
	}
	x.suspects = append(x.suspects, suspect{device: device, since: x.line.clock()})
	x.degraded = true
}

// clearPort clears the suspicion of a device's port, and looks at the others again: this one can
// now replace them.
func (x *recovery) clearPort(device uint8) {
	if x.suspected(device) {
		x.suspects = slices.DeleteFunc(x.suspects, func(s suspect) bool { return s.device == device })
		x.again = true
	}
}

// suspected reports whether the port of a device may be down.
func (x *recovery) suspected(device uint8) bool {
	return slices.ContainsFunc(x.suspects, func(s suspect) bool { return s.device == device })
}

// checkSuspects takes out the rails of devices whose ports have been down for too long, if other
// rails can replace them. If none can, the retries go on: the link may come back before they are
// used up. A port stays suspected until it is up, and until then its rails do not count as
// replacements.
func (x *recovery) checkSuspects() {
	if len(x.suspects) == 0 {
		return
	}
	now := x.line.clock()
	for i := 0; i < len(x.suspects); i++ {
		s := &x.suspects[i]
		switch {
		case s.down != nil:
		case now.Sub(s.since) < x.cfg.PortTimeout:
			x.again = true // time passes even without completions
		default:
			if s.down = x.portDown(x.rails.onDevice(s.device).qp.Device()); s.down == nil {
				x.suspects = slices.Delete(x.suspects, i, i+1)
				i--
			}
		}
	}
	for _, s := range x.suspects {
		if s.down != nil && x.canLoseDevice(s.device, x.suspects) {
			x.loseRailsAt(s)
		}
	}
}

// loseRailsAt takes out the rails of a device whose port is down.
func (x *recovery) loseRailsAt(s suspect) {
	for _, rl := range x.rails.all {
		if rl.device == s.device && rl.works() {
			x.loseRail(rl, s.down)
		}
	}
}

// canLoseDevice reports whether the connection can do without the rails of a device, and without
// those of suspects.
func (x *recovery) canLoseDevice(device uint8, suspects []suspect) bool {
	left := [failover.Roles]int{}
	for _, rl := range x.rails.all {
		suspected := slices.ContainsFunc(suspects, func(s suspect) bool { return s.device == rl.device })
		if !rl.down && rl.device != device && !suspected {
			left[rl.role]++
		}
	}
	for _, rl := range x.rails.all {
		if rl.device == device && (!x.canLose(rl) && !rl.down || left[rl.role] == 0) {
			return false
		}
	}
	return true
}

// loseDevice takes out the rails of a device whose CQ has died, since there will be no more
// completions. It reports false, and changes nothing, if the connection cannot do without them. x
// may be nil.
func (x *recovery) loseDevice(device uint8, cause error) bool {
	if x == nil || !x.canLoseDevice(device, nil) {
		return false
	}
	for _, rl := range x.rails.all {
		if rl.device != device {
			continue
		}
		switch rl.back.state.Stage() {
		case failover.StageFlushed, failover.StageSettled:
			rl.closed = rl.closed || rl.qp.Close() == nil
		case failover.StageDying:
		default:
			x.loseRail(rl, cause)
		}
		rl.back.state.GiveUp()
	}
	return true
}
