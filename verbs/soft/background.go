package soft

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Limits of what a post or a poll executes on its caller's goroutine; the worker does the rest.
// Waking a goroutine costs microseconds, an 8-byte write some 50 ns.
const (
	inlineRequests = 64
	inlineBytes    = 32 << 10
)

// A poll copies payloads in place of the worker, which would first have to wake, on another core,
// and would copy more slowly. It copies a payload of up to helpCopy bytes, a fragment of the usual
// size (some 30 µs here), and a longer one piece by piece while nothing else waits, up to helpMost
// bytes.
const (
	helpCopy = copyChunk
	helpMost = 4 << 20
)

// The worker serves the next queue pair after this many requests or bytes of one.
const (
	turnRequests = 32
	turnBytes    = 128 << 10
)

// background is the engine with one worker goroutine per NIC. A queue pair with something to
// execute is in its NIC's run queue, which is served round robin.
type background struct {
	f       *Fabric
	start   time.Time
	workers sync.WaitGroup
}

func newBackground(f *Fabric) *background { return &background{f: f, start: time.Now()} }

// bgState is the engine's part of a queue pair.
type bgState struct {
	queued bool // the queue pair is in its NIC's run queue
	next   *QP
	timers [timerKinds]timer
}

func (s *bgState) init(q *QP) {
	for k := range s.timers {
		s.timers[k] = timer{Of: timed{q, timerKind(k)}}
	}
}

// now returns the time since the engine's start in nanoseconds; never 0.
func (b *background) now() int64 { return int64(time.Since(b.start)) + 1 }

func (b *background) posted(q *QP) {
	if !q.runnable() || q.run.background.queued {
		return
	}
	if !q.dev.timed() {
		b.executeSmall(q, inlineRequests, inlineBytes)
	}
	b.ready(q)
}

// executeSmall executes requests of q without leaving the lock, up to a budget.
func (b *background) executeSmall(q *QP, requests, bytes int) {
	for requests > 0 && q.runnable() {
		n := q.head().Length
		if n > smallCopy || int(n) > bytes {
			return
		}
		bytes -= int(n)
		requests--
		b.f.execute(q)
	}
}

func (b *background) ready(q *QP) {
	if q.overdue() || q.unacknowledged() && q.run.wait == waitNone &&
		!q.run.background.timers[timerAck].IsArmed() {
		b.acknowledge(q)
	}
	if q.runnable() && !q.run.background.queued {
		q.dev.worker.enqueue(q)
		b.wake(q.dev)
	}
}

func (b *background) executed(q *QP) {
	if !q.unacknowledged() {
		return // its completion queue has overrun and q failed with it
	}
	s := q.core.SQ.At(q.core.SQ.Acked)
	if s.Mark == 0 {
		b.acknowledge(q)
	} else if t := &q.run.background.timers[timerAck]; !t.IsArmed() {
		b.arm(t, s.Mark)
	}
}

// acknowledge ends the requests of q whose acknowledgements have returned.
func (b *background) acknowledge(q *QP) {
	blocked := q.run.reads > 0
	for q.unacknowledged() {
		s := q.core.SQ.At(q.core.SQ.Acked)
		if s.Mark != 0 {
			if s.Mark > b.now() {
				b.arm(&q.run.background.timers[timerAck], s.Mark)
				break
			}
			if !s.Local && !q.linked() {
				if q.run.wait != waitPeer {
					b.f.awaitPeer(q)
				}
				break
			}
		}
		b.f.acknowledge(q)
	}
	if blocked && q.runnable() && !q.run.background.queued {
		q.dev.worker.enqueue(q)
		b.wake(q.dev)
	}
}

func (b *background) hide(q *QP, dir nic.Direction, due int64) bool {
	if len(q.hidden[dir]) > 0 {
		return true // stays in order
	}
	if due == 0 {
		return false
	}
	b.arm(&q.run.background.timers[timerArrive], due)
	return true
}

// arrive makes visible the completions of q's receives whose messages have arrived.
func (b *background) arrive(q *QP) {
	for len(q.hidden[nic.Recv]) > 0 {
		if due := q.hidden[nic.Recv][0].due; due > b.now() {
			b.arm(&q.run.background.timers[timerArrive], due)
			return
		}
		b.f.reveal(q, nic.Recv, 0)
	}
}

