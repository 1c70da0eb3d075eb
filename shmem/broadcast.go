package shmem

import "context"

// Broadcast copies the buf of PE root to that of every PE. buf may be any memory. It is collective;
// all PEs pass the same length and root. It returns when this PE has the data, whether or not all
// others have it. A root that is no PE is verbs.ErrInvalid, and ends the call of all other PEs with
// [ErrMismatch].
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
	return pe.flushLocal(ctx, op)
}

// broadcast sends b down the tree, piece by piece; if b is empty, one piece of no bytes.
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
			if err := p.peers[child].postWhenRoom(ctx, op, g, b[:n]); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}
