package sendside

import (
	"testing"

	"ibverbx/test/internal/hunt"
)

// TestShmemMutations plants bugs in package shmem.
func TestShmemMutations(t *testing.T) { flags.Hunt(t, &Shmem, shmemMutations, 1000) }

func inShmem(name, file string, changes ...hunt.Change) hunt.Mutation {
	return hunt.Mutation{Name: name, File: "shmem/" + file, Changes: changes}
}

// shmemMutations are the bugs that worlds of PEs must show.
var shmemMutations = []hunt.Mutation{
	// Order.
	inShmem("quiet does not wait", "order.go", hunt.Change{Old: "if err := p.worker.Flush(ctx, transport.FlushRemote); err != nil {", New: "if err := error(nil); err != nil {"}),
	inShmem("fence is forgotten", "order.go", hunt.Change{Old: "\tt.ep.Fence()\n", New: ""}),
	inShmem("fence that the next put forgets", "put.go", hunt.Change{Old: "func (t *peer) putShort(ctx context.Context, b []byte, off uint64) error {\n\tif len(b) == 0 {\n\t\treturn nil\n\t}\n\tif err := t.behindFence(ctx); err != nil {\n\t\treturn err\n\t}\n", New: "func (t *peer) putShort(ctx context.Context, b []byte, off uint64) error {\n\tif len(b) == 0 {\n\t\treturn nil\n\t}\n"}),
	inShmem("signal beside its data", "signal.go", hunt.Change{Old: "\tif err == nil {\n\t\terr = t.order(ctx)\n\t}\n", New: ""}),
	inShmem("wait until does not wait", "wait.go", hunt.Change{Old: "\t\treturn done == s.n\n", New: "\t\treturn true\n"}),
	inShmem("at least is more than", "wait.go", hunt.Change{Old: "\t\treturn a >= b\n", New: "\t\treturn a > b\n"}),

	// Barriers and collective calls.
	inShmem("barrier without its last round", "barrier.go", hunt.Change{Old: "for d := 1; d < n; d *= 2 {", New: "for d := 1; 2*d < n; d *= 2 {"}),
	inShmem("barrier completes nothing", "barrier.go", hunt.Change{Old: "\tif err := p.quiet(ctx, op); err != nil {\n\t\treturn err\n\t}\n\treturn p.sync(ctx, op)", New: "\treturn p.sync(ctx, op)"}),
	inShmem("mail told of before it is there", "mailbox.go", hunt.Change{Old: "\tif err == nil {\n\t\terr = t.order(ctx)\n\t}\n", New: ""}),
	inShmem("mailbox overfilled", "mailbox.go", hunt.Change{Old: "layout.taken(t.id))) < 2", New: "layout.taken(t.id))) < 3"}),
	inShmem("reduce leaves a child out", "reduce.go", hunt.Change{Old: "for bit := 1; bit < tree.n; bit *= 2 {", New: "for bit := 1; bit < tree.n-1; bit *= 2 {"}),
	inShmem("everybody gets the same part", "trade.go", hunt.Change{Old: "src[stride*t.id:][:n], pieces)", New: "src[:n], pieces)"}),

	// Memory.
	inShmem("large put returns at once", "put.go", hunt.Change{Old: "\treturn p.wait(ctx, c)\n}\n\n// wait waits", New: "\treturn nil\n}\n\n// wait waits"}),
	inShmem("get returns without its last piece", "get.go", hunt.Change{Old: "c.comp.Init((len(b)+t.bcopy-1)/t.bcopy, nil)", New: "c.comp.Init((len(b)+t.bcopy-1)/t.bcopy+1, nil)\n\tc.comp.Done(nil)\n\tif len(b) > t.bcopy {\n\t\tc.comp.Init((len(b)+t.bcopy-1)/t.bcopy, nil)\n\t\tb = b[:len(b)-1]\n\t}"}),
	inShmem("block not cleared", "alloc.go", hunt.Change{Old: "\tclear(p.heap[off : off+r.bytes()])\n", New: ""}),
	inShmem("different sizes not noticed", "alloc.go", hunt.Change{Old: "same = same && asked[i] == asked[0]", New: "same = same && asked[i].size == asked[0].size"}),

	// Atomics.
	inShmem("change lost when somebody was faster", "atomic.go", hunt.Change{Old: "\t\tcase was == all:\n", New: "\t\tcase was == all || all != 0:\n"}),
	inShmem("other half overwritten", "atomic.go", hunt.Change{Old: "return all&^(w.mask<<w.shift) | (v&w.mask)<<w.shift", New: "return (v & w.mask) << w.shift"}),
	inShmem("addition of another number", "atomic.go", hunt.Change{Old: "return t.startAdd(ctx, nil, nil, off, v)", New: "return t.startAdd(ctx, nil, nil, off, v+1)"}),
}
