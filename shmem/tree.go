package shmem

// tree is a PE's place in a binomial tree of all PEs: the distance of its parent from the root is
// its own distance less the lowest bit, and the distances of its children have one lower bit more.
type tree struct {
	root int // its number
	me   int // the PE's distance from the root, counted upwards and around
	n    int // PEs
}

// tree is this PE's place in the tree below root.
func (p *PE) tree(root int) tree {
	n := len(p.peers)
	return tree{root: root, me: (p.id - root + n) % n, n: n}
}

// parent is the parent's number; the PE must not be the root.
func (t tree) parent() int { return (t.me&(t.me-1) + t.root) % t.n }

// child is the number of the child that is bit, a power of two, further away; ok is false if there
// is none.
func (t tree) child(bit int) (pe int, ok bool) {
	if t.me&bit != 0 || t.me&(bit-1) != 0 || t.me+bit >= t.n {
		return 0, false
	}
	return (t.me + bit + t.root) % t.n, true
}

// highest is the largest power of two below n; 0 for 1.
func highest(n int) int {
	bit := 0
	for d := 1; d < n; d *= 2 {
		bit = d
	}
	return bit
}
