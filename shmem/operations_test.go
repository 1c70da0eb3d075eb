package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/shmem"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// operation is a call that names a PE, with the name that its errors have.
type operation struct {
	name string
	call func(ctx context.Context) error
}

// operations are all calls of a PE that name another, in each of the ways that they take: short and
// long ones, with memory in the heap here and outside of it. s has 8192 words, narrow one.
func operations(pe *shmem.PE, s shmem.Sym[uint64], narrow shmem.Sym[uint32], to int) (list []operation) {
	add := func(name string, call func(ctx context.Context) error) {
		list = append(list, operation{name, call})
	}
	for _, mem := range [][]uint64{make([]uint64, 8192), s.Local(pe)} {
		for _, n := range []int{1, 512, 8192} {
			b := mem[:n]
			add("put", func(ctx context.Context) error { return shmem.Put(ctx, pe, s, b, to) })
			add("put nbi", func(ctx context.Context) error { return shmem.PutNBI(ctx, pe, s, b, to) })
			add("get", func(ctx context.Context) error { return shmem.Get(ctx, pe, b, s, to) })
			add("get nbi", func(ctx context.Context) error { return shmem.GetNBI(ctx, pe, b, s, to) })
			add("put signal", func(ctx context.Context) error {
				return shmem.PutSignal(ctx, pe, s, b, s, 1, shmem.SignalSet, to)
			})
			add("put signal nbi", func(ctx context.Context) error {
				return shmem.PutSignalNBI(ctx, pe, s, b, s, 1, shmem.SignalAdd, to)
			})
		}
	}
	add("p", func(ctx context.Context) error { return shmem.P(ctx, pe, s, 7, to) })
	add("g", func(ctx context.Context) error { return only(shmem.G(ctx, pe, s, to)) })
	list = append(list, atomicsOn(pe, s, to)...)
	return append(list, atomicsOn(pe, narrow, to)...)
}

// atomicsOn are the atomics on a word.
func atomicsOn[T shmem.Word](pe *shmem.PE, s shmem.Sym[T], to int) []operation {
	return []operation{
		{"add", func(ctx context.Context) error { return shmem.Add(ctx, pe, s, 7, to) }},
		{"fetch add", func(ctx context.Context) error { return only(shmem.FetchAdd(ctx, pe, s, 7, to)) }},
		{"add", func(ctx context.Context) error { return shmem.Inc(ctx, pe, s, to) }},
		{"fetch inc", func(ctx context.Context) error { return only(shmem.FetchInc(ctx, pe, s, to)) }},
		{"fetch", func(ctx context.Context) error { return only(shmem.Fetch(ctx, pe, s, to)) }},
		{"set", func(ctx context.Context) error { return shmem.Set(ctx, pe, s, 7, to) }},
		{"swap", func(ctx context.Context) error { return only(shmem.Swap(ctx, pe, s, 7, to)) }},
		{"compare swap", func(ctx context.Context) error {
			return only(shmem.CompareSwap(ctx, pe, s, 0, 7, to))
		}},
		{"and", func(ctx context.Context) error { return shmem.And(ctx, pe, s, 7, to) }},
		{"or", func(ctx context.Context) error { return shmem.Or(ctx, pe, s, 7, to) }},
		{"xor", func(ctx context.Context) error { return shmem.Xor(ctx, pe, s, 7, to) }},
		{"fetch and", func(ctx context.Context) error { return only(shmem.FetchAnd(ctx, pe, s, 7, to)) }},
		{"fetch or", func(ctx context.Context) error { return only(shmem.FetchOr(ctx, pe, s, 7, to)) }},
		{"fetch xor", func(ctx context.Context) error { return only(shmem.FetchXor(ctx, pe, s, 7, to)) }},
	}
}

// only is the error of a call that returns a value besides, which is zero where there is an error.
func only[T comparable](v T, err error) error {
	var zero T
	if err != nil && v != zero {
		return wrong("%v beside %v", v, err)
	}
	return err
}

