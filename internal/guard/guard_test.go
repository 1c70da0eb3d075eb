package guard

import "testing"

// The second of two that enter panics with the caller's message, and after the first has left the
// next one enters.
func TestOwner(t *testing.T) {
	const message = "somebody: concurrent use"
	var o Owner
	second := func() (got any) {
		defer func() { got = recover() }()
		o.Enter(message)
		return nil
	}
	for range 2 {
		o.Enter(message)
		if !o.Inside() {
			t.Error("not inside after Enter")
		}
		if got := second(); got != message {
			t.Errorf("a second goroutine enters: panic %v", got)
		}
		if o.Exit(); o.Inside() {
			t.Error("still inside after Exit")
		}
	}
}
