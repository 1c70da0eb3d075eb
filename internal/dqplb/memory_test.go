package dqplb

import "testing"

// What is in order needs no memory: neither arrivals nor acknowledgements. A program may have
// thousands of connections.
func TestInOrderTakesNoMemory(t *testing.T) {
	if allocs := testing.AllocsPerRun(10, func() {
		box, s, r := NewInbox(256), NewSender(0), NewReceiver(0, false)
		for c := range uint64(1000) {
			num := s.Next()
			if got, ok := box.Resolve(c, 1<<28-1, c+256); !ok || got != c {
				t.Fatal(got, ok)
			}
			if !box.Put(c, Swap(num|Last), 8) {
				t.Fatal("not the next of its rail")
			}
			if _, due, err := r.Arrive(&box, Swap(num|Last), 8); !due || err != nil {
				t.Fatal(due, err)
			}
			if _, _, ok := box.Pop(); ok || !s.Ack(num) || !s.Room() {
				t.Fatal("something is out of order")
			}
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The bitmap of a sender grows with how far acknowledgements are out of order.
func TestSenderGrowsWithNeed(t *testing.T) {
	s := NewSender(lastNum - 5)
	var nums []uint32
	for range MaxInFlight {
		nums = append(nums, s.Next())
	}
	words := 0
	for i := len(nums) - 1; i > 0; i-- {
		if i == 100 {
			words = len(s.done)
		}
		if !s.Ack(nums[i]) || s.Ack(nums[i]) || s.Room() {
			t.Fatalf("ack of %d", nums[i])
		}
	}
	if words != MaxInFlight/64 || len(s.done) != words {
		t.Errorf("%d words, then %d", words, len(s.done))
	}
	if !s.Ack(nums[0]) || s.Open() != 0 {
		t.Errorf("%d are open", s.Open())
	}
	near := NewSender(0)
	for range 1000 {
		a, b := near.Next(), near.Next()
		if !near.Ack(b) || !near.Ack(a) {
			t.Fatal(a, b)
		}
	}
	if len(near.done) != minDone/64 {
		t.Errorf("%d words for two numbers", len(near.done))
	}
}