// Every call that names a PE refuses one that is not there, with its own name in the error.
func TestAPEThatIsNotThere(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	s, narrow := allocate[uint64](l, 8192), allocate[uint32](l, 1)
	for _, op := range operations(l.world.PEs()[0], s, narrow, 9) {
		err := op.call(l.ctx)
		want := "shmem: " + op.name + ": invalid argument: PE 9: the numbers are 0 to 0"
		if !errors.Is(err, verbs.ErrInvalid) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Every call that names a PE which has died says so, also one behind a fence: on several NICs the
// fence itself sends. Calls that name other PEs go on.
func TestEveryOperationOnADeadPE(t *testing.T) {
	for _, how := range []shape{{4, 1, 2}, {4, 2, 1}} {
		t.Run(how.String(), func(t *testing.T) {
			l := newTestbed(t, how, quick())
			l.mayFail = true
			s, narrow := allocate[uint64](l, 8192), allocate[uint32](l, 1)
			for i := range how.nics {
				l.fabric.Device(3*how.nics + i).Kill()
			}
			pe := l.world.PEs()[0]
			if err := died(shmem.Get(l.ctx, pe, make([]uint64, 1), s, 3)); err != nil {
				t.Fatal(err)
			}
			for _, op := range operations(pe, s, narrow, 3) {
				for _, fence := range []bool{false, true} {
					if fence {
						pe.Fence()
					}
					err := op.call(l.ctx)
					if died(err) != nil || !strings.HasPrefix(err.Error(), "shmem: "+op.name+": ") {
						t.Errorf("%s, behind a fence %v: %v", op.name, fence, err)
					}
				}
			}
			for to := range 3 {
				old, err := shmem.Swap(l.ctx, pe, s, uint64(to), to)
				if err == nil {
					old, err = shmem.G(l.ctx, pe, s, to)
				}
				if err != nil || old != uint64(to) {
					t.Errorf("on PE %d: %d, %v", to, old, err)
				}
			}
		})
	}
}

// Every call that finds no room before its context ends says so, and what it was to do is not done
// later.
func TestEveryOperationWithoutRoom(t *testing.T) {
	for _, fence := range []bool{false, true} {
		t.Run(fmt.Sprintf("fence=%v", fence), func(t *testing.T) {
			l := newTestbed(t, shape{2, 2, 1}, shmem.Config{Transport: transport.Config{KeepAlive: -1}})
			s, narrow := allocate[uint64](l, 8192), allocate[uint32](l, 1)
			mark := allocate[uint64](l, 1)
			pe := l.world.PEs()[0]
			ended, cancel := context.WithCancel(l.ctx)
			cancel()
			stuck := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
			for full := error(nil); full == nil; {
				full = shmem.P(ended, pe, mark, 1, 1)
			}
			if fence {
				pe.Fence()
			}
			for _, op := range operations(pe, s, narrow, 1) {
				err := op.call(ended)
				want := "shmem: " + op.name + ": context canceled: PE 1 has not answered"
				if !errors.Is(err, context.Canceled) || err.Error() != want {
					t.Errorf("%v, want %s", err, want)
				}
			}
			stuck.Remove()
			if err := pe.Quiet(l.ctx); err != nil {
				t.Fatal(err)
			}
			there := l.world.PEs()[1]
			first, a, b := shmem.Load(there, mark), shmem.Load(there, s), shmem.Load(there, narrow)
			if first != 1 || a != 0 || b != 0 {
				t.Errorf("%d, %d, %d: want that nothing but the first puts has arrived", first, a, b)
			}
		})
	}
}

// What lies in the symmetric heap is sent from where it is, and received where it is to be, in one
// piece; other memory is copied in several, or registered from some length on.
func TestTheHeapIsNotCopied(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, shmem.Config{RegisterFrom: 1 << 18})
	s := allocate[uint64](l, 1<<16)
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		in, out := s.Local(pe), make([]uint64, 1<<16)
		for _, c := range []struct {
			name        string
			mem         []uint64
			nbi, copied bool
		}{
			{"heap", in, false, false}, {"heap, nbi", in, true, false},
			{"less than RegisterFrom", out[:1<<15-1], false, true},
			{"RegisterFrom", out[:1<<15], false, false},
			{"any, nbi", out, true, true},
		} {
			before := pe.Stats().Transport
			put, get := shmem.Put[uint64], shmem.Get[uint64]
			if c.nbi {
				put, get = shmem.PutNBI[uint64], shmem.GetNBI[uint64]
			}
			if err := errors.Join(put(ctx, pe, s, c.mem, 1), get(ctx, pe, c.mem, s, 1)); err != nil {
				return err
			}
			after := pe.Stats().Transport
			puts, gets := after.Puts-before.Puts, after.Gets-before.Gets
			if puts == 0 || gets == 0 || puts > 1 != c.copied || gets > 1 != c.copied {
				return wrong("%s: %d puts and %d gets, want several: %v", c.name, puts, gets, c.copied)
			}
			if err := pe.Quiet(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// Once warm, operations do not allocate.
func TestOperationsDoNotAllocate(t *testing.T) {
	if guard.Race {
		t.Skip("the race detector allocates")
	}
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s, sig := allocate[uint64](l, 4096), allocate[uint64](l, 1)
		narrow := allocate[int32](l, 2)
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			small, large := make([]uint64, 1), make([]uint64, 4096)
			var err error
			note := func(e error) {
				if e != nil && err == nil {
					err = e
				}
			}
			before := pe.Stats().Transport.AMSent
			for name, op := range map[string]func(){
				"put":        func() { note(shmem.Put(ctx, pe, s, small, 1)) },
				"put 32 KiB": func() { note(shmem.Put(ctx, pe, s, large, 1)) },
				"put heap":   func() { note(shmem.Put(ctx, pe, s, s.Local(pe), 1)) },
				"put nbi":    func() { note(shmem.PutNBI(ctx, pe, s, s.Local(pe), 1)) },
				"p":          func() { note(shmem.P(ctx, pe, s, 1, 1)) },
				"get":        func() { note(shmem.Get(ctx, pe, small, s, 1)) },
				"get 32 KiB": func() { note(shmem.Get(ctx, pe, large, s, 1)) },
				"get nbi":    func() { note(shmem.GetNBI(ctx, pe, small, s, 1)) },
				"g":          func() { _, e := shmem.G(ctx, pe, s, 1); note(e) },
				"add":        func() { note(shmem.Add(ctx, pe, s, 1, 1)) },
				"fetch add":  func() { _, e := shmem.FetchAdd(ctx, pe, s, 1, 1); note(e) },
				"swap":       func() { _, e := shmem.Swap(ctx, pe, narrow, 1, 1); note(e) },
				"fence":      pe.Fence,
				"quiet":      func() { note(pe.Quiet(ctx)) },
				"signal add": func() { note(shmem.PutSignal(ctx, pe, s, small, sig, 1, shmem.SignalAdd, 1)) },
				"signal set": func() { note(shmem.PutSignal(ctx, pe, s, small, sig, 1, shmem.SignalSet, 1)) },
				"wait until": func() { note(shmem.WaitUntil(ctx, pe, sig, shmem.EQ, 0)) },
			} {
				for range 200 {
					op()
				}
				if got := testing.AllocsPerRun(200, op); got >= 1 {
					t.Errorf("%s: %v allocations", name, got)
				}
			}
			if n := pe.Stats().Transport.AMSent - before; n != 0 {
				t.Errorf("%d messages wake PEs that do not sleep", n)
			}
			return err
		})
	})
}

