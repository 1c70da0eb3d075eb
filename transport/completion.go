package transport

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Completion counts operations down and fires once, when none is left. Operations of several
// endpoints may share one.
//
// An operation that was started counts one when it has ended. A call that returned done, or an
// error, did not touch the completion: the caller counts it by [Completion.Done], or sets the count
// with that in mind.
//
// It must not be copied. It can be used again after Init, once it has fired.
type Completion struct {
	left  atomic.Int32
	fired atomic.Bool
	fn    func(*Completion)
	// waiting is the worker in which a goroutine waits for the completion. Done wakes it, because
	// it may be called from outside of that worker's progress.
	waiting atomic.Pointer[Worker]
	mu      sync.Mutex // guards err
	err     error
}

// NewCompletion makes a completion for n operations. fn may be nil; it runs inside progress, see
// the package's rules for callbacks, or inside the [Completion.Done] that counts the last one.
func NewCompletion(n int, fn func(*Completion)) *Completion {
	c := &Completion{}
	c.Init(n, fn)
	return c
}

// Init prepares a completion that lies in the caller's own structure. It must not be in use.
func (c *Completion) Init(n int, fn func(*Completion)) {
	if n < 1 {
		panic(fmt.Sprintf("transport: completion for %d operations", n)) // it would never fire
	}
	c.fn, c.err = fn, nil
	c.waiting.Store(nil)
	c.fired.Store(false)
	c.left.Store(int32(n))
}

// Done counts one operation, which ended with err. The first error is kept. Done panics when there
// was nothing left to count.
func (c *Completion) Done(err error) {
	if err != nil {
		c.mu.Lock()
		if c.err == nil {
			c.err = err
		}
		c.mu.Unlock()
	}
	left := c.left.Add(-1)
	if left > 0 {
		return
	}
	if left < 0 {
		panic("transport: completion counted more often than its operations")
	}
	fn := c.fn // a goroutine that waits may use c anew as soon as it has fired
	c.fired.Store(true)
	if w := c.waiting.Load(); w != nil && w.sleep.any() {
		w.sleep.wake()
	}
	if fn != nil {
		fn(c)
	}
}

// Fired reports whether every operation has ended. A program that polls makes progress until it
// does.
func (c *Completion) Fired() bool { return c.fired.Load() }

// Err returns the first error among the operations, once the completion has fired.
func (c *Completion) Err() error {
	c.mu.Lock()
	err := c.err
	c.mu.Unlock()
	return err
}
