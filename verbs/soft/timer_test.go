package soft

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ibverbx/verbs"
)

// Timers come due in the order of their times, whatever was set again or stopped in between.
func TestTimersComeDueInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var heap timerHeap
		timers := make([]timer, 20)
		want := make(map[*timer]int64)
		for range 60 {
			tm := &timers[rng.IntN(len(timers))]
			if rng.IntN(4) == 0 {
				heap.disarm(tm)
				delete(want, tm)
				continue
			}
			when := rng.Int64N(1000)
			heap.arm(tm, when)
			want[tm] = when
		}
		if len(heap) != len(want) {
			t.Fatalf("%d timers are set, want %d", len(heap), len(want))
		}
		times := make([]int64, 0, len(want))
		for _, when := range want {
			times = append(times, when)
		}
		slices.Sort(times)
		for _, when := range times {
			if early := heap.due(when - 1); early != nil {
				t.Fatalf("a timer for %d is due at %d", early.when, when-1)
			}
			tm := heap.due(when)
			if tm == nil || tm.when != when || want[tm] != when {
				t.Fatalf("at %d: %+v", when, tm)
			}
			delete(want, tm)
			heap.disarm(tm) // is none any more: nothing happens
		}
		if heap.due(1<<62) != nil {
			t.Fatal("a timer that nobody set")
		}
	}
}

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