// Elements of every size arrive whole, and slices name the right elements.
func TestTypedElements(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 2}, shmem.Config{})
	typed(l, int8(-5))
	typed(l, uint16(65000))
	typed(l, int32(-7))
	typed(l, uint64(1<<63+1))
	typed(l, float32(1.5))
	typed(l, -2.25)
}

func typed[T shmem.Element](l *testbed, v T) {
	l.t.Helper()
	s := allocate[T](l, 100)
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		if err := shmem.P(ctx, pe, s.At(17), v, 1); err != nil {
			return err
		}
		if err := shmem.Put(ctx, pe, s.Slice(20, 30).Slice(3, 5), []T{v, v + 1}, 1); err != nil {
			return err
		}
		if err := pe.Quiet(ctx); err != nil {
			return err
		}
		for i, got := range s.Local(l.world.PEs()[1]) {
			want := map[int]T{17: v, 23: v, 24: v + 1}[i]
			if got != want {
				return wrong("%T: element %d is %v, want %v", v, i, got, want)
			}
		}
		got, err := shmem.G(ctx, pe, s.At(17), 1)
		if err == nil && got != v {
			err = wrong("%T: g is %v, want %v", v, got, v)
		}
		return err
	})
}

// Many goroutines of a PE put at the same time, more than the connections hold.
func TestManyGoroutinesPut(t *testing.T) {
	l := newTestbed(t, shape{3, 1, 4}, shmem.Config{})
	const workers, each = 8, 300
	s := allocate[uint64](l, 3*workers*each)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		errs := make(chan error, workers)
		for w := range workers {
			go func() {
				var err error
				for i := 0; i < each && err == nil; i++ {
					k := (pe.Rank()*workers+w)*each + i
					for to := range 3 {
						if err == nil {
							err = shmem.P(ctx, pe, s.At(k), uint64(k+1), to)
						}
					}
				}
				errs <- err
			}()
		}
		for range workers {
			if err := <-errs; err != nil {
				return err
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		for k, v := range s.Local(pe) {
			if v != uint64(k+1) {
				return wrong("PE %d: word %d is %d", pe.Rank(), k, v)
			}
		}
		return nil
	})
}

