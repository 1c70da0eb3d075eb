package roce

import (
	"os"
	"runtime"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// When a provider is closed, no goroutine and no file of it is left, whatever its queue pairs were
// doing when they were closed: packets under way, in the backlog, timers running, a queue armed.
func TestNothingIsLeft(t *testing.T) {
	files := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	once := func() {
		t.Run("", func(t *testing.T) {
			p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
			pair := newNodes(t, p.Device(0), p.Device(1), 1<<16)
			a, b := pair[0], pair[1]
			g := newGate(a.dev, 8, 0)
			a.post(t, a.write(b, 1, 1<<16)) // stays in the backlog
			b.post(t, b.write(a, 2, 1<<16)) // is not acknowledged
			for b.dev.Counters().Received == 0 {
				time.Sleep(100 * time.Microsecond)
			}
			g.open(0)
			if err := p.Close(); err == nil {
				t.Error("a provider with open objects was closed")
			}
		})
	}
	once()
	goroutines, open := runtime.NumGoroutine(), files()
	for range 5 {
		once()
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines; {
		if time.Now().After(end) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), goroutines,
				stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(time.Millisecond)
	}
	if n := files(); n != open {
		t.Errorf("%d files are open, %d before", n, open)
	}
}

// Objects may be closed while others post, poll and arm, and packets arrive for them.
func TestCloseDuringTraffic(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 1<<16)
	a, b := pair[0], pair[1]
	for range 20 {
		mine, theirs := a.newQP(t), b.newQP(t)
		must(t, verbstest.Connect(mine, theirs, verbstest.ConnectConfig{Port: 1}))
		_, err := mine.PostSend([]verbs.SendWR{a.write(b, 7, 1<<16), a.write(b, 8, 1<<16)})
		must(t, err)
		a.post(t, a.write(b, 1, 1<<12))
		ended := make(chan error, 2)
		go func() { ended <- theirs.Close() }()
		go func() { ended <- mine.Close() }()
		for seen := false; !seen; {
			wc := a.poll(t)
			if wc.ID == 1 {
				seen = true
				if wc.Status != verbs.StatusSuccess {
					t.Fatalf("the queue pair that stays: %v", wc.Status)
				}
			}
		}
		must(t, <-ended)
		must(t, <-ended)
		if _, err := mine.PostSend([]verbs.SendWR{a.write(b, 9, 8)}); err == nil {
			t.Fatal("posted to a closed queue pair")
		}
		if c := a.dev.Counters(); c.Sent == 0 {
			t.Fatalf("what a closed queue pair did is not counted: %+v", c)
		}
	}
}
