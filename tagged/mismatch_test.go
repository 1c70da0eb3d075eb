package tagged_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

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
		}, barrier, "op xor: elements of float32 have sum, prod, min, max only"},
		{"wrong root", broadcast(ranks), barrier, "root 4: of 4 ranks the numbers are 0 to 3"},
		{"lengths of blocks", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllGatherV(ctx, w, buf(), []int{2, 2, 2, 2}, buf()[:2])
		}, func(ctx context.Context, w *tagged.Worker) error {
			counts := []int{2, 3, 2, 1}
			return tagged.AllGatherV(ctx, w, buf(), counts, buf()[:counts[w.Config().Rank]])
		}, "call all-gather of unequal blocks of int32, but have not made the same calls"},
		{"a block longer than expected", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.GatherV(ctx, w, nil, nil, buf()[:3], 0)
		}, func(ctx context.Context, w *tagged.Worker) error {
			return tagged.GatherV(ctx, w, buf(), []int{2, 2, 2, 2}, buf()[:2], 0)
		}, "rank 2 has sent 12 bytes in place of 8"},
		{"too few lengths", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllGatherV(ctx, w, buf(), []int{4, 4}, buf()[:4])
		}, barrier, "2 lengths of blocks: each of 4 ranks has one"},
		{"no function", func(ctx context.Context, w *tagged.Worker) error {
			return tagged.AllReduceFunc(ctx, w, buf(), buf(), nil)
		}, barrier, "fn is nil"},
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
				if !errors.Is(err, tagged.ErrMismatch) || i != 2 && errors.Is(err, verbs.ErrInvalid) {
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

// TestCollectivesDeathInBrief: the error of a call says in a few words why a rank has failed, and
// wraps the one that says all.
func TestCollectivesDeathInBrief(t *testing.T) {
	for _, c := range []struct {
		vendor uint32
		want   string
	}{
		{0x53484d01, "the process has died"}, // what package verbs/shm reports
		{0, "RETRY_EXC_ERR: transport retries exceeded: the peer or the path to it is gone"},
	} {
		r := newJoined(t, 2, tagged.Config{})
		r.fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: r.fabric.Device(0), VendorErr: c.vendor})
		err := tagged.Broadcast(timeout(t, 20*time.Second), r.workers[0], make([]byte, 1<<20), 0)
		var all *ibverbx.FailedError
		if !strings.HasPrefix(fmt.Sprint(err), "tagged: broadcast 1: rank 1: peer failed: "+c.want) ||
			len(err.Error()) > 160 || !errors.As(err, &all) || !errors.Is(err, tagged.ErrPeerFailed) {
			t.Errorf("%v", err)
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
			hangs := time.Now().Add(20 * time.Second)
			var err error
			for !strings.Contains(fmt.Sprint(err), "tagged: reduce 1: "+c.want) {
				err = all[0].Wait(over) // on a busy machine an answer may take too long
				if !c.started || time.Now().After(hangs) {
					break
				}
			}
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

// TestCollectivesGivenUp: a rank that calls after the others have given up gets their error,
// although its part takes nothing of them.
func TestCollectivesGivenUp(t *testing.T) {
	r := newJoined(t, 3, tagged.Config{})
	over, cancel := context.WithCancel(context.Background())
	cancel()
	ctx := timeout(t, 20*time.Second)
	for i := range 2 {
		if err := tagged.Broadcast(over, r.workers[i], []int8{1}, 2); err == nil {
			t.Errorf("rank %d has what rank 2 has not sent", i)
		}
		// What it says is there then, and rank 2 has not looked.
		if err := r.peer(i, 2).Transport().Flush(ctx, transport.FlushLocal); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := tagged.Broadcast(ctx, r.workers[2], []int8{1}, 2); !errors.Is(err, tagged.ErrCanceled) {
			t.Errorf("the late one: %v", err)
		}
	}
}

// TestBadNotes: a note that no rank sends ends the endpoint that it came over, and no call of the
// others.
func TestBadNotes(t *testing.T) {
	const noteTag = 0xfe << 56
	note := func(kind byte, a, b uint64, rest ...byte) []byte {
		n := binary.LittleEndian.AppendUint64([]byte{kind, 7: 0}, a)
		return append(binary.LittleEndian.AppendUint64(n, b), rest...)
	}
	for name, bad := range map[string][]byte{
		"kind":               note(6, 0, 0),
		"kind 255":           note(255, 0, 0),
		"rank of a stop":     note(1, 3, 0),
		"rank below zero":    note(3, ^uint64(0), 0),
		"a rank that waits":  note(5, 1, 1, 3, 0, 0, 0),
		"short":              note(0, 0, 0)[:23],
		"longer than any is": note(2, 0, 0, make([]byte, 400)...),
	} {
		t.Run(name, func(t *testing.T) {
			r := newJoined(t, 3, tagged.Config{})
			victim, hostile := r.peer(0, 2), r.peer(2, 0)
			header := head(16, 0, 0, 0, noteTag)
			if _, err := hostile.Transport().AMBcopy(tagged.FirstAMID, header,
				func(dst []byte) int { return copy(dst, bad) }); err != nil {
				t.Fatal(err)
			}
			r.until(func() bool { return victim.Err() != nil })
			if err := victim.Err(); !errors.Is(err, tagged.ErrProtocol) {
				t.Errorf("%v", err)
			}
			ctx := timeout(t, 20*time.Second)
			for _, w := range r.workers[:2] { // a call without data waits for nobody
				if err := tagged.Broadcast(ctx, w, []int8{}, 0); err != nil {
					t.Errorf("the others: %v", err)
				}
			}
		})
	}
}

// FuzzNotes gives a rank a note of any bytes. It ends the endpoint that it came over, or the calls,
// or nothing; another note can be read then.
func FuzzNotes(f *testing.F) {
	for kind := range byte(7) {
		f.Add(append([]byte{kind, 7: 0, 8: 1, 15: 0, 16: 1, 23: 0}, 0, 0, 0, 0))
	}
	f.Add([]byte{5})
	f.Fuzz(func(t *testing.T, note []byte) {
		r := newJoined(t, 2, tagged.Config{})
		call, err := r.workers[0].StartBarrier()
		if err != nil {
			t.Fatal(err)
		}
		post := func(b []byte) {
			b = b[:min(len(b), 1000)]
			if _, err := r.peer(1, 0).Transport().AMBcopy(tagged.FirstAMID, head(16, 0, 0, 0, 0xfe<<56),
				func(dst []byte) int { return copy(dst, b) }); err != nil {
				t.Fatal(err)
			}
		}
		post(note)
		r.settle()
		if r.peer(0, 1).Err() == nil && r.peer(1, 0).Err() == nil && !call.Done() {
			post([]byte{3, 23: 0}) // rank 0 has given up
		}
		r.until(call.Done)
		if call.Err() == nil {
			t.Error("a barrier of one rank has succeeded")
		}
	})
}

// TestHostsAreNamed: if the ranks are on several hosts, errors of collective calls name these, made
// safe for a terminal.
func TestHostsAreNamed(t *testing.T) {
	own, _ := os.Hostname()
	r := newJoined(t, 3, tagged.Config{}, func(rank int, cfg *tagged.Config) {
		exchange := cfg.Exchange
		cfg.Exchange = func(ctx context.Context, mine []byte) ([][]byte, error) {
			host := fmt.Appendf(nil, `"host":"node%d\u001b"`, rank/2)
			return exchange(ctx, bytes.Replace(mine, fmt.Appendf(nil, `"host":%q`, own), host, 1))
		}
	})
	over, cancel := context.WithCancel(context.Background())
	cancel()
	call, err := tagged.StartGather(r.workers[0], make([]int8, 3), []int8{1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	const want = "context canceled: rank 1 on node0 , rank 2 on node1  are awaited"
	if err := call.Wait(over); !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("%v, want %s", err, want)
	}
	_, _ = tagged.StartBroadcast(r.workers[2], []int8{}, 9)
	r.done(call)
	if err := call.Err(); !strings.Contains(err.Error(), "rank 2 on node1  has ended it") {
		t.Errorf("%v", err)
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