// Fence waits for nothing, even without room for an operation: the next call waits; when that
// fails, the fence stays in force.
func TestFenceDoesNotWait(t *testing.T) {
	t.Parallel() // most of the time it waits
	l := newTestbed(t, shape{2, 2, 1}, shmem.Config{})
	s := allocate[uint64](l, 2)
	slow := l.fabric.Inject(soft.Fault{Kind: soft.Delay, Count: -1, Delay: time.Second, Match: isWrite})
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		var err error
		for err == nil { // until there is no room
			err = shmem.P(ended, pe, s, 1, 1)
		}
		if !errors.Is(err, context.Canceled) {
			return err
		}
		slow.Remove()
		pe.Fence() // if it waited for room, there would be some after it
		if err := shmem.P(ended, pe, s.At(1), 7, 1); !errors.Is(err, context.Canceled) {
			return wrong("put without room: %v", err)
		}
		if err := shmem.P(ctx, pe, s.At(1), 8, 1); err != nil {
			return err
		}
		if err := pe.Quiet(ctx); err != nil {
			return err
		}
		v := make([]uint64, 2)
		if err := shmem.Get(ctx, pe, v, s, 1); err != nil || v[0] != 1 || v[1] != 8 {
			return wrong("%v, %v, want 1 and 8", v, err)
		}
		return nil
	})
}

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
		{"reduce: op", "reduce: invalid argument: op unknown operation 99: elements of uint64 have sum, " +
			"prod, min, max, and, or, xor", shmem.Reduce(ctx, pe, v, v, 99)},
		{"reduce: last op", "op unknown operation 255: ", shmem.Reduce(ctx, pe, v, v, 255)},
		{"reduce: floats", "op xor: elements of float64 have sum, prod, min, max only",
			shmem.Reduce(ctx, pe, []float64{1}, []float64{1}, shmem.OpXor)},
		{"reduce func: lengths", "shmem: reduce func: invalid argument: dst has 5 elements, src 4",
			shmem.ReduceFunc(ctx, pe, v, v[:4], func(a, _ uint64) uint64 { return a })},
		{"reduce func: nil", "shmem: reduce func: invalid argument: fn is nil",
			shmem.ReduceFunc(ctx, pe, v, v, nil)},
		{"reduce-scatter: lengths", "src has 5 elements: 2 for each of 2 PEs are 4",
			shmem.ReduceScatter(ctx, pe, v[:2], v, shmem.OpSum)},
		{"reduce-scatter: overlap", "dst and src overlap",
			shmem.ReduceScatter(ctx, pe, v[:2], v[:4], shmem.OpSum)},
		{"scan: lengths", "scan: invalid argument: dst has 4 elements, src 5",
			shmem.Scan(ctx, pe, v[:4], v, shmem.OpSum)},
		{"all-gather: lengths", "dst has 5 elements", shmem.AllGather(ctx, pe, v, v)},
		{"all-gather: overlap", "dst and src overlap", shmem.AllGather(ctx, pe, v[:4], v[1:3])},
		{"all-gather: another's part", "dst and src overlap", shmem.AllGather(ctx, pe, v[:4], v[2:4])},
		{"all-gather: overlap at the end", "dst and src overlap", shmem.AllGather(ctx, pe, v[:4], v[3:])},
		{"gather: root", "gather: invalid argument: root 2: the ranks are 0 to 1",
			shmem.Gather(ctx, pe, v, v, 2)},
		{"gather: lengths", "gather: invalid argument: 5 elements for 2 PEs, and 2 for each of them",
			shmem.Gather(ctx, pe, v, v[:2], 0)},
		{"scatter: lengths", "scatter: invalid argument: 5 elements for 2 PEs, and 2 for each of them",
			shmem.Scatter(ctx, pe, v[:2], v, 0)},
		{"scatter: overlap", "dst and src overlap", shmem.Scatter(ctx, pe, v[1:3], v[:4], 0)},
		{"all-to-all: lengths", "dst has 5 elements", shmem.AllToAll(ctx, pe, v, v)},
		{"all-to-all: overlap", "dst and src overlap", shmem.AllToAll(ctx, pe, v[:4], v[1:])},
	} {
		if !errors.Is(c.err, verbs.ErrInvalid) || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, c.err, c.says)
		}
	}
	if st := pe.Stats().Transport; st.Atomics != 0 {
		t.Errorf("refused calls have sent %d atomics", st.Atomics)
	}
	l.closesWith("PE 1: shmem: close: collective calls do not match: PE 0 called all-to-all with wrong " +
		"arguments: see its error")
}

