package roce

import (
	"time"

	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/rc"
)

// timer is the time at which a queue pair's engine wants to be called. Each queue pair has one.
type timer = nic.Timer[*QP]

// timers are the timers of a NIC's queue pairs, guarded by the NIC's lock.
//
// A postponed timer keeps its place in the heap, and moves when it comes up, because almost every
// packet that arrives postpones one.
type timers struct {
	dev   *Device
	heap  nic.TimerHeap[*QP]
	alarm alarm
	next  int64 // when the alarm goes off; rc.Never if it is not set
}

func (t *timers) init(d *Device) {
	t.dev, t.next = d, rc.Never
	t.alarm = time.AfterFunc(time.Hour, d.tick)
	t.alarm.Stop()
}

func (t *timers) stop() { t.alarm.Stop() }

// arm sets a timer.
func (t *timers) arm(x *timer, when int64) {
	switch {
	case x.IsArmed() && x.When <= when:
		return // it is checked again then
	case when == rc.Never:
		return
	}
	t.heap.Arm(x, when)
	t.wind()
}

// disarm stops a timer.
func (t *timers) disarm(x *timer) { t.heap.Disarm(x) }

// wind sets the alarm to the first timer.
func (t *timers) wind() {
	if first := t.heap.First(rc.Never); first < t.next {
		t.next = first
		t.alarm.Reset(time.Duration(t.next - t.dev.now()))
	}
}

// isDue reports whether an engine must be called. If none must, it sets the alarm again.
func (t *timers) isDue() bool {
	t.next = rc.Never
	now := t.dev.now()
	for x := t.heap.Due(now); x != nil; x = t.heap.Due(now) {
		when := x.Of.engine.Deadline()
		t.heap.Arm(x, max(when, now))
		if when <= now {
			return true
		}
	}
	t.wind()
	return false
}

// tick calls the engines that are due. It first receives the waiting packets: if the process did
// not run for a while, they may contain the answers that the engines wait for.
func (d *Device) tick() {
	d.mu.Lock()
	due := d.timers.isDue()
	d.mu.Unlock()
	if !due {
		return
	}
	_ = d.recv.receive()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.core.Closed != "" {
		return
	}
	t := &d.timers
	now := d.now()
	for x := t.heap.Due(now); x != nil; x = t.heap.Due(now) {
		q := x.Of
		if q.engine.Deadline() <= now {
			q.engine.Tick(now)
		}
		q.transmit()
	}
	t.wind()
}
