package ibverbx

import (
	"slices"
	"time"
)

// later lists the virtual queue pairs that have something to do at a time, which no completion may
// announce. Whoever polls drives them. Who sleeps is woken by an event of the completion channel.
type later struct {
	list  []appointment
	alarm *time.Timer // raises the event; nil where nobody can wait for one
	rings time.Time   // when it goes off, or went off
}

// appointment is when a virtual queue pair is to be touched, by its own clock.
type appointment struct {
	vqp *VirtualQP
	at  time.Time
}

// touchAt touches a virtual queue pair at a time, which is so far away. A later call for it takes
// the place of an earlier one.
func (c *VirtualCQ) touchAt(q *VirtualQP, at time.Time, in time.Duration) {
	l := &c.later
	if i := slices.IndexFunc(l.list, func(a appointment) bool { return a.vqp == q }); i >= 0 {
		l.list[i].at = at
	} else {
		l.list = append(l.list, appointment{q, at})
	}
	l.wake(c, in)
}

// wake sets the alarm, unless it goes off earlier anyway.
func (l *later) wake(c *VirtualCQ, in time.Duration) {
	now := time.Now()
	at := now.Add(in)
	switch {
	case c.channel == nil || now.Before(l.rings) && !at.Before(l.rings):
		return
	case l.alarm == nil:
		l.alarm = time.AfterFunc(in, c.channel.Signal)
	default:
		l.alarm.Reset(in)
	}
	l.rings = at
}

// touchDue touches those whose time has come, and sets the alarm for the others.
func (c *VirtualCQ) touchDue() {
	l, left := &c.later, c.later.list[:0]
	for _, a := range l.list {
		if in := a.at.Sub(a.vqp.line.clock()); in > 0 {
			left = append(left, a)
			l.wake(c, in)
			continue
		}
		c.touch(a.vqp)
	}
	clear(l.list[len(left):])
	l.list = left
}

// forget drops the appointment of a virtual queue pair that is closed.
func (l *later) forget(q *VirtualQP) {
	l.list = slices.DeleteFunc(l.list, func(a appointment) bool { return a.vqp == q })
}

// end drops all.
func (l *later) end() {
	if l.alarm != nil {
		l.alarm.Stop()
	}
	*l = later{}
}
