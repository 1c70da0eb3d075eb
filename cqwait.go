package ibverbx

import (
	"context"
	"fmt"
	"slices"
	"time"

	"ibverbx/internal/errwrap"
	"ibverbx/verbs"
)

var errNoChannel = fmt.Errorf("%w: the physical CQs were created without a common CompChannel: set "+
	"CQConfig.Channel", verbs.ErrNotSupported)

// retryInterval is how often Wait repeats posts that a NIC has refused for now, because no
// completion may wake it.
const retryInterval = time.Millisecond

// Wait blocks until there are completions to poll, or until ctx ends. It then returns ctx's error,
// with the text of its cause if it has one. It uses no processor while it sleeps.
func (c *VirtualCQ) Wait(ctx context.Context) error {
	c.enter()
	err := c.wait(ctx)
	c.exit()
	return err
}

func (c *VirtualCQ) wait(ctx context.Context) error {
	if ctx == nil {
		return c.error("wait for", fmt.Errorf("%w: no context", verbs.ErrInvalid))
	}
	if c.channel == nil && !c.closed {
		return c.error("wait for", errNoChannel)
	}
	if c.closed {
		if c.ready.Len() == 0 {
			return c.error("wait for", ErrClosed)
		}
		return nil
	}
	for {
		// Arm, poll once more, sleep: in any other order a completion that arrives in between wakes
		// nobody.
		for armed := range 2 {
			out := c.sink(nil)
			if err := c.takeAll(&out, -1); err != nil {
				return err
			}
			if c.ready.Len() != 0 {
				return nil
			}
			if armed == 0 {
				if err := c.arm("wait for", false); err != nil {
					return err
				}
			}
		}
		if err := c.sleep(ctx); err != nil {
			return err
		}
	}
}

// Arm asks for an event on [VirtualCQ.Events] when something new happens. It is for programs that
// wait in a select, for several virtual CQs or for something else besides. Call Arm, then Poll, and
// wait only if that returned nothing. An event is a reason to poll; there may be no completion.
// Such a program must poll every millisecond while [CQStats.Retrying] is not 0, as Wait does: a NIC
// has refused work for now, a virtual queue pair that has failed lingers, or a port is down. With
// failover, a port that goes down or comes up raises an event, too, armed or not.
func (c *VirtualCQ) Arm() error {
	c.enter()
	defer c.exit()
	return c.armFor(false)
}

// ArmSolicited is Arm for programs that wait only for errors, and for messages that the peer sends
// with [verbs.SendSolicited]. It saves events if every virtual queue pair of the CQ has a single
// queue pair. With several, the message that completes a solicited one may itself be unsolicited,
// such as late data of an earlier request on another queue pair; so ArmSolicited then does what Arm
// does.
func (c *VirtualCQ) ArmSolicited() error {
	c.enter()
	defer c.exit()
	return c.armFor(!slices.ContainsFunc(c.vqps, func(q *VirtualQP) bool { return q.pass == nil }))
}

func (c *VirtualCQ) armFor(solicitedOnly bool) error {
	if c.channel == nil {
		return c.error("arm", errNoChannel)
	}
	if c.closed {
		return c.error("arm", ErrClosed)
	}
	return c.arm("arm", solicitedOnly)
}

// Events returns the channel for the events that Arm asks for; nil if the physical CQs have no
// common CompChannel.
func (c *VirtualCQ) Events() <-chan struct{} {
	if c.channel == nil {
		return nil
	}
	return c.channel.Events()
}

// arm arms the physical CQs that have not died; op names the call in the error.
func (c *VirtualCQ) arm(op string, solicitedOnly bool) error {
	alive := 0
	for i := range c.cqs {
		if c.cqs[i].dead {
			continue
		}
		alive++
		if err := c.cqs[i].cq.Arm(solicitedOnly); err != nil {
			return c.error(op, fmt.Errorf("arm %s: %w", c.cqs[i].cq.Device().Name(), err))
		}
	}
	if alive == 0 {
		return c.error(op, fmt.Errorf("%w: every physical CQ has died", verbs.ErrDeviceGone))
	}
	return nil
}

func (c *VirtualCQ) sleep(ctx context.Context) error {
	if ctx.Err() != nil {
		return errwrap.ContextErr(ctx) // a select with both ready picks at random: prefer ctx
	}
	var again <-chan time.Time
	if len(c.touched) != 0 {
		timer := time.NewTimer(retryInterval)
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-c.channel.Events():
	case <-again:
	case <-ctx.Done():
		return errwrap.ContextErr(ctx)
	}
	return nil
}

// sleepOrPoll waits until there may be something new to poll, or until ctx ends: for an event if
// armed is set, and otherwise for the time between two polls.
func (c *VirtualCQ) sleepOrPoll(ctx context.Context, armed bool) {
	if armed {
		_ = c.sleep(ctx) // the caller checks ctx
		return
	}
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// later lists the virtual queue pairs that have something to do at a certain time, without a
// completion to announce it. Polling drives them; a sleeper is woken by an event of the completion
// channel.
//
// Invariant: a listed queue pair has its time in VirtualQP.due, which is zero for all others. next
// is no later than the earliest of these times.
type later struct {
	list  []*VirtualQP
	next  time.Time   // a time by the queue pairs' clock
	alarm *time.Timer // raises the event; nil if nobody can wait for one
	rings time.Time   // when the alarm goes off, or went off
}

// touchAt touches a virtual queue pair at a time. It replaces an earlier call for the same one.
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

// touchDue touches the virtual queue pairs that are due.
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

// wake sets the alarm for next, unless it goes off by then anyway.
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

// end drops all virtual queue pairs.
func (l *later) end() {
	if l.alarm != nil {
		l.alarm.Stop()
	}
	*l = later{}
}
