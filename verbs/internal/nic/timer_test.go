package nic

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Timers come due in the order of their times, whatever was set again or stopped in between.
func TestTimersComeDueInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var heap TimerHeap[int]
		timers := make([]Timer[int], 20)
		want := make(map[*Timer[int]]int64)
		for range 60 {
			tm := &timers[rng.IntN(len(timers))]
			if rng.IntN(4) == 0 {
				heap.Disarm(tm)
				delete(want, tm)
				continue
			}
			when := rng.Int64N(1000)
			heap.Arm(tm, when)
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
		if first := heap.First(-1); len(times) != 0 && first != times[0] || len(times) == 0 && first != -1 {
			t.Fatalf("the first of %v is at %d", times, first)
		}
		for tm := range timers {
			if _, armed := want[&timers[tm]]; timers[tm].IsArmed() != armed {
				t.Fatalf("timer %d is armed: %v", tm, !armed)
			}
		}
		for _, when := range times {
			if early := heap.Due(when - 1); early != nil {
				t.Fatalf("a timer for %d is due at %d", early.When, when-1)
			}
			tm := heap.Due(when)
			if tm == nil || tm.When != when || want[tm] != when {
				t.Fatalf("at %d: %+v", when, tm)
			}
			delete(want, tm)
			heap.Disarm(tm) // is none any more: nothing happens
		}
		if heap.Due(1<<62) != nil {
			t.Fatal("a timer that nobody set")
		}
	}
}