// TestNilArguments: nil arguments are refused.
func TestNilArguments(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	var none context.Context
	for name, err := range map[string]error{
		"join": func() error { _, err := shmem.Join(l.ctx, nil, shmem.Config{}); return err }(),
		"new local": func() error {
			_, err := shmem.NewLocal(l.ctx, shmem.Config{}, l.doms[0],
				nil)
			return err
		}(),
		"join, no context": func() error {
			_, err := shmem.Join(none, l.doms[0], shmem.Config{})
			return err
		}(),
		"new local, no context": func() error {
			_, err := shmem.NewLocal(none, shmem.Config{}, l.doms[0])
			return err
		}(),
		"run, no context": l.world.Run(none, func(context.Context, *shmem.PE) error {
			t.Error("it ran")
			return nil
		}),
		"close, no context":    l.world.Close(none),
		"close PE, no context": l.world.PEs()[0].Close(none),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWorldOfNil: a world of a PE that is nil panics where it is made, and says which it is.
func TestWorldOfNil(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 1}, shmem.Config{})
	defer func() {
		if got, want := recover(), "shmem: new world: PE 1 of 2 is nil"; got != want {
			t.Errorf("panics with %v, want %q", got, want)
		}
	}()
	shmem.NewWorld(l.world.PEs()[0], nil)
}

// Each atomic makes its change, and returns the value before.
func TestAtomics(t *testing.T) {
	t.Run("int32", func(t *testing.T) { atomics[int32](t) })
	t.Run("uint32", func(t *testing.T) { atomics[uint32](t) })
	t.Run("int64", func(t *testing.T) { atomics[int64](t) })
	t.Run("uint64", func(t *testing.T) { atomics[uint64](t) })
}

// atomics calls all atomics on a word between neighbours, on another PE and on the PE itself.
func atomics[T shmem.Word](t *testing.T) {
	l := newTestbed(t, shape{2, 1, 2}, shmem.Config{})
	s := allocate[T](l, 4)
	minus := T(0)
	minus--
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		for to := range 2 {
			for i := range 4 {
				if err := shmem.Set(ctx, pe, s.At(i), T(100+i), to); err != nil {
					return err
				}
			}
			for i := range 4 {
				if err := atomicSteps(ctx, pe, s.At(i), T(100+i), minus, to); err != nil {
					return fmt.Errorf("PE %d, word %d: %w", to, i, err)
				}
			}
		}
		return nil
	})
}

