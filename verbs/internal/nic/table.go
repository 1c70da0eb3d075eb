package nic

// MaxQPNum is the highest number of a queue pair, which has 24 bits.
const MaxQPNum = 1<<24 - 1

// FirstQPNum is the number of a NIC's first queue pair: 0 and 1 are special in InfiniBand, and the
// low ones are reserved on real NICs too.
const FirstQPNum = 17

// Table holds the queue pairs of a NIC, of the provider's own type Q. Call its methods locked.
type Table[Q any] struct {
	All []*Q // in the order of their creation

	// Next is the number to try first. Numbers go round from FirstQPNum to Last.
	Next, Last uint32

	byNum map[uint32]*Q
	draw  func() uint32

	// found is the queue pair that was found last, with the number foundNum, or nil: packets arrive
	// in bursts for one.
	found    *Q
	foundNum uint32
}

// NewTable makes an empty table. Without draw, numbers are counted, the same in every run and on
// every NIC. With draw they are drawn from FirstQPNum to MaxQPNum.
func NewTable[Q any](draw func() uint32) Table[Q] {
	return Table[Q]{Next: FirstQPNum, Last: MaxQPNum, byNum: make(map[uint32]*Q), draw: draw}
}

// TakeNum returns a free number for Add; false if there is none. Counted numbers go in a cycle, so
// that a closed queue pair's number is not used again soon.
func (t *Table[Q]) TakeNum() (uint32, bool) {
	for range t.Last {
		num := t.Next
		if t.draw != nil {
			num = FirstQPNum + t.draw()%(t.Last-FirstQPNum+1)
		}
		t.Next++
		if t.Next > t.Last {
			t.Next = FirstQPNum
		}
		if t.byNum[num] == nil {
			return num, true
		}
	}
	return 0, false
}

// Add adds a queue pair under a number that is free.
func (t *Table[Q]) Add(num uint32, q *Q) {
	t.All = append(t.All, q)
	t.byNum[num] = q
}

// Find returns the queue pair with a number, or nil.
func (t *Table[Q]) Find(num uint32) *Q {
	if num != t.foundNum || t.found == nil {
		t.found, t.foundNum = t.byNum[num], num
	}
	return t.found
}

// Remove removes the queue pair with a number.
func (t *Table[Q]) Remove(num uint32) {
	q := t.byNum[num]
	delete(t.byNum, num)
	t.found = nil
	for i, other := range t.All {
		if other == q {
			t.All = append(t.All[:i], t.All[i+1:]...)
			break
		}
	}
}
