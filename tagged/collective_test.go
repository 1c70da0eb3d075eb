package tagged_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/tagged"
	"ibverbx/verbs"
)

// each has all ranks make a call, and returns their errors.
func (r *rig) each(f func(rank int, w *tagged.Worker) error) []error {
	errs := make([]error, len(r.workers))
	var wg sync.WaitGroup
	for i, w := range r.workers {
		wg.Go(func() { errs[i] = f(i, w) })
	}
	wg.Wait()
	return errs
}

// must has all ranks make a call, which must succeed on each.
func (r *rig) must(what string, f func(rank int, w *tagged.Worker) error) {
	r.t.Helper()
	for i, err := range r.each(f) {
		if err != nil {
			r.t.Fatalf("%s: rank %d: %v", what, i, err)
		}
	}
}

// TestCollectives compares every call with a loop, for numbers of ranks around the powers of two
// and lengths around those of which the algorithm changes, also in place.
func TestCollectives(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 5, 8} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			r := newJoined(t, ranks, tagged.Config{OnDemand: ranks%2 == 1})
			ctx := background(r)
			lengths := []int{0, 1, 3000, 40000}
			if ranks == 8 {
				lengths = []int{1, 3000}
			}
			for _, n := range lengths {
				testCollectives(ctx, r, n)
			}
		})
	}
}

// value is element i of what a rank passes. Sums of them are exact.
func value(rank, i int) int64 { return int64(rank*1000003+i*7) % 1001 }

func vector(rank, n int) []int64 {
	v := make([]int64, n)
	for i := range v {
		v[i] = value(rank, i)
	}
	return v
}

// total is element i of the sum of the first ranks.
func total(ranks, i int) (sum int64) {
	for rank := range ranks {
		sum += value(rank, i)
	}
	return sum
}