func atomicSteps[T shmem.Word](ctx context.Context, pe *shmem.PE, w shmem.Sym[T], start, minus T,
	to int) error {
	step := func(name string, wantOld, wantNew T) func(T, error) error {
		return func(old T, err error) error {
			if err != nil {
				return err
			}
			if err := pe.Quiet(ctx); err != nil {
				return err
			}
			now, err := shmem.Fetch(ctx, pe, w, to)
			if err != nil || old != wantOld || now != wantNew {
				return wrong("%s: old %v, now %v, %v; want %v and %v", name, old, now, err, wantOld, wantNew)
			}
			return nil
		}
	}
	quietly := func(old T, err error) (T, error) { return old, err }
	v := start
	for _, err := range []error{
		step("fetch add", v, v+5)(shmem.FetchAdd(ctx, pe, w, 5, to)),
		// minus one: wraps where there is no sign
		step("add", v+5, v+4)(quietly(v+5, shmem.Add(ctx, pe, w, minus, to))),
		step("fetch inc", v+4, v+5)(shmem.FetchInc(ctx, pe, w, to)),
		step("inc", v+5, v+6)(quietly(v+5, shmem.Inc(ctx, pe, w, to))),
		step("swap", v+6, minus)(shmem.Swap(ctx, pe, w, minus, to)),
		step("fetch inc over the end", minus, 0)(shmem.FetchInc(ctx, pe, w, to)),
		step("compare swap, not equal", 0, 0)(shmem.CompareSwap(ctx, pe, w, 1, 9, to)),
		step("compare swap", 0, minus)(shmem.CompareSwap(ctx, pe, w, 0, minus, to)),
		step("compare swap of all ones", minus, 12)(shmem.CompareSwap(ctx, pe, w, minus, 12, to)),
		step("fetch and", 12, 8)(shmem.FetchAnd(ctx, pe, w, 9, to)),
		step("and", 8, 8)(quietly(8, shmem.And(ctx, pe, w, 15, to))),
		step("fetch or", 8, 11)(shmem.FetchOr(ctx, pe, w, 3, to)),
		step("or", 11, 15)(quietly(11, shmem.Or(ctx, pe, w, 4, to))),
		step("fetch xor", 15, 10)(shmem.FetchXor(ctx, pe, w, 5, to)),
		step("xor", 10, 0)(quietly(10, shmem.Xor(ctx, pe, w, 10, to))),
		step("set", 0, start)(quietly(0, shmem.Set(ctx, pe, w, start, to))),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// A lock keeps others out, and what its holder has put is there for the next one.
func TestLock(t *testing.T) {
	l := newTestbed(t, shape{4, 1, 4}, shmem.Config{})
	words := allocate[uint64](l, 2)
	lock, count := words.At(0), words.At(1)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		for range 25 {
			if err := shmem.Lock(ctx, pe, lock); err != nil {
				return err
			}
			if held, err := shmem.TryLock(ctx, pe, lock); held || err != nil {
				return wrong("locked twice: %v, %w", held, err)
			}
			v, err := shmem.G(ctx, pe, count, 2)
			if err == nil {
				err = shmem.P(ctx, pe, count, v+1, 2)
			}
			if err = errors.Join(err, shmem.Unlock(ctx, pe, lock)); err != nil {
				return err
			}
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		if v, err := shmem.G(ctx, pe, count, 2); v != 100 || err != nil {
			return wrong("count %d: %w", v, err)
		}
		if err := shmem.Unlock(ctx, pe, lock); !errors.Is(err, verbs.ErrInvalid) {
			return wrong("unlock of what is not held: %w", err)
		}
		return nil
	})
}

// Elements with a stride, and words of which some have changed.
func TestStridesAndSome(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 2}, shmem.Config{})
	words := allocate[uint32](l, 10)
	l.run(func(ctx context.Context, pe *shmem.PE) error {
		to := 1 - pe.Rank()
		src := []uint32{1, 0, 2, 0, 3}
		if err := shmem.IPut(ctx, pe, words, src, 4, 2, 3, to); err != nil {
			return err
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		back := make([]uint32, 6)
		if err := shmem.IGet(ctx, pe, back, words, 2, 4, 3, to); err != nil ||
			!slices.Equal(back, []uint32{1, 0, 2, 0, 3, 0}) {
			return wrong("read back: %v, %w", back, err)
		}
		some, err := shmem.WaitUntilSome(ctx, pe, words, shmem.GE, 2, nil)
		if err != nil || !slices.Equal(some, []int{4, 8}) {
			return wrong("words of 2 and more: %v, %w", some, err)
		}
		some, err = shmem.TestSome(pe, words, shmem.GT, 3, some[:0])
		if err != nil || len(some) != 0 {
			return wrong("words of more than 3: %v, %w", some, err)
		}
		for _, bad := range [][3]int{{0, 1, 1}, {1, 0, 1}, {5, 1, 3}, {1, 3, 3}, {1, 1, -1}, {1, 1, 6}} {
			err := shmem.IPut(ctx, pe, words, src, bad[0], bad[1], bad[2], to)
			if !errors.Is(err, verbs.ErrInvalid) {
				return wrong("strides %v: %w", bad, err)
			}
		}
		return nil
	})
}
