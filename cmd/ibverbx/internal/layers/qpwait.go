package layers

import (
	"context"
	"runtime"
	"time"
)

const (
	// qpIdle is how many polls that bring nothing pass before the goroutine yields its core: a
	// software NIC of this process may need it.
	qpIdle = 8
	// qpCheck is how many turns pass between looks whether a busy round has to end.
	qpCheck = 4096
)

// Progress polls, and says how many completions that brought.
func (q *QueuePair) Progress() int {
	if q.task.Take > q.expected && !q.failed {
		if err := q.postReceives(); err != nil && q.broken == nil {
			q.broken = err
		}
	}
	n, err := q.poll()
	if err != nil && q.broken == nil {
		q.broken = err
	}
	return n
}

// poll handles up to a batch of completions: all of them, whatever is wrong with one, for each has
// to be accounted for. The error is of the poll; what is wrong with a completion is in broken.
func (q *QueuePair) poll() (int, error) {
	n, err := q.cq.Poll(q.wcs)
	for i := range n {
		wc := &q.wcs[i]
		var wrong error
		if wc.ID&recvBit == 0 {
			wrong = q.sent(wc)
		} else {
			wrong = q.came(wc)
		}
		if wrong != nil && q.broken == nil {
			q.broken = wrong
		}
	}
	return n, err
}

// WaitFor makes progress until done says so, or ctx ends.
func (q *QueuePair) WaitFor(ctx context.Context, every time.Duration, done func() bool) error {
	return waitFor(ctx, every, done, q)
}

// RunQueuePairs plays a round at both ends of a queue pair in this goroutine: where NICs are
// software they need the cores themselves. A part that is cut short shortens the other end's.
func RunQueuePairs(ctx context.Context, a, b *End) error {
	both := func() bool {
		for i, e := range [...]*End{a, b} {
			e.glance()
			if e.err == nil && !e.Over() {
				e.err = e.play()
			}
			if e.err != nil {
				return true
			}
			if n, other := e.toSend(), [...]*End{b, a}[i]; n < other.task.Take {
				other.Expect(n)
			}
		}
		return a.Over() && b.Over()
	}
	err := waitFor(ctx, otherwise, both, a.QueuePair(), b.QueuePair())
	for _, e := range [...]*End{a, b} {
		if e.err != nil {
			return e.err
		}
	}
	return err
}

// waitFor makes progress at queue pairs of one spin until done says so, or ctx ends. It polls, lets
// others have the core, and sleeps when spin is over, for every at most;
// a negative spin sleeps at once.
func waitFor(ctx context.Context, every time.Duration, done func() bool, qps ...*QueuePair) error {
	idle, spin := 0, qps[0].spin
	var idleSince time.Time
	for turn := 1; !done(); turn++ {
		if turn%qpCheck == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		moved := 0
		for _, q := range qps {
			moved += q.Progress()
		}
		if moved > 0 {
			idle = 0
			continue
		}
		idle++
		if spin >= 0 {
			if idle == 1 {
				idleSince = time.Now()
			}
			if idle%qpIdle != 0 {
				continue
			}
		}
		if len(qps) == 1 && qps[0].vqp.Err() != nil {
			qps[0].failed = true // also where no request of this end reports it
		}
		if spin >= 0 && time.Since(idleSince) < spin {
			runtime.Gosched()
			continue
		}
		if err := sleep(ctx, every, qps); err != nil {
			return err
		}
	}
	return nil
}

// sleep waits until something happens at one of two queue pairs at most, or every is over. The
// order is arm, poll, and sleep only if that brought nothing.
func sleep(ctx context.Context, every time.Duration, qps []*QueuePair) error {
	moved := 0
	for _, q := range qps {
		if err := q.cq.Arm(); err != nil {
			return err
		}
	}
	for _, q := range qps {
		moved += q.Progress()
	}
	if moved > 0 {
		return nil
	}
	var other <-chan struct{}
	if len(qps) > 1 {
		other = qps[1].cq.Events()
	}
	timer := time.NewTimer(every)
	defer timer.Stop()
	select {
	case <-qps[0].cq.Events():
	case <-other:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
