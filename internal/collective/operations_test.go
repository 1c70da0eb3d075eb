package collective

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// plain is each operation as one would write it down.
func plain[T real](op Op, a, b T) T {
	switch op {
	case Sum:
		return a + b
	case Prod:
		return a * b
	case Min:
		return min(a, b)
	}
	return max(a, b)
}

func checkElement[T real](t *testing.T, value func() T) {
	t.Run(fmt.Sprintf("%T", T(0)), func(t *testing.T) {
		for op := Sum; op <= Max; op++ {
			a, b := make([]T, 67), make([]T, 67)
			want := make([]T, len(a))
			for i := range a {
				a[i], b[i] = value(), value()
				want[i] = plain(op, a[i], b[i])
			}
			c := make([]T, len(a))
			TypeOf[T]().Combine(op, Bytes(c), Bytes(a), Bytes(b))
			Apply(op, b, a, b)
			for i := range want {
				if b[i] != want[i] || c[i] != want[i] {
					t.Fatalf("%v: element %d is %v and %v, want %v", op, i, b[i], c[i], want[i])
				}
			}
		}
		if Apply[T](And, nil, nil, nil) || Apply[T](Xor, nil, nil, nil) {
			t.Error("bits of a type that may be a float")
		}
		half := plain(Prod, value(), 0)
		half++
		if float := half/2 != 0; TypeOf[T]().IsFloat() != float {
			t.Errorf("is a float: %v, want %v", TypeOf[T](), float)
		}
	})
}

type celsius float32

func TestApply(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	checkElement(t, func() int8 { return int8(rng.Int()) })
	checkElement(t, func() uint8 { return uint8(rng.Int()) })
	checkElement(t, func() int16 { return int16(rng.Int()) })
	checkElement(t, func() uint16 { return uint16(rng.Int()) })
	checkElement(t, rng.Int32)
	checkElement(t, rng.Uint32)
	checkElement(t, rng.Int64)
	checkElement(t, rng.Uint64)
	checkElement(t, rng.Float32)
	checkElement(t, rng.NormFloat64)
	checkElement(t, func() celsius { return celsius(rng.Float32()) })
}

// Complex numbers have sums and products, and no order.
func TestComplex(t *testing.T) {
	t.Run("complex64", checkComplex[complex64])
	t.Run("complex128", checkComplex[complex128])
}

func checkComplex[T complex64 | complex128](t *testing.T) {
	a, b := []T{1 + 2i, 3}, []T{2 - 1i, -1i}
	for op, want := range map[Op][]T{Sum: {3 + 1i, 3 - 1i}, Prod: {4 + 3i, -3i}} {
		got, bytes := make([]T, 2), make([]T, 2)
		TypeOf[T]().Combine(op, Bytes(bytes), Bytes(a), Bytes(b))
		if ok := Apply(op, got, a, b); !ok || got[0] != want[0] || got[1] != want[1] || bytes[1] != want[1] {
			t.Errorf("%v: %v, %v, %v; want %v", op, ok, got, bytes, want)
		}
	}
	e := TypeOf[T]()
	for op := range ops {
		if e.Has(op) != (op <= Prod) || op > Prod && Apply[T](op, nil, nil, nil) {
			t.Errorf("%v has %v: %v", e, op, e.Has(op))
		}
	}
	if name := fmt.Sprintf("%T", a[0]); e.String() != name || e.Size() != SizeOf[T]() || !e.IsFloat() {
		t.Errorf("%s is %v, of %d bytes", name, e, e.Size())
	}
}

func TestBitwise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 20 {
		a, b, to := make([]byte, n), make([]byte, n), make([]byte, n)
		for i := range n {
			a[i], b[i] = byte(rng.Int()), byte(rng.Int())
		}
		for op, want := range map[Op]func(a, b byte) byte{
			And: func(a, b byte) byte { return a & b },
			Or:  func(a, b byte) byte { return a | b },
			Xor: func(a, b byte) byte { return a ^ b },
		} {
			Bitwise(op)(to, a, b)
			for i := range n {
				if to[i] != want(a[i], b[i]) {
					t.Fatalf("%v of %d bytes: byte %d is %#x", op, n, i, to[i])
				}
			}
		}
	}
	if Bitwise(Sum) != nil {
		t.Error("a bitwise sum")
	}
}

// Every value of 16 bits survives, and a float32 goes to the nearest one, ties to even.
func TestHalfFloats(t *testing.T) {
	t.Run("Float16", func(t *testing.T) { checkHalf(t, ToFloat16, Float16.Float32, 0x7c00) })
	t.Run("BFloat16", func(t *testing.T) { checkHalf(t, ToBFloat16, BFloat16.Float32, 0x7f80) })
	for _, c := range []struct {
		bits Float16
		want float32
	}{{0x3c00, 1}, {0xc000, -2}, {0x7bff, 65504}, {0x0001, 0x1p-24}, {0x0400, 0x1p-14}} {
		if got := c.bits.Float32(); got != c.want {
			t.Errorf("float16 %#x is %v, want %v", uint16(c.bits), got, c.want)
		}
	}
	if got := BFloat16(0x3f80).Float32(); got != 1 {
		t.Errorf("bfloat16 0x3f80 is %v, want 1", got)
	}
}

