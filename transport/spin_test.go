package transport

import (
	"testing"
	"time"
)

// A goroutine that waits polls for as long as Config.Spin says, and then no more; where that is
// negative, not at all.
func TestSpinning(t *testing.T) {
	for _, limit := range []time.Duration{-1, 0} {
		var s spinner
		if s.more(limit) {
			t.Errorf("it polls once more with a limit of %v", limit)
		}
	}
	for _, limit := range []time.Duration{20 * time.Microsecond, 3 * time.Millisecond} {
		var s spinner
		begin := time.Now()
		polls := 0
		for s.more(limit) {
			if polls++; time.Since(begin) > 10*time.Second {
				t.Fatalf("it polls for ever with a limit of %v", limit)
			}
		}
		if took := time.Since(begin); took < limit || polls < 16 {
			t.Errorf("it polled for %v, %d times, with a limit of %v", took, polls, limit)
		}
		for range 100 {
			if s.more(time.Hour) {
				t.Fatal("it polls again, after it had decided to sleep")
			}
		}
	}
}