func testCollectives(ctx context.Context, r *rig, n int) {
	ranks := len(r.workers)
	root := ranks - 1
	const other = -5 // stays where nothing is written
	same := func(got []int64, want func(i int) int64) error {
		for i, v := range got {
			if v != want(i) {
				return fmt.Errorf("element %d is %d, want %d", i, v, want(i))
			}
		}
		return nil
	}
	sums := func(upTo int) func(int) int64 {
		return func(i int) int64 { return total(upTo, i) }
	}
	untouched := func(int) int64 { return other }
	filled := func(n int) []int64 { return slices.Repeat([]int64{other}, n) }
	left := func(a, _ int64) int64 { return a } // associative, and not commutative
	right := func(_, b int64) int64 { return b }
	counts := make([]int, ranks)
	for i := range counts {
		counts[i] = n * ((i + 1) % ranks) / 2 // the last one's block is empty
	}
	sum := func(counts []int) (all int) {
		for _, k := range counts {
			all += k
		}
		return all
	}
	inBlocks := func(i int) int64 { // element i of all blocks
		rank := 0
		for ; i >= counts[rank]; rank++ {
			i -= counts[rank]
		}
		return value(rank, i)
	}
	for _, c := range []struct {
		name string
		call func(rank int, w *tagged.Worker) error
	}{
		{"barrier", func(_ int, w *tagged.Worker) error { return w.Barrier(ctx) }},
		{"broadcast", func(rank int, w *tagged.Worker) error {
			buf := vector(rank, n)
			err := tagged.Broadcast(ctx, w, buf, root)
			return errors.Join(err, same(buf, func(i int) int64 { return value(root, i) }))
		}},
		{"reduce", func(rank int, w *tagged.Worker) error {
			dst, want := filled(n), untouched
			if rank == root {
				want = sums(ranks)
			}
			return errors.Join(tagged.Reduce(ctx, w, dst, vector(rank, n), tagged.OpSum, root),
				same(dst, want))
		}},
		{"all-reduce", func(rank int, w *tagged.Worker) error {
			dst := filled(n)
			return errors.Join(tagged.AllReduce(ctx, w, dst, vector(rank, n), tagged.OpSum),
				same(dst, sums(ranks)))
		}},
		{"all-reduce in place", func(rank int, w *tagged.Worker) error {
			v := vector(rank, n)
			return errors.Join(tagged.AllReduce(ctx, w, v, v, tagged.OpSum), same(v, sums(ranks)))
		}},
		{"reduce-scatter", func(rank int, w *tagged.Worker) error {
			dst := filled(n)
			return errors.Join(tagged.ReduceScatter(ctx, w, dst, vector(rank, n*ranks), tagged.OpSum),
				same(dst, func(i int) int64 { return total(ranks, rank*n+i) }))
		}},
		{"scan", func(rank int, w *tagged.Worker) error {
			dst := filled(n)
			return errors.Join(tagged.Scan(ctx, w, dst, vector(rank, n), tagged.OpSum),
				same(dst, sums(rank+1)))
		}},
		{"scan in place", func(rank int, w *tagged.Worker) error {
			v := vector(rank, n)
			return errors.Join(tagged.Scan(ctx, w, v, v, tagged.OpSum), same(v, sums(rank+1)))
		}},
		{"gather", func(rank int, w *tagged.Worker) error {
			var dst []int64
			if rank == root {
				dst = filled(n * ranks)
			}
			return errors.Join(tagged.Gather(ctx, w, dst, vector(rank, n), root),
				same(dst, func(i int) int64 { return value(i/n, i%n) }))
		}},
		{"all-gather", func(rank int, w *tagged.Worker) error {
			dst := filled(n * ranks)
			return errors.Join(tagged.AllGather(ctx, w, dst, vector(rank, n)),
				same(dst, func(i int) int64 { return value(i/n, i%n) }))
		}},
		{"gather in place", func(rank int, w *tagged.Worker) error {
			src := vector(rank, n)
			var dst []int64
			if rank == root {
				dst = filled(n * ranks)
				src = dst[root*n:][:copy(dst[root*n:], src)]
			}
			return errors.Join(tagged.Gather(ctx, w, dst, src, root),
				same(dst, func(i int) int64 { return value(i/n, i%n) }))
		}},
		{"all-gather in place", func(rank int, w *tagged.Worker) error {
			dst := filled(n * ranks)
			src := dst[rank*n:][:copy(dst[rank*n:][:n], vector(rank, n))]
			return errors.Join(tagged.AllGather(ctx, w, dst, src),
				same(dst, func(i int) int64 { return value(i/n, i%n) }))
		}},
		{"scatter in place", func(rank int, w *tagged.Worker) error {
			dst := filled(n)
			var src []int64
			if rank == root {
				src = vector(root, n*ranks)
				dst = src[root*n:][:n]
			}
			return errors.Join(tagged.Scatter(ctx, w, dst, src, root),
				same(dst, func(i int) int64 { return value(root, rank*n+i) }))
		}},
		{"scatter", func(rank int, w *tagged.Worker) error {
			dst := filled(n)
			var src []int64
			if rank == root {
				src = vector(root, n*ranks)
			}
			return errors.Join(tagged.Scatter(ctx, w, dst, src, root),
				same(dst, func(i int) int64 { return value(root, rank*n+i) }))
		}},
		{"gather v", func(rank int, w *tagged.Worker) error {
			var dst []int64
			var lengths []int
			if rank == root {
				dst, lengths = filled(sum(counts)), counts
			}
			return errors.Join(tagged.GatherV(ctx, w, dst, lengths, vector(rank, counts[rank]), root),
				same(dst, inBlocks))
		}},
		{"gather v in place", func(rank int, w *tagged.Worker) error {
			src := vector(rank, counts[rank])
			var dst []int64
			if rank == root {
				dst = filled(sum(counts))
				src = dst[sum(counts[:root]):][:copy(dst[sum(counts[:root]):], src)]
			}
			return errors.Join(tagged.GatherV(ctx, w, dst, counts, src, root), same(dst, inBlocks))
		}},
		{"all-gather v", func(rank int, w *tagged.Worker) error {
			dst := filled(sum(counts))
			return errors.Join(tagged.AllGatherV(ctx, w, dst, counts, vector(rank, counts[rank])),
				same(dst, inBlocks))
		}},
		{"scatter v", func(rank int, w *tagged.Worker) error {
			dst := filled(counts[rank])
			var src []int64
			if rank == root {
				src = vector(root, sum(counts))
			}
			return errors.Join(tagged.ScatterV(ctx, w, dst, src, counts, root),
				same(dst, func(i int) int64 { return value(root, sum(counts[:rank])+i) }))
		}},
		{"all-to-all v", func(rank int, w *tagged.Worker) error {
			// rank i sends rank j as many elements as both counts have together
			sends := make([]int, ranks)
			for i := range sends {
				sends[i] = (counts[rank] + counts[i]) / ranks
			}
			dst := filled(sum(sends))
			err := tagged.AllToAllV(ctx, w, dst, sends, vector(rank, sum(sends)), sends)
			for from, at := 0, 0; from < ranks; from++ {
				first := 0 // where the block for this rank begins there
				for i := range rank {
					first += (counts[from] + counts[i]) / ranks
				}
				err = errors.Join(err, same(dst[at:at+sends[from]],
					func(i int) int64 { return value(from, first+i) }))
				at += sends[from]
			}
			return err
		}},
		{"reduce by a function", func(rank int, w *tagged.Worker) error {
			dst, want := filled(n), untouched
			if rank == root {
				want = func(i int) int64 { return value(0, i) }
			}
			return errors.Join(tagged.ReduceFunc(ctx, w, dst, vector(rank, n), left, root), same(dst, want))
		}},
		{"all-reduce by a function", func(rank int, w *tagged.Worker) error {
			v := vector(rank, n)
			return errors.Join(tagged.AllReduceFunc(ctx, w, v, v, right),
				same(v, func(i int) int64 { return value(ranks-1, i) }))
		}},
		{"reduce-scatter by a function", func(rank int, w *tagged.Worker) error {
			dst := filled(n)
			return errors.Join(tagged.ReduceScatterFunc(ctx, w, dst, vector(rank, n*ranks), left),
				same(dst, func(i int) int64 { return value(0, rank*n+i) }))
		}},
		{"scan by a function", func(rank int, w *tagged.Worker) error {
			dst := filled(n)
			return errors.Join(tagged.ScanFunc(ctx, w, dst, vector(rank, n), right),
				same(dst, func(i int) int64 { return value(rank, i) }))
		}},
		{"all-to-all", func(rank int, w *tagged.Worker) error {
			dst := filled(n * ranks)
			return errors.Join(tagged.AllToAll(ctx, w, dst, vector(rank, n*ranks)),
				same(dst, func(i int) int64 { return value(i/n, rank*n+i%n) }))
		}},
	} {
		r.must(fmt.Sprintf("%s of %d", c.name, n), c.call)
	}
}

