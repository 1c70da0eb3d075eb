package tagged_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
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
		{"all-to-all", func(rank int, w *tagged.Worker) error {
			dst := filled(n * ranks)
			return errors.Join(tagged.AllToAll(ctx, w, dst, vector(rank, n*ranks)),
				same(dst, func(i int) int64 { return value(i/n, rank*n+i%n) }))
		}},
	} {
		r.must(fmt.Sprintf("%s of %d", c.name, n), c.call)
	}
}

// TestCollectivesMismatch: ranks that make different calls all end, and say who called what, or
// which rank knows.
func TestCollectivesMismatch(t *testing.T) {
	const ranks = 4
	buf := func() []int32 { return make([]int32, 8) }
	barrier := func(ctx context.Context, w *tagged.Worker) error { return w.Barrier(ctx) }
	broadcast := func(root int) func(context.Context, *tagged.Worker) error {
		return func(ctx context.Context, w *tagged.Worker) error {
			return tagged.Broadcast(ctx, w, buf(), root)
		}
	}
	for _, c := range []struct {
		name      string
		odd, even func(context.Context, *tagged.Worker) error // what rank 2 calls, and all others
		want      string                                      // one of them is in the error of one rank
	}{
		{"kind", barrier, broadcast(0),
			"broadcast of 8 elements of int32 from rank 0|the same calls before"},
		{"root", broadcast(2), broadcast(0),
			"broadcast of 8 elements of int32 from rank 2|the same calls before"},
		{"nobody sends", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.Reduce(ctx, w, buf(), buf(), tagged.OpSum, 2)
		}, broadcast(2), "reduce of 8 elements of int32 by sum to rank 2"},
		{"elements", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllGather(ctx, w, make([]int16, 8*ranks), make([]int16, 8))
		}, func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllGather(ctx, w, make([]int32, 8*ranks), buf())
		}, "all-gather of 8 elements of int16"},
		{"type", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllReduce(ctx, w, make([]float32, 8), make([]float32, 8), tagged.OpSum)
		}, func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllReduce(ctx, w, buf(), buf(), tagged.OpSum)
		}, "all-reduce of 8 elements of float32 by sum"},
		{"one call too many", func(ctx context.Context, w *tagged.Worker) error {
			if err := tagged.Broadcast(ctx, w, buf()[:0], 0); err != nil { // waits for nobody
				return err
			}
			return w.Barrier(ctx)
		}, barrier, "broadcast of 0 elements of int32 from rank 0|the same calls before"},
		{"wrong argument", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllToAll(ctx, w, buf(), buf()[:7])
		}, barrier, "rank 2 has ended it: all-to-all 1: invalid argument: dst has 8 elements, src 7: " +
			"both must have the same multiple of 4"},
		{"wrong operation", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllReduce(ctx, w, make([]float32, 1), make([]float32, 1), tagged.OpXor)
		}, barrier, "op xor: the elements do not have it"},
		{"wrong root", broadcast(ranks), barrier, "root 4: of 4 ranks the numbers are 0 to 3"},
		{"overlap", func(ctx context.Context, w *tagged.Worker) error {
			b := buf()
			return tagged.AllReduce(ctx, w, b[1:], b[:7], tagged.OpSum)
		}, barrier, "dst and src overlap"},
		{"the block of another rank", func(ctx context.Context, w *tagged.Worker) error {
			b := buf()
			return tagged.AllGather(ctx, w, b, b[2:4])
		}, barrier, "the block of this rank, 2, in the other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			r := newJoined(t, ranks, tagged.Config{OnDemand: true})
			ctx := background(r)
			named := false
			for i, err := range r.each(func(rank int, w *tagged.Worker) error {
				call := c.even
				if rank == 2 {
					call = c.odd
				}
				var err error
				for err == nil && ctx.Err() == nil { // a rank that only sends does not notice at once
					err = call(ctx, w)
					call = barrier
				}
				if again := w.Barrier(ctx); again == nil || again.Error() != err.Error() {
					t.Errorf("rank %d: the next call: %v", rank, again)
				}
				return err
			}) {
				if !errors.Is(err, tagged.ErrMismatch) && (i != 2 || !errors.Is(err, verbs.ErrInvalid)) {
					t.Errorf("rank %d: %v", i, err)
				}
				for want := range strings.SplitSeq(c.want, "|") {
					named = named || strings.Contains(fmt.Sprint(err), want)
				}
			}
			if !named {
				t.Errorf("no error has %q", c.want)
			}
		})
	}
}

