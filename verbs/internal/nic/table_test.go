package nic

import "testing"

// Counted numbers go round, over those in use.
func TestCountedNumbers(t *testing.T) {
	table := NewTable[int](nil)
	table.Last = FirstQPNum + 2
	values := []int{0, 1, 2}
	for i := range values {
		num, ok := table.TakeNum()
		if !ok || num != FirstQPNum+uint32(i) {
			t.Fatalf("number %d, %v", num, ok)
		}
		table.Add(num, &values[i])
	}
	if num, ok := table.TakeNum(); ok || num != 0 {
		t.Errorf("number %d, %v where none is free", num, ok)
	}
	table.Remove(FirstQPNum + 1)
	if table.Find(FirstQPNum+1) != nil || table.Find(FirstQPNum+2) != &values[2] || len(table.All) != 2 ||
		table.All[0] != &values[0] || table.All[1] != &values[2] {
		t.Errorf("left are %v", table.All)
	}
	if num, ok := table.TakeNum(); !ok || num != FirstQPNum+1 {
		t.Errorf("number %d, %v: only %d is free", num, ok, FirstQPNum+1)
	}
}

// Drawn numbers are those of the source, cut to what a number may be, without those in use.
func TestDrawnNumbers(t *testing.T) {
	const size = MaxQPNum - FirstQPNum + 1
	draws := []uint32{5, 5, size + 5, size - 1, 0}
	table := NewTable[int](func() uint32 {
		n := draws[0]
		draws = draws[1:]
		return n
	})
	for _, want := range []uint32{FirstQPNum + 5, MaxQPNum, FirstQPNum} {
		num, ok := table.TakeNum()
		if !ok || num != want {
			t.Fatalf("number %#x, want %#x", num, want)
		}
		table.Add(num, new(int))
	}
}

// Find returns the queue pairs that are there, whichever was found last.
func TestFind(t *testing.T) {
	table := NewTable[int](nil)
	a, b := new(int), new(int)
	table.Add(17, a)
	for _, step := range []struct {
		num  uint32
		want *int
	}{{17, a}, {17, a}, {18, nil}, {18, nil}, {17, a}} {
		if got := table.Find(step.num); got != step.want {
			t.Errorf("number %d: %p, want %p", step.num, got, step.want)
		}
	}
	table.Add(18, b)
	if table.Find(17) != a || table.Find(18) != b {
		t.Error("a second queue pair hides one of the two")
	}
	table.Remove(18)
	if table.Find(18) != nil || table.Find(17) != a {
		t.Error("a removed queue pair is found, or the other one is not")
	}
}
