package soft

import (
	"testing"
	"time"

	"ibverbx/verbs"
)

// A message that is still on its way to a queue pair in ERR is reported before what is flushed,
// also where it is the only one.
func TestErrorKeepsTheOnlyArrivalFirst(t *testing.T) {
	_, a, b := pair(t, Config{Device: DeviceConfig{Latency: 5 * time.Millisecond}}, endConfig{})
	b.recv(verbs.RecvWR{ID: 0, SGL: b.sge(0, 8)}, verbs.RecvWR{ID: 1, SGL: b.sge(0, 8)})
	a.post(a.send(1, 0, 8))
	time.Sleep(time.Millisecond)
	setState(t, b, verbs.StateErr)
	for i, wc := range await(t, b.rcq, 2) {
		if wc.ID != uint64(i) {
			t.Errorf("%d: %+v", i, wc)
		}
	}
}

// No timer holds a queue pair that was reset or closed.
func TestNoTimerOfAClosedQueuePair(t *testing.T) {
	f, a, b := pair(t, Config{Device: DeviceConfig{Latency: time.Hour}}, endConfig{})
	b.recv(verbs.RecvWR{ID: 0, SGL: b.sge(0, 8)})
	a.post(a.send(1, 0, 8))
	timers := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, d := range f.devices {
			n += len(d.worker.timers)
		}
		return n
	}
	for end := time.Now().Add(10 * time.Second); timers() != 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := timers(); n != 2 {
		t.Fatalf("%d timers for a message on its way and its acknowledgement", n)
	}
	setState(t, b, verbs.StateReset)
	must(t, a.qp.Close())
	if n := timers(); n != 0 {
		t.Errorf("%d timers are left", n)
	}
}