func (b *background) after(d time.Duration) int64 { return b.now() + int64(d) }

// awaitLate handles those of q's late messages and late data that are due, and arms the timer for
// the rest.
func (b *background) awaitLate(q *QP) {
	l := &q.late
	for len(l.placements) > 0 && l.placements[0].due <= b.now() {
		b.f.placeNext(q)
		b.f.mu.WakeQuiet()
	}
	for len(l.stragglers) > 0 && l.stragglers[0].due <= b.now() {
		b.f.arriveLate(q)
	}
	next := int64(math.MaxInt64)
	if len(l.placements) > 0 {
		next = l.placements[0].due
	}
	if len(l.stragglers) > 0 {
		next = min(next, l.stragglers[0].due)
	}
	if next != math.MaxInt64 {
		b.arm(&q.run.background.timers[timerLate], next)
	}
}

func (b *background) retryAfter(q *QP, d time.Duration) {
	t := &q.run.background.timers[timerRetry]
	if d == 0 {
		q.dev.worker.timers.Disarm(t)
		return
	}
	b.arm(t, b.now()+int64(d))
}

func (b *background) stopTimers(q *QP) {
	w := &q.dev.worker
	for k := range q.run.background.timers {
		if timerKind(k) == timerArrive && len(q.hidden[nic.Recv]) > 0 {
			continue // messages that have left still arrive
		}
		w.timers.Disarm(&q.run.background.timers[k])
	}
}

// arm sets a timer of a queue pair.
func (b *background) arm(t *timer, when int64) {
	d := t.Of.qp.dev
	d.worker.timers.Arm(t, when)
	d.worker.updateDue()
	if when < d.worker.wakeAt {
		b.wake(d)
	}
}

// fireDue fires the timers of a NIC that are due.
func (b *background) fireDue(w *worker) {
	for len(w.timers) > 0 {
		t := w.timers.Due(b.now())
		if t == nil {
			break
		}
		b.fire(t)
	}
	w.updateDue()
}

// hasWork reports, without the lock, whether a poller that found nothing can help a NIC's worker.
func (b *background) hasWork(w *worker) bool {
	if w.backlog.Load() != 0 {
		return true
	}
	due := w.dueAt.Load()
	return due != math.MaxInt64 && due <= b.now()
}

// fire performs the action of an expired timer.
func (b *background) fire(t *timer) {
	switch q := t.Of.qp; t.Of.kind {
	case timerRetry:
		b.f.timeout(q)
	case timerAck:
		b.acknowledge(q)
	case timerArrive:
		b.arrive(q)
	case timerLate:
		b.awaitLate(q)
	}
}

// close stops the workers and waits for them.
func (b *background) close() {
	b.f.mu.Lock()
	for _, d := range b.f.devices {
		if d.worker.started {
			b.wake(d)
		}
	}
	b.f.mu.Unlock()
	b.workers.Wait()
}

// help executes a few requests for a poller that found nothing, if the lock is free. The worker may
// take microseconds to wake, and two goroutines keep to simulated times better than one. It reports
// whether the lock was free.
func (f *Fabric) help(c *CQ) bool {
	if !f.mu.TryLock() {
		return false
	}
	b, w := f.engine.(*background), &c.dev.worker
	b.fireDue(w)
	if q := w.first; q != nil && b.mayHelp(q) {
		w.dequeue()
		switch {
		case q.run.partial:
			b.copyWhileAlone(c, q)
		case q.head().Length <= smallCopy && c.dev.bandwidth == 0:
			b.executeSmall(q, inlineRequests/4, inlineBytes/4)
		default:
			if f.execute(q) == copying {
				b.copyWhileAlone(c, q)
			}
		}
		b.ready(q)
	}
	f.mu.Unlock()
	return true
}

// mayHelp reports whether a poll may execute the head request of q, the first queue pair in the run
// queue. A poll begins a long request only if no other queue pair waits: several queue pairs are
// shared better if the worker takes the long ones.
func (b *background) mayHelp(q *QP) bool {
	d := q.dev
	alone := d.worker.last == q && d.bandwidth == 0
	return (q.run.partial || q.runnable() && q.head().Length <= helpCopy) && b.departure(d) == 0 ||
		alone && q.runnable()
}

