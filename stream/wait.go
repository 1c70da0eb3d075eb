package stream

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// parkTime is how long run leaves progress to pollers before it looks whether there still are
	// any.
	parkTime = 200 * time.Microsecond
	// maxPollers bounds the calls that make progress in place at once. Two are the two ends of a
	// stream within one process; more would only take the processor from each other.
	maxPollers = 2
	// maxMisses bounds how rarely a link polls: see spinner.
	maxMisses = 6
)

// run makes progress while nobody else does.
func (c *carrier) run(ctx context.Context) {
	defer close(c.ended)
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	polled := func() bool { return c.pollers.Load() != 0 }
	for ctx.Err() == nil {
		if c.w.WaitFor(ctx, 0, polled) == nil {
			c.park(ctx, tick)
		}
	}
}

// park leaves progress to the pollers until the last one has been gone for a while, or a call is
// about to sleep.
func (c *carrier) park(ctx context.Context, tick *time.Timer) {
	c.parked.Store(true)
	defer c.parked.Store(false)
	for {
		before := c.polls.Load()
		tick.Reset(parkTime)
		select {
		case <-c.kicked:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if c.pollers.Load() == 0 && c.polls.Load() == before {
			return
		}
	}
}

// kick makes run take over, at the latest after parkTime.
func (c *carrier) kick() {
	if c.parked.Load() {
		select {
		case c.kicked <- struct{}{}:
		default:
		}
	}
}

// waiter is where one call waits for a change.
type waiter struct {
	ready  atomic.Bool // something has changed since the call last looked
	asleep atomic.Bool
	wake   chan struct{}
}

// notify tells the call, if there is one, to look again.
func (w *waiter) notify() {
	w.ready.Store(true)
	if w.asleep.Load() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// await returns when notify was called after w.ready was last cleared. It makes progress in place
// for a time, and then sleeps.
func (l *link) await(w *waiter) {
	c := l.carrier
	if l.cfg.Spin > 0 && l.spinner.may() && c.beginPolling() {
		ready := c.poll(w, l.cfg.Spin)
		c.endPolling()
		if l.spinner.ended(ready); ready {
			return
		}
	}
	w.asleep.Store(true)
	c.sleepers.Add(1)
	c.kick()
	for !w.ready.Load() { // the channel may hold an earlier wake-up
		<-w.wake
	}
	c.sleepers.Add(-1)
	w.asleep.Store(false)
}

// beginPolling reports whether one more call may make progress in place. A race may let in one too
// many; counting first and looking then would make run park for a call that sleeps.
func (c *carrier) beginPolling() bool {
	if c.pollers.Load() >= maxPollers {
		return false
	}
	c.pollers.Add(1)
	return true
}

// endPolling ends what beginPolling began. The last poller leaves progress to run if others sleep.
func (c *carrier) endPolling() {
	c.polls.Add(1)
	if c.pollers.Add(-1) == 0 && c.sleepers.Load() != 0 {
		c.kick()
	}
}

// poll makes progress until w is ready or the time is over. It reports whether w is ready.
func (c *carrier) poll(w *waiter, spin time.Duration) bool {
	var began time.Time
	for idle := 0; !w.ready.Load(); {
		if c.w.Progress() != 0 {
			idle = 0
			continue
		}
		// A goroutine of this process may have to bring what the call waits for. With a call in
		// every fourth round, 8 bytes there and back took 2.7 in place of 2.4 µs over soft, and 39
		// in place of 31 over roce.
		runtime.Gosched()
		if idle++; idle%16 == 0 { // the clock costs as much as a round, and most calls need fewer
			if now := time.Now(); began.IsZero() {
				began = now
			} else if now.Sub(began) >= spin {
				return w.ready.Load()
			}
		}
	}
	return true
}

// spinner decides whether a call that waits on a link polls before it sleeps. That pays if the peer
// runs at the same time. After a call that has polled in vain, the next one sleeps at once, then
// the next three, seven, and so on, until polling helps again: on busy processors it takes from the
// peer the time that it needs to answer.
type spinner struct {
	misses atomic.Int32 // calls in a row that have polled in vain
	skip   atomic.Int32 // calls that sleep at once before the next one polls
}

// may reports whether the next call polls.
func (s *spinner) may() bool { return s.skip.Load() <= 0 || s.skip.Add(-1) < 0 }

// ended says whether a call has polled with success.
func (s *spinner) ended(ready bool) {
	if ready {
		if s.misses.Load() != 0 {
			s.misses.Store(0)
		}
		return
	}
	s.skip.Store(1<<min(s.misses.Add(1), maxMisses) - 1)
}

// lineup is the writers of a link that wait for something shared: first come, first served. Waking
// all of them for each piece that is free would cost more than the pieces carry. So one is woken,
// and wakes the next when it has got what it wanted, or does not want it any more.
type lineup struct {
	n     atomic.Int32 // of list and woken
	mu    sync.Mutex
	list  []*Conn
	woken []*Conn // have a turn that they have not used or passed on
}

// add lists a stream whose writer waits, if it is not listed.
func (q *lineup) add(c *Conn) {
	q.mu.Lock()
	defer q.mu.Unlock()
	take(&q.woken, c)
	if !slices.Contains(q.list, c) {
		q.list = append(q.list, c)
	}
	q.n.Store(int32(len(q.list) + len(q.woken)))
}

// next wakes the first writer.
func (q *lineup) next() {
	if q.n.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) != 0 {
		c := q.list[0]
		q.list = slices.Delete(q.list, 0, 1)
		q.woken = append(q.woken, c)
		c.out.wait.notify()
	}
}

// remove says that a stream's writer does not wait any more, and reports whether it was woken.
func (q *lineup) remove(c *Conn) (woken bool) {
	if q.n.Load() == 0 {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	take(&q.list, c)
	woken = take(&q.woken, c)
	q.n.Store(int32(len(q.list) + len(q.woken)))
	return woken
}

// leave does the same, and passes the turn on.
func (q *lineup) leave(c *Conn) {
	if q.remove(c) {
		q.next()
	}
}

// take removes a stream from a list, and reports whether it was there.
func take(list *[]*Conn, c *Conn) bool {
	i := slices.Index(*list, c)
	if i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	return i >= 0
}