// TestCollectivesDeath: a rank that dies ends the call of all others with its name.
func TestCollectivesDeath(t *testing.T) {
	r := newJoined(t, 4, tagged.Config{OnDemand: true})
	ctx := background(r)
	r.must("barrier", func(_ int, w *tagged.Worker) error { return w.Barrier(ctx) })
	for i, err := range r.each(func(rank int, w *tagged.Worker) error {
		if rank != 3 {
			return tagged.AllReduce(ctx, w, make([]float64, 9), make([]float64, 9), tagged.OpMax)
		}
		for other := range 3 {
			_ = r.peer(3, other).Abort()
		}
		return nil
	})[:3] {
		text := fmt.Sprint(err)
		if !errors.Is(err, tagged.ErrPeerFailed) || !strings.Contains(text, "rank 3") ||
			!strings.HasPrefix(text, "tagged: all-reduce 2: ") {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// TestCollectivesLate: a rank that is late is named by those whose context ends.
func TestCollectivesLate(t *testing.T) {
	r := newJoined(t, 4, tagged.Config{})
	ctx := background(r)
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	named := false
	for i, err := range r.each(func(rank int, w *tagged.Worker) error {
		if rank != 3 {
			return w.Barrier(over)
		}
		for w.Stats().Unexpected < 2 { // the second is that of rank 1, which has heard of rank 0
			time.Sleep(time.Millisecond)
		}
		cancel()
		return nil
	})[:3] {
		text := fmt.Sprint(err)
		if !errors.Is(err, context.Canceled) && !errors.Is(err, tagged.ErrCanceled) ||
			!strings.HasPrefix(text, "tagged: barrier 1: ") {
			t.Errorf("rank %d: %v", i, err)
		}
		named = named || strings.Contains(text, "rank 3 of 4 is awaited")
	}
	if !named {
		t.Error("nobody names the rank that is late")
	}
	var err error
	for err == nil { // it may find that all have come to the first one
		err = r.workers[3].Barrier(ctx)
	}
	if !errors.Is(err, tagged.ErrCanceled) {
		t.Errorf("the late one: %v", err)
	}
}

// TestCollectivesDeadline: the ranks whose deadline has passed find out which rank has not made the
// call, and which does not answer, although they wait for others.
func TestCollectivesDeadline(t *testing.T) {
	const ranks = 5
	for _, c := range []struct {
		started bool
		want    string
	}{
		{true, "context deadline exceeded: rank 4 of 5 has not called it"},
		{false, "context deadline exceeded: rank 4 of 5 has not answered"},
	} {
		t.Run(fmt.Sprintf("started %t", c.started), func(t *testing.T) {
			t.Parallel() // most of it is waiting
			r := newJoined(t, ranks, tagged.Config{})
			var all []*tagged.Request
			for rank, w := range r.workers {
				if c.started || rank != 4 {
					if err := w.Start(); err != nil {
						t.Fatal(err)
					}
				}
				if rank != 4 { // the chain to rank 0 waits for the last
					v := make([]int64, 1<<19)
					req, err := tagged.StartReduce(w, v, slices.Clone(v), tagged.OpSum, 0)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, req)
				}
			}
			over, cancel := context.WithDeadline(context.Background(), time.Now())
			defer cancel()
			err := all[0].Wait(over)
			var late interface{ Late() ([]int, int) }
			if !strings.Contains(fmt.Sprint(err), "tagged: reduce 1: "+c.want) || !errors.As(err, &late) {
				t.Fatal(err)
			}
			if who, size := late.Late(); !slices.Equal(who, []int{4}) || size != ranks {
				t.Errorf("ranks %v of %d are late", who, size)
			}
		})
	}
}

// TestCollectivesTooLate: a rank whose context has ended before its call ends that of the others.
func TestCollectivesTooLate(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{})
	ctx := background(r)
	over, cancel := context.WithCancel(ctx)
	cancel()
	for i, err := range r.each(func(rank int, w *tagged.Worker) error {
		if rank == 1 {
			return w.Barrier(over)
		}
		return w.Barrier(ctx)
	}) {
		want := tagged.ErrCanceled
		if i == 1 {
			want = context.Canceled
		}
		if !errors.Is(err, want) {
			t.Errorf("rank %d: %v", i, err)
		}
	}
	if err := r.workers[1].Barrier(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the next call: %v", err)
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
	if _, err := r.peer(0, 1).Send(tagged.MaxTag+1, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
	if _, err := r.workers[0].Recv(tagged.MaxTag+1, tagged.Exact, nil); !errors.Is(err, verbs.ErrInvalid) {
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
	const tag = tagged.MaxTag + 1
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
	once := func(rank int) error {
		w, b := r.workers[rank], bufs[rank]
		return errors.Join(w.Barrier(ctx), tagged.Broadcast(ctx, w, b[:8], 0),
			tagged.AllReduce(ctx, w, b[:16], b[:16], tagged.OpMax),
			tagged.AllReduce(ctx, w, b, b, tagged.OpXor),
			tagged.AllGather(ctx, w, b[:60<<10], b[60<<10:80<<10]))
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