// copyWhileAlone copies the payload of q's head request outside the lock, until all of it is copied
// or something else waits for the poll of c or for the worker. In that case the rest goes first in
// the run queue.
func (b *background) copyWhileAlone(c *CQ, q *QP) {
	f, w := b.f, &q.dev.worker
	q.run.partial = false
	for n := helpCopy; ; n += helpCopy {
		f.mu.Unlock()
		all := q.run.xfer.copySome(helpCopy)
		f.mu.Lock()
		if all {
			f.landed(q)
			return
		}
		if n >= helpMost || w.first != nil || c.core.Attention() {
			q.run.partial = true
			w.putBack(q)
			b.wake(q.dev)
			return
		}
	}
}

// serve executes one turn of q's requests. It releases the lock while it copies, and returns with
// the lock held.
func (b *background) serve(q *QP) {
	if q.run.partial {
		q.run.partial = false
		b.copyRest(q)
	}
	bytes, turn := 0, turnRequests
	if q.dev.bandwidth != 0 {
		turn = 1 // the wire is shared message by message
	}
	for range turn {
		if !q.runnable() || bytes > turnBytes {
			break
		}
		bytes += int(q.head().Length)
		b.execute(q)
	}
	b.ready(q)
}

// execute executes the head request of q. It releases the lock while it copies a large payload, and
// returns with the lock held.
func (b *background) execute(q *QP) {
	if b.f.execute(q) == copying {
		b.copyRest(q)
	}
}

// copyRest copies the rest of the payload of q's head request outside the lock.
func (b *background) copyRest(q *QP) {
	b.f.mu.Unlock()
	for !q.run.xfer.copySome(copyChunk) {
	}
	b.f.mu.Lock()
	b.f.landed(q)
}

var _ engine = (*background)(nil)
var _ verbs.Provider = (*Fabric)(nil)

// timerKind is the event that a timer triggers.
type timerKind uint8

const (
	timerRetry  timerKind = iota // a receiver was not ready, or the peer did not answer
	timerAck                     // the oldest acknowledgement has returned
	timerArrive                  // the oldest message in flight to a receive has arrived
	timerLate                    // a late message arrives, or late data is placed
	timerKinds
)

// timer is the timer of one event of a queue pair, which has one of each kind.
type timer = nic.Timer[timed]

// timed is the queue pair and the event that a timer belongs to.
type timed struct {
	qp   *QP
	kind timerKind
}

// precise reports whether a delay by the scheduler would spoil a simulated speed.
func (t timed) precise() bool { return t.kind != timerRetry }

// lookAhead is the time before the wire is free at which the next message may leave: long enough to
// copy it meanwhile, short enough that queue pairs share the wire in turn.
const lookAhead = int64(100 * time.Microsecond)

// timed reports whether the NIC simulates a speed.
func (d *Device) timed() bool { return d.bandwidth != 0 || d.latency != 0 }

// departure returns the time at which the next message may leave the NIC; 0 means now.
func (b *background) departure(d *Device) int64 {
	if d.bandwidth == 0 {
		return 0
	}
	if at := d.worker.wireFree - lookAhead; at > b.now() {
		return at
	}
	return 0
}

// transmit puts a message on the wire, which carries one after the other. The data of a read goes
// over the wire of the peer's NIC. The receiving side's bandwidth is not simulated.
func (b *background) transmit(q, peer *QP, s *nic.SendSlot) (arrive, ack int64) {
	latency := int64(max(q.dev.latency, peer.dev.latency))
	sender := q.dev
	if s.Answered() {
		sender = peer.dev
	}
	if latency == 0 && sender.bandwidth == 0 {
		return 0, 0
	}
	start := b.now()
	if s.Answered() {
		start += latency
	}
	start = max(start, sender.worker.wireFree)
	finish := start + wireTime(s.Length, sender.bandwidth)
	sender.worker.wireFree = finish
	if s.Answered() {
		return 0, finish + latency
	}
	return finish + latency, finish + 2*latency
}

// wireTime returns the nanoseconds that n bytes take on the wire.
func wireTime(n, bandwidth uint64) int64 {
	if bandwidth == 0 {
		return 0
	}
	hi, lo := bits.Mul64(n, uint64(time.Second))
	if hi >= bandwidth {
		return int64(time.Hour)
	}
	ns, _ := bits.Div64(hi, lo, bandwidth)
	return int64(ns)
}
