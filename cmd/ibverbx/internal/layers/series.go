package layers

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// How often a series looks at what it need not look at each time.
const (
	yieldTurns = 1024
	checkTurns = 4096
)

// Series sends the messages of a round one at a time from e, and notes in took how long each was
// under way: until its answer had come where the peer answers, else until it had completed. It says
// how many that were: fewer after an error, or when the round was cut short. This goroutine plays
// the peer's part too; nil is one that has none. The round is not over yet: both ends still have to
// Run, which only completes it then.
func (e *End) Series(ctx context.Context, peer *End, took []int64) (n int, err error) {
	e.bind(ctx)
	if peer != nil {
		peer.bind(ctx)
	}
	for i := range took {
		if e.braked() {
			return i, nil
		}
		start := time.Now()
		for turn := 1; ; turn++ {
			over, err := e.turn(i)
			if err == nil && !over && peer != nil {
				err = peer.serve()
			}
			if err != nil {
				return i, err
			}
			if over {
				break
			}
			if turn%yieldTurns == 0 {
				runtime.Gosched()
			}
			if turn%checkTurns == 0 && ctx.Err() != nil {
				return i, context.Cause(ctx)
			}
		}
		took[i] = int64(time.Since(start))
		e.moved()
	}
	return len(took), nil
}

// SeriesAsleep is Series with a peer whose part another goroutine plays. It spins and sleeps as the
// layer's calls that wait do.
func (e *End) SeriesAsleep(ctx context.Context, took []int64) (n int, err error) {
	e.bind(ctx)
	var i int
	var failed error
	arrived := func() bool {
		e.glance()
		over, err := e.advanceTo(i)
		err = errors.Join(e.err, err)
		failed = err
		return over || err != nil
	}
	for i = range took {
		if e.braked() {
			return i, nil
		}
		start := time.Now()
		if err := e.engine.WaitFor(ctx, otherwise, arrived); err != nil || failed != nil {
			return i, errors.Join(failed, err)
		}
		took[i] = int64(time.Since(start))
		e.moved()
	}
	return len(took), nil
}

// braked cuts the round short once that is asked for.
func (e *End) braked() bool {
	b := e.task.Brake
	if b == nil || !b.Load() {
		return false
	}
	e.Stop()
	return true
}

// turn drives message i of a series, and says whether it is over.
func (e *End) turn(i int) (over bool, err error) {
	if e.glance(); e.err != nil {
		return false, e.err
	}
	if e.posted == i {
		if over, err = e.advanceTo(i); over || err != nil {
			return over, err
		}
	}
	e.engine.Progress()
	return e.ended(i)
}

// advanceTo starts message i where that has not happened yet, and says whether it is over.
func (e *End) advanceTo(i int) (over bool, err error) {
	if e.posted == i {
		n, err := e.t.post(i, 1)
		if e.posted += n; n == 0 {
			return false, later(err)
		}
	}
	return e.ended(i)
}

// ended says whether message i of a series is over.
func (e *End) ended(i int) (bool, error) {
	if e.posted <= i {
		return false, nil
	}
	if e.task.Take > 0 {
		_, err := e.look()
		return e.came > i, err
	}
	return e.t.completed()
}

// serve lets an end answer.
func (e *End) serve() error {
	e.engine.Progress()
	return e.pump()
}
