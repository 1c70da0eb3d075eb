package nic

import (
	"runtime"
	"testing"
	"time"
)

// Whoever waits is counted while it waits and no longer: each WakeQuiet wakes all who wait, and
// without one it has nothing to do.
func TestAwaitQuietAgainAndAgain(t *testing.T) {
	var l Lock
	woken := make(chan struct{}, 3)
	for _, waiting := range []int{1, 3, 2, 1} {
		for n := 1; n <= waiting; n++ {
			go func() {
				l.Lock()
				l.AwaitQuiet()
				l.Unlock()
				woken <- struct{}{}
			}()
			for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
				l.Lock()
				waiters := l.waiters
				l.Unlock()
				if waiters == n {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d wait, want %d", waiters, n)
				}
			}
		}
		l.Lock()
		l.WakeQuiet()
		l.Unlock()
		for range waiting {
			select {
			case <-woken:
			case <-time.After(10 * time.Second):
				t.Fatal("one that waits is not woken")
			}
		}
		if l.Lock(); l.waiters != 0 {
			t.Errorf("%d wait after all were woken", l.waiters)
		}
		l.Unlock()
	}
}
