package transport_test

import (
	"errors"
	"testing"

	"ibverbx/transport"
	"ibverbx/verbs"
)

// The function that gets a request may queue it again, or another one that was handed back; none is
// lost.
func TestContract10PurgeMayQueueAgain(t *testing.T) {
	l := newLink(t, setup{stepped: true})
	l.a.fill(t)
	ran, back := 0, 0
	var all [5]*transport.Pending
	for i := range all {
		all[i] = request(func(*transport.Endpoint) transport.Outcome { ran++; return transport.PendingDone })
		must(t, l.a.Pending(all[i]))
	}
	l.a.Purge(func(p *transport.Pending) {
		back++
		if back == 1 {
			if err := l.a.Pending(all[3]); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("a request that is still to be handed back was queued: %v", err)
			}
		}
		must(t, l.a.Pending(p))
	})
	if back != len(all) {
		t.Errorf("%d of %d were handed back", back, len(all))
	}
	l.until("all run after all", func() bool { return ran == len(all) })
}

// A request whose function runs, and purges, is handed back only if it wants to stay.
func TestContract10PurgeFromARunningFunction(t *testing.T) {
	for _, c := range []struct {
		name    string
		requeue bool
		answer  transport.Outcome
		back    int
	}{
		{"done", false, transport.PendingDone, 1},
		{"wants to stay", false, transport.PendingNoResource, 2},
		{"queued itself, done", true, transport.PendingDone, 2},
		{"queued itself, wants to stay", true, transport.PendingProgress, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, setup{stepped: true})
			l.a.fill(t)
			back := map[*transport.Pending]int{}
			first, runs := &transport.Pending{}, 0
			first.Func = func(p *transport.Pending, head *transport.Endpoint) transport.Outcome {
				runs++
				if c.requeue {
					must(t, head.Pending(p))
				}
				head.Purge(func(p *transport.Pending) { back[p]++ })
				return c.answer
			}
			second := request(func(*transport.Endpoint) transport.Outcome {
				t.Error("a purged request runs")
				return transport.PendingDone
			})
			must(t, l.a.Pending(first))
			must(t, l.a.Pending(second))
			l.quiet()
			if runs != 1 || back[second] != 1 || len(back) != c.back || back[first] > 1 {
				t.Errorf("ran %d times; handed back: first %d times, second %d times", runs, back[first],
					back[second])
			}
		})
	}
}
