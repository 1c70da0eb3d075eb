package nic

import "sync"

// Lock guards a NIC and all of its objects, or those of several NICs. Goroutines may wait on it
// until what happens outside of it, to memory of a region, has ended.
type Lock struct {
	sync.Mutex
	quiet   sync.Cond // on the mutex
	waiters int       // goroutines in AwaitQuiet
}

// AwaitQuiet waits for the next WakeQuiet. Call it, locked, in a loop that tests the condition.
func (l *Lock) AwaitQuiet() {
	l.quiet.L = &l.Mutex
	l.waiters++
	l.quiet.Wait()
	l.waiters--
}

// WakeQuiet wakes the goroutines in AwaitQuiet. Call it, locked, after [Pieces.Release] and after
// whatever else a Close waits for.
func (l *Lock) WakeQuiet() {
	if l.waiters > 0 {
		l.quiet.Broadcast()
	}
}