// TestCollectivesOfComplex: complex numbers are added and multiplied.
func TestCollectivesOfComplex(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{})
	ctx := background(r)
	r.must("product", func(rank int, w *tagged.Worker) error {
		v := []complex128{complex(float64(rank), 1), 1i}
		if err := tagged.AllReduce(ctx, w, v, v, tagged.OpProd); err != nil {
			return err
		}
		if v[0] != (0+1i)*(1+1i)*(2+1i) || v[1] != -1i {
			return fmt.Errorf("%v", v)
		}
		return nil
	})
	if err := tagged.AllReduce(ctx, r.workers[0], make([]complex64, 1), make([]complex64, 1),
		tagged.OpMax); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("the largest of complex numbers: %v", err)
	}
}

// TestCollectivesLeaveTheWindow: what a call that has failed leaves takes no place from messages.
func TestCollectivesLeaveTheWindow(t *testing.T) {
	r := newJoined(t, 2, tagged.Config{MaxUnexpected: 1})
	ctx := background(r)
	if err := tagged.Broadcast(ctx, r.workers[0], make([]uint8, 1), 9); err == nil {
		t.Fatal("of 2 ranks one has the number 9")
	}
	if err := r.workers[1].Barrier(ctx); !errors.Is(err, tagged.ErrMismatch) {
		t.Fatal(err)
	}
	for range 3 {
		for from := range 2 {
			r.send(r.peer(from, 1-from), 1, []byte("own"))
			if _, err := r.workers[1-from].RecvWait(timeout(t, 2*time.Second), 1, tagged.Exact,
				make([]byte, 3)); err != nil {
				t.Fatalf("to rank %d: %v", 1-from, err)
			}
		}
	}
}

