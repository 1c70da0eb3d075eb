package tagged_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/tagged"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// TestStartedCalls has ranks make the same random calls, each with as many under way as it likes,
// and wait for them in an order of its own. The results are those of a loop.
func TestStartedCalls(t *testing.T) {
	for _, ranks := range []int{2, 4, 5} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			r := newJoined(t, ranks, tagged.Config{OnDemand: ranks == 5})
			ctx := background(r)
			r.must("calls", func(rank int, w *tagged.Worker) error {
				program := rand.New(rand.NewPCG(uint64(ranks), 1)) // the same on every rank
				own := rand.New(rand.NewPCG(uint64(rank), 2))
				var started []startedCall
				for range 60 {
					c, err := startRandom(program, rank, ranks, w)
					if err != nil {
						return err
					}
					started = append(started, c)
					for len(started) > own.IntN(12) {
						i := own.IntN(len(started))
						if err := started[i].finish(ctx); err != nil {
							return err
						}
						started = slices.Delete(started, i, i+1)
					}
				}
				for _, c := range started {
					if err := c.finish(ctx); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// startedCall is a call under way, and what its result must be.
type startedCall struct {
	what string
	req  *tagged.Request
	got  []int64
	want func(i int) int64
}

func (c startedCall) finish(ctx context.Context) error {
	if err := c.req.Wait(ctx); err != nil {
		return err
	}
	c.req.Free()
	for i, v := range c.got {
		if v != c.want(i) {
			return fmt.Errorf("%s: element %d is %d, want %d", c.what, i, v, c.want(i))
		}
	}
	return nil
}

// startRandom starts one of the calls.
func startRandom(rng *rand.Rand, rank, ranks int, w *tagged.Worker) (c startedCall, err error) {
	n := []int{0, 1, 30, 3000, 40000}[rng.IntN(5)]
	root := rng.IntN(ranks)
	sums := func(i int) int64 { return total(ranks, i) }
	switch kind := rng.IntN(7); kind {
	case 0:
		c.what = "barrier"
		c.req, err = w.StartBarrier()
	case 1:
		c.what, c.got = "broadcast", vector(rank, n)
		c.want = func(i int) int64 { return value(root, i) }
		c.req, err = tagged.StartBroadcast(w, c.got, root)
	case 2, 3:
		c.what, c.got, c.want = "all-reduce", vector(rank, n), sums
		c.req, err = tagged.StartAllReduce(w, c.got, c.got, tagged.OpSum)
	case 4:
		c.what, c.got = "all-gather", make([]int64, n*ranks)
		c.want = func(i int) int64 { return value(i/n, i%n) }
		c.req, err = tagged.StartAllGather(w, c.got, vector(rank, n))
	case 5:
		c.what, c.got = "scan", make([]int64, n)
		c.want = func(i int) int64 { return total(rank+1, i) }
		c.req, err = tagged.StartScan(w, c.got, vector(rank, n), tagged.OpSum)
	case 6:
		c.what, c.got = "reduce", make([]int64, n)
		c.want = func(int) int64 { return 0 }
		if rank == root {
			c.want = sums
		}
		c.req, err = tagged.StartReduce(w, c.got, vector(rank, n), tagged.OpSum, root)
	}
	return c, err
}

// TestStartedCallsOvertake: a call may be done before one that was started earlier. Nobody waits:
// the calls go on with the worker's progress.
func TestStartedCallsOvertake(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{})
	long := make([][]uint8, 3)
	var first, second []*tagged.Request
	for i, w := range r.workers {
		long[i] = make([]uint8, 4<<20)
		a, err := tagged.StartAllReduce(w, long[i], long[i], tagged.OpMax)
		if err != nil {
			t.Fatal(err)
		}
		b, err := w.StartBarrier()
		if err != nil {
			t.Fatal(err)
		}
		first, second = append(first, a), append(second, b)
	}
	r.done(second...)
	for i, a := range first {
		if a.Done() {
			t.Errorf("rank %d: 4 MiB are reduced before a barrier is done", i)
		}
	}
	r.done(first...)
	for i := range first {
		if err := errors.Join(first[i].Err(), second[i].Err()); err != nil {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// TestStartedCallsLate: a wait whose context ends names the rank that is late, and the call goes
// on.
func TestStartedCallsLate(t *testing.T) {
	r := newJoined(t, 2, tagged.Config{})
	ctx := background(r)
	over, cancel := context.WithCancel(ctx)
	cancel()
	started, err := r.workers[0].StartBarrier()
	if err != nil {
		t.Fatal(err)
	}
	var interrupted *tagged.InterruptedError
	err = started.Wait(over)
	if !errors.As(err, &interrupted) || interrupted.Req != started || !errors.Is(err, context.Canceled) ||
		!strings.HasPrefix(err.Error(), "tagged: barrier 1: context canceled: rank 1 of 2 is awaited") {
		t.Errorf("%v", err)
	}
	past, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	err = started.Wait(past)
	if !errors.As(err, &interrupted) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if started.Cancel() || started.Done() || started.Info() != (tagged.Info{}) {
		t.Errorf("a call under way was cancelled, or is described: %+v", started.Info())
	}
	any := r.recv(r.workers[0], 7, tagged.Exact, make([]byte, 1))
	if err := r.workers[1].Barrier(ctx); err != nil {
		t.Fatal(err)
	}
	if i, err := tagged.WaitAny(ctx, any, started); i != 1 || err != nil || started.Err() != nil {
		t.Errorf("request %d is done, %v; %v", i, err, started.Err())
	}
	if started.Cancel() || started.Info() != (tagged.Info{}) {
		t.Errorf("a call that is done was cancelled, or is described: %+v", started.Info())
	}
	any.Cancel()
}

// due is a context whose deadline passes when a test says so.
type due struct {
	context.Context
	passed chan struct{}
}

func (d due) Done() <-chan struct{} { return d.passed }
func (d due) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// sent returns how many active messages a worker has sent.
func sent(w *tagged.Worker) (n uint64) { return w.Stats().Transport.AMSent }

// TestCallsGoOnWhileOneIsLate: while a wait whose deadline has passed finds out who is late, other
// calls begin and end, and so does the one that it waits for.
func TestCallsGoOnWhileOneIsLate(t *testing.T) {
	t.Parallel()          // most of it is waiting
	for try := range 20 { // on a busy machine the wait may be over before the rest has happened
		r := newJoined(t, 2, tagged.Config{})
		w, other := r.workers[0], r.workers[1]
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		stall := r.fabric.Inject(soft.Fault{Kind: soft.StallQP, Device: r.fabric.Device(1), Count: -1})
		theirs, err := other.StartBarrier()
		if err != nil {
			t.Fatal(err)
		}
		ctx := due{context.Background(), make(chan struct{})}
		ended := make(chan error, 1)
		before := sent(w)
		go func() { ended <- w.Barrier(ctx) }()
		for sent(w) == before { // its part of the barrier
			time.Sleep(time.Millisecond)
		}
		before = sent(w)
		close(ctx.passed)
		for sent(w) == before { // the question
			time.Sleep(time.Millisecond)
		}
		second, err := tagged.StartBroadcast(w, []int8{1}, 0)
		select {
		case early := <-ended:
			ended <- early
		default:
		}
		stillLate := len(ended) == 0
		stall.Remove() // the message of the other rank arrives, and no answer
		if end := <-ended; stillLate && end == nil && err == nil {
			_, err := tagged.StartBroadcast(other, []int8{1}, 0)
			if err != nil {
				t.Fatal(err)
			}
			r.done(theirs, second)
			return
		} else if try == 19 {
			t.Errorf("the barrier: %v; a broadcast: %v, begun meanwhile: %t", end, err, stillLate)
		}
	}
}

// TestStartedCallsEnd: when a call fails, all that are under way do.
func TestStartedCallsEnd(t *testing.T) {
	for name, end := range map[string]func(r *rig) error{
		"death": func(r *rig) error { return r.peer(2, 0).Abort() },
		"mismatch": func(r *rig) error {
			_, err := tagged.StartBroadcast(r.workers[2], []int8{1}, 9)
			return err
		},
		"close": func(r *rig) error { return r.workers[0].Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newJoined(t, 3, tagged.Config{})
			ctx := background(r)
			w := r.workers[0]
			a, errA := w.StartBarrier()
			b, errB := tagged.StartAllReduce(w, make([]int32, 4), make([]int32, 4), tagged.OpSum)
			if err := errors.Join(errA, errB); err != nil {
				t.Fatal(err)
			}
			err := end(r)
			want := map[string]error{"death": tagged.ErrPeerFailed, "mismatch": tagged.ErrMismatch,
				"close": tagged.ErrClosed}[name]
			if (err != nil) != (name == "mismatch") {
				t.Fatal(err)
			}
			if name == "close" {
				if !a.Done() || !b.Done() {
					t.Error("a call goes on after Close")
				}
				r.workers[0], _ = tagged.NewWorker(r.domains[0], tagged.Config{}) // for the rig to close
			} else {
				_, _ = a.Wait(ctx), b.Wait(ctx)
			}
			if !errors.Is(a.Err(), want) || !strings.HasPrefix(a.Err().Error(), "tagged: barrier 1: ") ||
				!errors.Is(b.Err(), want) || !strings.HasPrefix(b.Err().Error(), "tagged: all-reduce 2: ") {
				t.Errorf("%v\n%v", a.Err(), b.Err())
			}
		})
	}
}

// TestBusyCalls: a call that cannot begin beside those under way is refused without effect.
func TestBusyCalls(t *testing.T) {
	r := newJoined(t, 2, tagged.Config{MaxUnexpected: 16}) // room for two calls
	ctx := background(r)
	w := r.workers[0]
	var started [2]*tagged.Request
	for i := range started {
		var err error
		if started[i], err = w.StartBarrier(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.StartBarrier(); !errors.Is(err, tagged.ErrBusy) ||
		err.Error() != "tagged: barrier: 2 calls are under way, the most at once: wait for barrier 1 first: "+
			"another collective call of this rank is under way" {
		t.Errorf("a third: %v", err)
	}
	waits := make(chan error, 3)
	go func() {
		waits <- r.workers[1].Barrier(ctx)
		waits <- r.workers[1].Barrier(ctx)
		waits <- r.workers[1].Barrier(ctx)
	}()
	for range 2 {
		if err := <-waits; err != nil {
			t.Fatal(err)
		}
	}
	if err := tagged.WaitAll(ctx, started[0], started[1]); err != nil {
		t.Fatal(err)
	}
	for w.Stats().Unexpected == 0 && ctx.Err() == nil { // rank 1 is in the third
		time.Sleep(time.Millisecond)
	}
	if err := r.workers[1].Barrier(ctx); !errors.Is(err, tagged.ErrBusy) {
		t.Errorf("beside a goroutine in a barrier: %v", err)
	}
	if err := errors.Join(w.Barrier(ctx), <-waits); err != nil {
		t.Error(err)
	}
}

// TestNoWorker: a call of no worker is refused.
func TestNoWorker(t *testing.T) {
	ctx := context.Background()
	v := []int64{1}
	_, a := tagged.StartAllReduce(nil, v, v, tagged.OpSum)
	_, b := tagged.StartAllToAll(nil, v, v)
	_, c := (*tagged.Worker)(nil).StartBarrier()
	for i, err := range []error{a, b, c, tagged.AllToAll(ctx, nil, v, v), tagged.Broadcast(ctx, nil, v, 0),
		(*tagged.Worker)(nil).Barrier(ctx)} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// TestStartedCallsAllocate: calls that are freed allocate nothing in the steady state.
func TestStartedCallsAllocate(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector allocates")
	}
	r := newJoined(t, 2, tagged.Config{})
	var bufs [2][]byte
	for i, w := range r.workers {
		region, err := w.Alloc(80 << 10)
		if err != nil {
			t.Fatal(err)
		}
		bufs[i] = region.Bytes()
	}
	once := func() {
		var reqs [2][3]*tagged.Request
		for i, w := range r.workers {
			var errs [3]error
			reqs[i][0], errs[0] = tagged.StartAllReduce(w, bufs[i], bufs[i], tagged.OpXor)
			reqs[i][1], errs[1] = tagged.StartBroadcast(w, bufs[i][:8], 0)
			reqs[i][2], errs[2] = w.StartBarrier()
			for _, err := range errs {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range reqs {
			for _, req := range reqs[i] {
				for !req.Done() {
					r.workers[0].Progress()
					r.workers[1].Progress()
				}
				if req.Err() != nil {
					t.Fatal(req.Err())
				}
				req.Free()
			}
		}
	}
	for range 50 {
		once()
	}
	if n := testing.AllocsPerRun(20, once); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}
