package layers

import (
	"context"
	"errors"
	"runtime"
	"time"

	"ibverbx/transport"
)

// How often a series looks at what it need not look at each time.
const (
	yieldTurns = 1024
	checkTurns = 4096
)

// Series sends the messages of a round one at a time from e, and notes in took how long each was
// under way: until its answer had come where the peer answers, else until it had completed. This
// goroutine plays the peer's part too; nil is one that has none. The round is not over yet: both
// ends still have to Run, which only tidies up then.
func (e *End) Series(ctx context.Context, peer *End, took []int64) error {
	e.bind(ctx)
	if peer != nil {
		peer.bind(ctx)
	}
	for i := range took {
		start := time.Now()
		for turn := 1; ; turn++ {
			over, err := e.turn(i)
			if err == nil && !over && peer != nil {
				err = peer.serve()
			}
			if err != nil {
				return err
			}
			if over {
				break
			}
			if turn%yieldTurns == 0 {
				runtime.Gosched()
			}
			if turn%checkTurns == 0 && ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		took[i] = int64(time.Since(start))
		e.moved()
	}
	return nil
}

// SeriesAsleep is Series with a peer whose part somebody else plays. It spins and sleeps as the
// layer's calls that wait do.
func (e *End) SeriesAsleep(ctx context.Context, took []int64) error {
	e.bind(ctx)
	var i int
	var failed error
	arrived := func() bool {
		over, err := e.look(i)
		failed = err
		return over || err != nil
	}
	for i = range took {
		start := time.Now()
		if err := e.engine.WaitFor(ctx, otherwise, arrived); err != nil || failed != nil {
			return errors.Join(failed, err)
		}
		took[i] = int64(time.Since(start))
		e.moved()
	}
	return nil
}

// turn drives message i of a series, and says whether it is over.
func (e *End) turn(i int) (over bool, err error) {
	if over, err = e.look(i); over || err != nil {
		return over, err
	}
	e.engine.Progress()
	return false, nil
}

// look starts message i where that has not happened yet, and says whether it is over.
func (e *End) look(i int) (over bool, err error) {
	if e.posted == i {
		if err := e.t.post(i); err != nil {
			if errors.Is(err, transport.ErrNoResource) {
				err = nil
			}
			return false, err
		}
		e.posted++
	}
	if e.task.Take > 0 {
		e.came, err = e.t.arrived()
		return e.came > i, err
	}
	return e.t.completed()
}

// serve lets an end answer.
func (e *End) serve() error {
	e.engine.Progress()
	return e.pump()
}
