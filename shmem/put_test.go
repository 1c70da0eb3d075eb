package shmem_test

import (
	"bytes"
	"context"
	"testing"

	"ibverbx/shmem"
)

// sizes are around every limit at which a transfer takes another path.
func sizes() []int {
	return []int{1, 2, 3, 7, 8, 9, 64, 127, 128, 129, 1000, 8191, 8192, 8193, 65536, 65537, 262143, 262144,
		524288, 524289, 1000000}
}

// Put returns when the source can be reused: what is written to it afterwards never arrives.
func TestPutReturnsWhenTheSourceIsReusable(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s := allocate[byte](l, 1<<20)
		mine := allocate[byte](l, 1<<20)
		l.lag(3, isWrite)
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			sources := map[string][]byte{"heap": mine.Local(pe), "elsewhere": make([]byte, 1<<20)}
			for where, src := range sources {
				for _, n := range sizes() {
					want := make([]byte, n)
					fill(want, n)
					copy(src, want)
					if err := shmem.Put(ctx, pe, s, src[:n], 1); err != nil {
						return err
					}
					clear(src[:n]) // it is ours again
					if err := pe.Quiet(ctx); err != nil {
						return err
					}
					if got := s.Local(l.world.PEs()[1])[:n]; !bytes.Equal(got, want) {
						return wrong("%d bytes from %s did not arrive as they were", n, where)
					}
				}
			}
			return nil
		})
	})
}

// PutNBI only initiates; Quiet completes it.
func TestPutNBIIsCompleteAfterQuiet(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s := allocate[byte](l, 1<<20)
		mine := allocate[byte](l, 1<<20)
		l.lag(3, isWrite)
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			for _, src := range [][]byte{mine.Local(pe), make([]byte, 1<<20)} {
				for i, n := range sizes() {
					fill(src[:n], i)
					if err := shmem.PutNBI(ctx, pe, s, src[:n], 1); err != nil {
						return err
					}
					if err := pe.Quiet(ctx); err != nil {
						return err
					}
					if !bytes.Equal(s.Local(l.world.PEs()[1])[:n], src[:n]) {
						return wrong("%d bytes did not arrive", n)
					}
				}
			}
			return nil
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

// A PE reaches its own heap like any other.
func TestOwnHeap(t *testing.T) {
	l := newTestbed(t, shape{1, 1, 2}, shmem.Config{})
	s := allocate[int32](l, 1000)
	l.one(func(ctx context.Context, pe *shmem.PE) error {
		src := make([]int32, 1000)
		for i := range src {
			src[i] = int32(i)
		}
		if err := shmem.Put(ctx, pe, s, src, 0); err != nil {
			return err
		}
		if err := pe.Barrier(ctx); err != nil {
			return err
		}
		for i, v := range s.Local(pe) {
			if v != int32(i) {
				return wrong("element %d is %d", i, v)
			}
		}
		return nil
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

// Get returns with the data; GetNBI only initiates, and the data is there after Quiet.
func TestGetAndGetNBI(t *testing.T) {
	eachShape(t, 2, func(t *testing.T, l *testbed) {
		s := allocate[byte](l, 1<<20)
		mine := allocate[byte](l, 1<<20)
		theirs := s.Local(l.world.PEs()[1])
		l.one(func(ctx context.Context, pe *shmem.PE) error {
			for _, dst := range [][]byte{mine.Local(pe), make([]byte, 1<<20)} {
				for i, n := range sizes() {
					fill(theirs[:n], i)
					clear(dst)
					if err := shmem.Get(ctx, pe, dst[:n], s, 1); err != nil {
						return err
					}
					if !bytes.Equal(dst[:n], theirs[:n]) {
						return wrong("get of %d bytes: wrong data", n)
					}
					clear(dst)
					if err := shmem.GetNBI(ctx, pe, dst[:n], s, 1); err != nil {
						return err
					}
					if err := pe.Quiet(ctx); err != nil {
						return err
					}
					if !bytes.Equal(dst[:n], theirs[:n]) {
						return wrong("get nbi of %d bytes: wrong data", n)
					}
				}
			}
			return nil
		})
	})
}
