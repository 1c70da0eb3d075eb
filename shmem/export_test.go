package shmem

import (
	"context"
	"sync/atomic"
	"time"
)

// SetRegisterFrom changes Config.RegisterFrom.
func SetRegisterFrom(pe *PE, n int) { pe.cfg.RegisterFrom = n }

// SetSleepStep changes how long PEs sleep, between looks at their heaps, that others wake.
func SetSleepStep(d time.Duration, pes ...*PE) {
	for _, pe := range pes {
		pe.sleepStep = d
	}
}

// SetAlgorithms sets what the choice of algorithms depends on: how many units one schedule covers,
// and whether the PEs share processors.
func SetAlgorithms(pe *PE, window int, shared bool) {
	pe.exchange.window, pe.exchange.shared = window, shared
	clear(pe.world.plans[:])
}

// Sleepers is how many PEs have asked one to wake them.
func Sleepers(pe *PE) (n int) {
	for i := range pe.peers {
		if atomic.LoadUint64(word64(pe.heap, pe.layout.sleeps(i))) != 0 {
			n++
		}
	}
	return n
}

// OnlyCanceled reports whether an error says nothing but that a context was canceled.
func OnlyCanceled(err error) bool { return onlyCanceled(err) }

// Asked is how many pairs of PEs there are of which one has asked the other, at least once, in
// which call it is.
func Asked(pes ...*PE) (n int) {
	for _, pe := range pes {
		for i := range pe.peers {
			if pe.peers[i].asked != 0 {
				n++
			}
		}
	}
	return n
}

// Await waits until done, which looks at what others write, as the waits for words do.
func Await(ctx context.Context, pe *PE, done func() bool) error { return pe.await(ctx, "await", done) }

// AskInBarrier has a PE ask another as it does when it waits for it in a barrier, and not wait.
func AskInBarrier(ctx context.Context, pe *PE, to int) error {
	a := syncOf("barrier")
	r, err := pe.world.begin(ctx, &a)
	if err != nil {
		return err
	}
	if err := pe.peers[to].ask(ctx, r); err != nil {
		return err
	}
	pe.lock()
	pe.endRequest(r, nil)
	pe.exchange.mu.Unlock()
	return pe.Quiet(ctx)
}

// ForgetFailure has a PE forget that it gave up in a collective call.
func ForgetFailure(pe *PE) { pe.failed = failure{} }

// Meeting is the all-gather among n PEs of one process.
func Meeting(n int) func(ctx context.Context, pe int, mine []byte) ([][]byte, error) {
	return newMeeting(n).gather
}
