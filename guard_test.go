package ibverbx

import (
	"context"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// A second goroutine that enters while the first is inside panics. The test itself plays the
// first.
func TestConcurrentUsePanics(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{})
	c := r.CQ()
	ended, end := context.WithCancel(t.Context())
	end()
	calls := map[string]func(){
		"Poll":               func() { _, _ = c.Poll(nil) },
		"PollDevice":         func() { _, _ = c.PollDevice(0, nil) },
		"PollOne":            func() { _, _, _ = c.PollOne() },
		"Wait":               func() { _ = c.Wait(ended) },
		"Arm":                func() { _ = c.Arm() },
		"ArmSolicited":       func() { _ = c.ArmSolicited() },
		"FailDevice":         func() { c.FailDevice(0, nil) },
		"Card":               func() { _, _ = r.Card() },
		"Connect":            func() { _ = r.Connect(BusinessCard{}) },
		"ProcessCompletions": func() { c.ProcessCompletions(nil, 0) },
		"PostSend":           func() { _, _ = r.PostSend() },
		"PostRecv":           func() { _, _ = r.PostRecv() },
		"Modify":             func() { _ = r.Modify(verbs.QPAttr{}, 0, nil) },
		"Reset":              func() { _ = r.Reset() },
		"Drain":              func() { _ = r.Drain(ended) },
		"Shutdown":           func() { _ = r.Shutdown(ended) },
		"Stats":              func() { _ = r.Stats() },
		"Stats of the CQ":    func() { _ = c.Stats() },
		"Close":              func() { _ = r.Close() },
		"Close of the CQ":    func() { _ = c.Close() },
	}
	for name, use := range calls {
		t.Run(name, func(t *testing.T) {
			c.enter()
			defer c.exit()
			defer func() {
				if p, _ := recover().(string); !strings.Contains(p, "one goroutine at a time") {
					t.Errorf("panic %q: want one that says the rule", p)
				}
			}()
			use()
		})
	}
	for name, use := range calls { // some of them after others have closed both
		if use(); c.guard.Inside() {
			t.Fatalf("%s does not give the guard back", name)
		}
	}
}
