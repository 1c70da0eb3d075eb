package shmem_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx/shmem"
	"ibverbx/verbs"
)

// Bad arguments are refused at once, with an error that names them, and have no effect.
func TestBadArguments(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{})
	s := allocate[uint64](l, 4)
	other := newTestbed(t, shape{1, 1, 1}, shmem.Config{HeapSize: 16 << 20})
	far := allocate[uint64](other, 2<<20-64).Slice(2<<20-1000, 2<<20-900)
	ctx, pe := l.ctx, l.world.PEs()[0]
	v := make([]uint64, 5)
	var none shmem.Sym[uint64]
	for _, c := range []struct {
		name, says string
		err        error
	}{
		{"put: PE", "PE 2:", shmem.Put(ctx, pe, s, v[:1], 2)},
		{"put: negative PE", "PE -1:", shmem.Put(ctx, pe, s, v[:1], -1)},
		{"put: length", "src has 5 elements, dst 4", shmem.Put(ctx, pe, s, v, 1)},
		{"put nbi: length", "src has 5 elements, dst 4", shmem.PutNBI(ctx, pe, s, v, 1)},
		{"get: length", "dst has 5 elements, src 4", shmem.Get(ctx, pe, v, s, 1)},
		{"get nbi: PE", "PE 7:", shmem.GetNBI(ctx, pe, v[:1], s, 7)},
		{"p: no memory", "dst has no element", shmem.P(ctx, pe, none, 1, 1)},
		{"g: no memory", "src has no element", only(shmem.G(ctx, pe, none, 1))},
		{"put: of another heap", "heap", shmem.Put(ctx, pe, far, v[:1], 1)},
		{"add: no memory", "dst has no element", shmem.Add(ctx, pe, none, 1, 1)},
		{"fetch add: PE", "PE 9:", only(shmem.FetchAdd(ctx, pe, s, 1, 9))},
		{"put signal: signal", "sig has no element", shmem.PutSignal(ctx, pe, s, v[:1], none, 1,
			shmem.SignalSet, 1)},
		{"put signal: op", "op 2", shmem.PutSignal(ctx, pe, s, v[:1], s, 1, 2, 1)},
		{"put signal: length", "src has 5", shmem.PutSignalNBI(ctx, pe, s, v, s, 1, shmem.SignalSet, 1)},
		{"wait: no memory", "s has no element", shmem.WaitUntil(ctx, pe, none, shmem.EQ, 0)},
		{"wait: cmp", "cmp 6", shmem.WaitUntil(ctx, pe, s, 6, 0)},
		{"wait: of another heap", "heap", shmem.WaitUntil(ctx, pe, far, shmem.EQ, 0)},
		{"wait any: no memory", "wait until any: invalid argument: s has no element",
			only(shmem.WaitUntilAny(ctx, pe, none, shmem.EQ, 0))},
		{"test: cmp", "test: invalid argument: cmp 6: must be EQ to LE", only(shmem.Test(pe, s, 6, 0))},
		{"broadcast: root", "root 2", shmem.Broadcast(ctx, pe, v, 2)},
		{"reduce: lengths", "dst has 5 elements, src 4", shmem.Reduce(ctx, pe, v, v[:4], shmem.OpSum)},
		{"reduce: op", "op unknown", shmem.Reduce(ctx, pe, v, v, 99)},
		{"reduce: floats", "op xor of these elements", shmem.Reduce(ctx, pe, []float64{1}, []float64{1},
			shmem.OpXor)},
		{"all-gather: lengths", "dst has 5 elements", shmem.AllGather(ctx, pe, v, v)},
		{"all-to-all: lengths", "dst has 5 elements", shmem.AllToAll(ctx, pe, v, v)},
	} {
		if !errors.Is(c.err, verbs.ErrInvalid) || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, c.err, c.says)
		}
	}
	if st := pe.Stats().Transport; st.Atomics != 0 {
		t.Errorf("refused calls have sent %d atomics", st.Atomics)
	}
}