// checkHalf takes the bits of infinity.
func checkHalf[T Float16 | BFloat16](t *testing.T, to func(float32) T, from func(T) float32, inf T) {
	for bits := range 1 << 16 {
		v := T(bits)
		f := from(v)
		if v&^(1<<15) > inf {
			if f == f || from(to(f)) == from(to(f)) {
				t.Fatalf("%#x is %v: want NaN", v, f)
			}
			continue
		}
		if back := to(f); back != v {
			t.Fatalf("%#x is %v, and that %#x", v, f, back)
		}
		if v&^(1<<15) >= inf-1 {
			continue
		}
		next := from(v + 1)
		middle := float32((float64(f) + float64(next)) / 2)
		even := v + v&1
		if got := to(middle); got != even {
			t.Fatalf("%v, between %#x and the next, goes to %#x, want %#x", middle, v, got, even)
		}
		if got := to(math.Nextafter32(middle, f)); got != v {
			t.Fatalf("just below %v: %#x, want %#x", middle, got, v)
		}
		if got := to(math.Nextafter32(middle, next)); got != v+1 {
			t.Fatalf("just above %v: %#x, want %#x", middle, got, v+1)
		}
	}
	if got := to(math.MaxFloat32); got != inf {
		t.Errorf("the largest float32 is %#x, want infinity", got)
	}
}

func TestApplyHalf(t *testing.T) {
	n := 130
	a, b := make([]Float16, n), make([]Float16, n)
	for i := range n {
		a[i], b[i] = ToFloat16(float32(i)), ToFloat16(0.5)
	}
	Apply(Sum, a, a, b)
	for i := range n {
		if got := a[i].Float32(); got != float32(i)+0.5 {
			t.Errorf("%d + ½ is %v", i, got)
		}
	}
	if x := []BFloat16{ToBFloat16(3)}; true {
		if Apply(Max, x, x, []BFloat16{ToBFloat16(-4)}); x[0].Float32() != 3 {
			t.Errorf("the most of 3 and -4 is %v", x[0].Float32())
		}
	}
	if Apply[Float16](Or, nil, nil, nil) || !TypeOf[Float16]().IsFloat() ||
		!TypeOf[BFloat16]().IsFloat() {
		t.Error("bits of floats")
	}
}

// A run allocates nothing once it has carried out as long a schedule.
func TestAllocations(t *testing.T) {
	var cache Cache
	var run Run
	shape := Shape{Kind: AllReduce, Algorithm: Ring, Ranks: 8, Rank: 3, Count: 1000, Piece: 10, Depth: 4}
	once := func() {
		s, err := cache.Schedule(&shape)
		if err != nil {
			t.Fatal(err)
		}
		run.Start(s)
		for !run.Finished() {
			i, ok := run.Next()
			if !ok {
				t.Fatal("nothing to do")
			}
			run.Done(i)
		}
	}
	once()
	if n := testing.AllocsPerRun(10, once); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A step that has not begun, or is done, cannot be done.
func TestDoneTwice(t *testing.T) {
	s, err := New(Shape{Kind: Barrier, Algorithm: Dissemination, Ranks: 3, Piece: 1, Depth: 1})
	if err != nil {
		t.Fatal(err)
	}
	var run Run
	run.Start(s)
	i, _ := run.Next()
	run.Done(i)
	for _, step := range []int{i, len(s.Steps) - 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("step %d is done in stage %d", step, run.Stage(step))
				}
			}()
			run.Done(step)
		}()
	}
}

// The loops of the package, and one as a caller would write it.
func BenchmarkApply(b *testing.B) {
	const n = 16 << 10
	x, y := make([]float32, n), make([]float32, n)
	h, k := make([]Float16, n), make([]Float16, n)
	bytes := make([]byte, 4*n)
	xor := Bitwise(Xor)
	for _, c := range []struct {
		name string
		loop func()
	}{
		{"plain", func() {
			for i, v := range y {
				x[i] += v
			}
		}},
		{"float32", func() { Apply(Sum, x, x, y) }},
		{"float16", func() { Apply(Sum, h, h, k) }},
		{"xor", func() { xor(bytes, bytes, bytes) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(4 * n)
			for b.Loop() {
				c.loop()
			}
		})
	}
}

// What one step costs the transport, and the making of a schedule.
func BenchmarkRun(b *testing.B) {
	shape := Shape{Kind: AllReduce, Algorithm: Ring, Ranks: 4, Rank: 1, Count: 16 << 20, Piece: 64 << 10,
		Depth: 8}
	s, err := New(shape)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("step", func(b *testing.B) {
		var run Run
		for k := 0; k < b.N; k += len(s.Steps) {
			run.Start(s)
			for i, ok := run.Next(); ok; i, ok = run.Next() {
				run.Done(i)
			}
		}
	})
	b.Run("make", func(b *testing.B) {
		for b.Loop() {
			_, _ = New(shape)
		}
		b.ReportMetric(float64(len(s.Steps)), "steps")
	})
}

// TestRecord: a record describes the last calls, and its hash depends on every argument of all of
// them.
func TestRecord(t *testing.T) {
	var r Record[int]
	if _, ok := r.At(0); ok {
		t.Error("a call that nobody has made")
	}
	hashes := map[uint64]bool{r.Hash: true}
	for step := 1; step <= 100; step++ {
		r.Add(7, step)
		r.Describe(step)
		hashes[r.Hash] = true
		first := max(1, step-remembered+1)
		for _, at := range []int{first, step} {
			if call, ok := r.At(uint64(at)); !ok || call != at || r.Last() != step {
				t.Fatalf("after %d calls: call %d is %d, %v, the last %d", step, at, call, ok, r.Last())
			}
		}
		for _, at := range []int{first - 1, step + 1} {
			if _, ok := r.At(uint64(at)); ok {
				t.Fatalf("after %d calls: there is call %d", step, at)
			}
		}
	}
	other := Record[int]{Step: r.Step, Hash: r.Hash}
	r.Add(1, 2)
	other.Add(2, 1)
	if len(hashes) != 101 || r.Hash == other.Hash {
		t.Errorf("%d hashes of 101 records, %#x, %#x", len(hashes), r.Hash, other.Hash)
	}
}
