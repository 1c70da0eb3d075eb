package tagged

// sendTable holds the sends of an endpoint that wait for a notice of the peer, by their number. A
// number is a slot's index plus one; zero stands for none.
//
// Invariant: slots[i] is nil if and only if i is in free; otherwise slots[i].id is i+1.
type sendTable struct {
	slots []*Request
	free  []uint32
}

// count is how many sends wait.
func (t *sendTable) count() int { return len(t.slots) - len(t.free) }

// add gives a send a number; one that has a number keeps it.
func (t *sendTable) add(r *Request) {
	if r.id != 0 {
		return
	}
	if n := len(t.free); n != 0 {
		r.id = t.free[n-1] + 1
		t.free = t.free[:n-1]
		t.slots[r.id-1] = r
		return
	}
	t.slots = append(t.slots, r)
	r.id = uint32(len(t.slots))
}

// get is the send with a number; nil if there is none.
func (t *sendTable) get(id uint32) *Request {
	if id == 0 || id > uint32(len(t.slots)) {
		return nil
	}
	return t.slots[id-1]
}

// remove takes the number of a send back, if it has one.
func (t *sendTable) remove(r *Request) {
	if r.id == 0 {
		return
	}
	t.slots[r.id-1] = nil
	t.free = append(t.free, r.id-1)
	r.id = 0
}
