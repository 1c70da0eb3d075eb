package shmem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

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
// fence itself sends.
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
				want := "shmem: " + op.name + ": context canceled"
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
