package ibverbx

import (
	"slices"
	"time"
)

// later lists the virtual queue pairs that have something to do at a time, which no completion may
// announce. Whoever polls drives them. Who sleeps is woken by an event of the completion channel.
//
// Invariant: those listed have their time in VirtualQP.due, which is zero for all others. next is
// no later than the earliest of them.
type later struct {
	list  []*VirtualQP
	next  time.Time   // by their clock
	alarm *time.Timer // raises the event; nil where nobody can wait for one
	rings time.Time   // when it goes off, or went off
}

// touchAt touches a virtual queue pair at a time. A later call for it takes the place of an earlier
// one.
func (c *VirtualCQ) touchAt(q *VirtualQP, at, now time.Time) {
	l := &c.later
	if q.due.IsZero() {
		l.list = append(l.list, q)
	}
	q.due = at
	if len(l.list) == 1 || at.Before(l.next) {
		l.next = at
	}
	l.wake(c, now)
}

// touchDue touches those whose time has come.
func (c *VirtualCQ) touchDue() {
	l := &c.later
	if now := l.list[0].line.clock(); now.Before(l.next) {
		l.wake(c, now)
	} else {
		l.takeDue(c, now)
	}
}

func (l *later) takeDue(c *VirtualCQ, now time.Time) {
	left := l.list[:0]
	for _, q := range l.list {
		if !now.Before(q.due) {
			q.due = time.Time{}
			c.touch(q)
			continue
		}
		if len(left) == 0 || q.due.Before(l.next) {
			l.next = q.due
		}
		left = append(left, q)
	}
	clear(l.list[len(left):])
	l.list = left
	if len(left) != 0 {
		l.wake(c, now)
	}
}

// wake sets the alarm for the next, unless it goes off by then anyway.
func (l *later) wake(c *VirtualCQ, now time.Time) {
	if c.channel == nil {
		return
	}
	t, in := time.Now(), l.next.Sub(now)
	at := t.Add(in)
	switch {
	case t.Before(l.rings) && !at.Before(l.rings):
		return
	case l.alarm == nil:
		l.alarm = time.AfterFunc(in, c.channel.Signal)
	default:
		l.alarm.Reset(in)
	}
	l.rings = at
}

// forget drops a virtual queue pair that is closed.
func (l *later) forget(q *VirtualQP) {
	if !q.due.IsZero() {
		l.list, q.due = slices.DeleteFunc(l.list, func(of *VirtualQP) bool { return of == q }), time.Time{}
	}
}

// end drops all.
func (l *later) end() {
	if l.alarm != nil {
		l.alarm.Stop()
	}
	*l = later{}
}