// TestCollectivesBeside: no mask takes a message of a collective call, and no message of the
// program has such a tag.
func TestCollectivesBeside(t *testing.T) {
	r := newJoined(t, 2, tagged.Config{})
	ctx := background(r)
	any := r.recv(r.workers[1], 0, tagged.Any, make([]byte, 8))
	r.must("barrier", func(_ int, w *tagged.Worker) error { return w.Barrier(ctx) })
	buf := []uint8{7}
	if err := tagged.Broadcast(ctx, r.workers[0], buf, 0); err != nil {
		t.Fatal(err)
	}
	r.send(r.peer(0, 1), tagged.MaxTag, []byte("own"))
	if err := any.Wait(ctx); err != nil || any.Info().Tag != tagged.MaxTag {
		t.Errorf("%v: %v", any.Info(), err)
	}
	if info, found := r.workers[1].Probe(0, tagged.Any); found {
		t.Errorf("%v is found", info)
	}
	if err := tagged.Broadcast(ctx, r.workers[1], buf, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.peer(0, 1).Send(0xfe<<56, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := r.workers[0].Recv(0xfe<<56, tagged.Exact, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	alone := newRig(t, 1, 1, tagged.Config{})
	if err := alone.workers[0].Barrier(ctx); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a worker without ranks: %v", err)
	}
}

// TestTagsOfCollectives: no call of the program reaches a message of a collective call.
func TestTagsOfCollectives(t *testing.T) {
	r := newJoined(t, 2, tagged.Config{})
	over := timeout(t, 50*time.Millisecond) // a call that is not refused may wait
	if err := tagged.Broadcast(over, r.workers[0], make([]uint8, 1), 0); err != nil {
		t.Fatal(err)
	}
	w, e := r.workers[1], r.peer(1, 0)
	r.until(func() bool { return w.Stats().Unexpected == 1 })
	const tag = 0xfe << 56
	if info, found := w.Probe(tag, tagged.Exact); found {
		t.Errorf("%v is found", info)
	}
	if info, found := e.Probe(tag, tagged.Exact); found {
		t.Errorf("%v is found of the peer", info)
	}
	calls := map[string]error{}
	_, calls["probe"] = w.ProbeWait(over, tag, tagged.Exact)
	_, calls["probe of the peer"] = e.ProbeWait(over, tag, tagged.Exact)
	_, calls["claim"] = w.ClaimWait(over, math.MaxUint64, tagged.Exact)
	_, _, calls["alloc"] = w.RecvAlloc(over, math.MaxUint64, tagged.Exact, 8)
	for name, err := range calls {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if m, found := w.Claim(tag, tagged.Exact); found {
		t.Errorf("%v is claimed", m.Info())
	}
	if m, found := e.Claim(tag, tagged.Exact); found {
		t.Errorf("%v is claimed of the peer", m.Info())
	}
}

// TestCollectivesAllocate: calls allocate nothing in the steady state, long ones if their memory is
// registered.
func TestCollectivesAllocate(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector allocates")
	}
	r := newJoined(t, 3, tagged.Config{})
	ctx := context.Background()
	var bufs [3][]byte
	for i, w := range r.workers {
		region, err := w.Alloc(80 << 10)
		if err != nil {
			t.Fatal(err)
		}
		bufs[i] = region.Bytes()
	}
	counts := []int{8, 0, 16}
	once := func(rank int) error {
		w, b := r.workers[rank], bufs[rank]
		return errors.Join(w.Barrier(ctx), tagged.Broadcast(ctx, w, b[:8], 0),
			tagged.AllReduce(ctx, w, b[:16], b[:16], tagged.OpMax),
			tagged.AllReduce(ctx, w, b, b, tagged.OpXor),
			tagged.AllGather(ctx, w, b[:60<<10], b[60<<10:80<<10]),
			tagged.AllGatherV(ctx, w, b[:24], counts, b[100:][:counts[rank]]))
	}
	const warm, calls = 50, 20 // the pools of the NICs grow at first
	r.must("calls", func(rank int, _ *tagged.Worker) (err error) {
		if rank != 0 {
			for range warm + calls + 1 { // AllocsPerRun makes one more
				err = errors.Join(err, once(rank))
			}
			return err
		}
		for range warm {
			err = errors.Join(err, once(0))
		}
		if n := testing.AllocsPerRun(calls, func() { err = errors.Join(err, once(0)) }); n >= 1 {
			t.Errorf("%v allocations", n)
		}
		return err
	})
}
