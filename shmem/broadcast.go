package shmem

import "context"

// Broadcast gives every PE the buf of PE root. Any memory will do. It is collective; all PEs give
// the same length and root. It returns on a PE that has the data, whether or not all others have
// it. A root that is no PE is verbs.ErrInvalid, and ends the call of all PEs with [ErrMismatch].
func Broadcast[T Element](ctx context.Context, pe *PE, buf []T, root int) error {
	const op = "broadcast"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	if uint(root) >= uint(pe.PEs()) {
		return pe.refuse(ctx, kindBroadcast, invalid(op, "root %d: the numbers are 0 to %d", root,
			pe.PEs()-1))
	}
	g, err := pe.call(op, kindBroadcast, shape{n: len(buf), size: sizeOf[T](), param: root})
	if err != nil {
		return err
	}
	if err := pe.broadcast(ctx, op, g, bytesOf(buf), root); err != nil {
		return err
	}
	return pe.sent(ctx, op)
}

// tree says who stands where in a binomial tree below a root: the parent of a PE is the one without
// the lowest bit of its distance from the root, and its children have one lower bit more.
type tree struct{ root, me, n int }

func (p *PE) tree(root int) tree {
	n := len(p.peers)
	return tree{root: root, me: (p.id - root + n) % n, n: n}
}

// parent of a PE that is not the root.
func (t tree) parent() int { return (t.me&(t.me-1) + t.root) % t.n }

// child is the child at a distance of bit, a power of two; ok is false when there is none.
func (t tree) child(bit int) (pe int, ok bool) {
	if t.me&bit != 0 || t.me&(bit-1) != 0 || t.me+bit >= t.n {
		return 0, false
	}
	return (t.me + bit + t.root) % t.n, true
}

// broadcast sends b down the tree, piece by piece, an empty one if need be.
func (p *PE) broadcast(ctx context.Context, op string, g tag, b []byte, root int) error {
	tree := p.tree(root)
	for more := true; more; more = len(b) != 0 {
		n := p.piece(len(b))
		if tree.me != 0 {
			t := &p.peers[tree.parent()]
			from, err := t.openWhenThere(ctx, op, g, n)
			if err != nil {
				return err
			}
			copy(b, from)
			if err := t.discard(ctx, op); err != nil {
				return err
			}
		}
		for bit := highest(tree.n); bit != 0; bit /= 2 { // the largest subtree first
			child, ok := tree.child(bit)
			if !ok {
				continue
			}
			if err := p.peers[child].mailWhenRoom(ctx, op, g, b[:n]); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}

// highest is the largest power of two below n; 0 for 1.
func highest(n int) int {
	bit := 0
	for d := 1; d < n; d *= 2 {
		bit = d
	}
	return bit
}
