package collective

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"unsafe"
)

// Op is an operation that combines two elements.
type Op uint8

// The operations. Min and Max are Go's, also of floats: NaN if one is NaN.
const (
	Sum Op = iota
	Prod
	Min
	Max
	And
	Or
	Xor
	ops
)

// opNames has the names in the order of the constants.
var opNames = [ops]string{"sum", "prod", "min", "max", "and", "or", "xor"}

// String returns the name of the operation.
func (o Op) String() string {
	if o < ops {
		return opNames[o]
	}
	return fmt.Sprintf("unknown operation %d", uint8(o))
}

// Element is the type of what calls move. [Float16] and [BFloat16] are floats; other types that are
// built on uint16 are integers.
type Element interface {
	real | ~complex64 | ~complex128
}

// real is an element with an order.
type real interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~float32 | ~float64
}

// Float16 is a float of 16 bits, IEEE 754's binary16: 5 of exponent, 10 of fraction.
type Float16 uint16

// BFloat16 is a float of 16 bits: the upper half of a float32.
type BFloat16 uint16

// Type is what ranks compare of an element's type, in 4 bits: the logarithm of its size in the
// lower two, and its class. No float has one byte: those types are complex.
type Type uint8

// The classes of elements.
const (
	unsigned Type = iota << 2
	signed
	float // Float16 among them
	brain // BFloat16

	classes = 3 << 2

	typeComplex64  = float
	typeComplex128 = brain
)

// TypeOf returns the type of an element.
func TypeOf[T Element]() Type {
	size := Type(bits.TrailingZeros(uint(SizeOf[T]())))
	var zero T
	switch any(zero).(type) {
	case Float16:
		return float | size
	case BFloat16:
		return brain | size
	}
	switch kind := reflect.TypeFor[T]().Kind(); {
	case kind == reflect.Complex64:
		return typeComplex64
	case kind == reflect.Complex128:
		return typeComplex128
	case kind >= reflect.Float32:
		return float | size
	case kind <= reflect.Int64:
		return signed | size
	}
	return unsigned | size
}

// Size returns the length of an element in bytes.
func (e Type) Size() int {
	switch e {
	case typeComplex64:
		return 8
	case typeComplex128:
		return 16
	}
	return 1 << (e &^ classes)
}

// IsFloat reports whether elements are floats or complex, which have no bits to combine.
func (e Type) IsFloat() bool { return e&classes >= float }

// isComplex reports whether elements have no order.
func (e Type) isComplex() bool { return e == typeComplex64 || e == typeComplex128 }

// Operations names those that elements have, for errors.
func (e Type) Operations() string {
	switch {
	case e.isComplex():
		return "sum, prod only"
	case e.IsFloat():
		return "sum, prod, min, max only"
	}
	return "sum, prod, min, max, and, or, xor"
}

// String returns the name of the type, or of the type that it is defined on.
func (e Type) String() string {
	size := 8 * e.Size()
	switch class := e & classes; {
	case e.isComplex():
		return fmt.Sprintf("complex%d", size)
	case class == unsigned:
		return fmt.Sprintf("uint%d", size)
	case class == signed:
		return fmt.Sprintf("int%d", size)
	case class == brain:
		return "BFloat16"
	case size == 16:
		return "Float16"
	}
	return fmt.Sprintf("float%d", size)
}

// Apply sets to[i] to a[i] op b[i]. The slices have the same length; to may be a or b. It does
// nothing and returns false for an operation that only [Bitwise] has, or that the elements do not
// have.
func Apply[T Element](op Op, to, a, b []T) (ok bool) {
	switch to := any(to).(type) {
	case []Float16:
		return combineFloat16(op, to, any(a).([]Float16), any(b).([]Float16))
	case []BFloat16:
		return combineBFloat16(op, to, any(a).([]BFloat16), any(b).([]BFloat16))
	}
	switch op {
	case Sum:
		sum(to, a, b)
	case Prod:
		prod(to, a, b)
	case Min, Max:
		return TypeOf[T]().choose(op, Bytes(to), Bytes(a), Bytes(b))
	default:
		return false
	}
	return true
}

// choose is Apply of Min and Max.
func (e Type) choose(op Op, to, a, b []byte) (ok bool) {
	switch e {
	case TypeOf[uint8]():
		chooseFrom[uint8](op, to, a, b)
	case TypeOf[uint16]():
		chooseFrom[uint16](op, to, a, b)
	case TypeOf[uint32]():
		chooseFrom[uint32](op, to, a, b)
	case TypeOf[uint64]():
		chooseFrom[uint64](op, to, a, b)
	case TypeOf[int8]():
		chooseFrom[int8](op, to, a, b)
	case TypeOf[int16]():
		chooseFrom[int16](op, to, a, b)
	case TypeOf[int32]():
		chooseFrom[int32](op, to, a, b)
	case TypeOf[int64]():
		chooseFrom[int64](op, to, a, b)
	case TypeOf[float32]():
		chooseFrom[float32](op, to, a, b)
	case TypeOf[float64]():
		chooseFrom[float64](op, to, a, b)
	default:
		return false
	}
	return true
}

func chooseFrom[T real](op Op, to, a, b []byte) {
	if op == Min {
		least(View[T](to), View[T](a), View[T](b))
	} else {
		most(View[T](to), View[T](a), View[T](b))
	}
}

// Bitwise returns the function of And, Or and Xor for integers of any size, as bytes; nil for
// others.
func Bitwise(op Op) func(to, a, b []byte) {
	switch op {
	case And:
		return and
	case Or:
		return or
	case Xor:
		return xor
	}
	return nil
}

// Has reports whether elements have an operation.
func (e Type) Has(op Op) bool {
	return op <= Prod || op <= Max && !e.isComplex() || op < ops && !e.IsFloat()
}

// Combine sets to to a op b, which are the memory of elements that have the operation. Unlike
// [Apply] it needs no type parameter, so a function value of it captures nothing.
func (e Type) Combine(op Op, to, a, b []byte) {
	if bits := Bitwise(op); bits != nil {
		bits(to, a, b)
		return
	}
	switch e {
	case TypeOf[uint8]():
		applyBytes[uint8](op, to, a, b)
	case TypeOf[uint16]():
		applyBytes[uint16](op, to, a, b)
	case TypeOf[uint32]():
		applyBytes[uint32](op, to, a, b)
	case TypeOf[uint64]():
		applyBytes[uint64](op, to, a, b)
	case TypeOf[int8]():
		applyBytes[int8](op, to, a, b)
	case TypeOf[int16]():
		applyBytes[int16](op, to, a, b)
	case TypeOf[int32]():
		applyBytes[int32](op, to, a, b)
	case TypeOf[int64]():
		applyBytes[int64](op, to, a, b)
	case TypeOf[Float16]():
		applyBytes[Float16](op, to, a, b)
	case TypeOf[BFloat16]():
		applyBytes[BFloat16](op, to, a, b)
	case TypeOf[float32]():
		applyBytes[float32](op, to, a, b)
	case typeComplex64:
		applyBytes[complex64](op, to, a, b)
	case typeComplex128:
		applyBytes[complex128](op, to, a, b)
	default:
		applyBytes[float64](op, to, a, b)
	}
}

// applyBytes is Apply on the memory of elements.
func applyBytes[T Element](op Op, to, a, b []byte) { Apply(op, View[T](to), View[T](a), View[T](b)) }

func sum[T Element](to, a, b []T) {
	a, b = a[:len(to)], b[:len(to)]
	for i := range to {
		to[i] = a[i] + b[i]
	}
}

func prod[T Element](to, a, b []T) {
	a, b = a[:len(to)], b[:len(to)]
	for i := range to {
		to[i] = a[i] * b[i]
	}
}

func least[T real](to, a, b []T) {
	a, b = a[:len(to)], b[:len(to)]
	for i := range to {
		to[i] = min(a[i], b[i])
	}
}

func most[T real](to, a, b []T) {
	a, b = a[:len(to)], b[:len(to)]
	for i := range to {
		to[i] = max(a[i], b[i])
	}
}

// Eight bytes at a time: the compiler makes one load of each Uint64.

func and(to, a, b []byte) {
	a, b = a[:len(to)], b[:len(to)]
	i := 0
	for ; i+8 <= len(to); i += 8 {
		word := binary.NativeEndian.Uint64(a[i:]) & binary.NativeEndian.Uint64(b[i:])
		binary.NativeEndian.PutUint64(to[i:], word)
	}
	for ; i < len(to); i++ {
		to[i] = a[i] & b[i]
	}
}

func or(to, a, b []byte) {
	a, b = a[:len(to)], b[:len(to)]
	i := 0
	for ; i+8 <= len(to); i += 8 {
		word := binary.NativeEndian.Uint64(a[i:]) | binary.NativeEndian.Uint64(b[i:])
		binary.NativeEndian.PutUint64(to[i:], word)
	}
	for ; i < len(to); i++ {
		to[i] = a[i] | b[i]
	}
}

func xor(to, a, b []byte) {
	a, b = a[:len(to)], b[:len(to)]
	i := 0
	for ; i+8 <= len(to); i += 8 {
		word := binary.NativeEndian.Uint64(a[i:]) ^ binary.NativeEndian.Uint64(b[i:])
		binary.NativeEndian.PutUint64(to[i:], word)
	}
	for ; i < len(to); i++ {
		to[i] = a[i] ^ b[i]
	}
}

// Floats of 16 bits are widened to float32, combined and rounded, some at a time. The 24 bits of a
// float32 are more than twice those of either type and two, so rounding twice is as good as
// rounding once (Figueroa, "When is double rounding innocuous?", 1995).
const atATime = 64

func combineFloat16(op Op, to, a, b []Float16) (ok bool) {
	var x, y [atATime]float32
	for ok = op <= Max; ok && len(to) > 0; {
		n := min(len(to), len(x))
		widenFloat16(x[:n], a)
		widenFloat16(y[:n], b)
		Apply(op, x[:n], x[:n], y[:n])
		narrowFloat16(to, x[:n])
		to, a, b = to[n:], a[n:], b[n:]
	}
	return ok
}

func combineBFloat16(op Op, to, a, b []BFloat16) (ok bool) {
	var x, y [atATime]float32
	for ok = op <= Max; ok && len(to) > 0; {
		n := min(len(to), len(x))
		widenBFloat16(x[:n], a)
		widenBFloat16(y[:n], b)
		Apply(op, x[:n], x[:n], y[:n])
		narrowBFloat16(to, x[:n])
		to, a, b = to[n:], a[n:], b[n:]
	}
	return ok
}

// One loop each: a call for each element takes three times as long.

func widenFloat16(to []float32, from []Float16) {
	from = from[:len(to)]
	for i := range to {
		to[i] = from[i].Float32()
	}
}

func narrowFloat16(to []Float16, from []float32) {
	to = to[:len(from)]
	for i := range from {
		to[i] = ToFloat16(from[i])
	}
}

func widenBFloat16(to []float32, from []BFloat16) {
	from = from[:len(to)]
	for i := range to {
		to[i] = from[i].Float32()
	}
}

func narrowBFloat16(to []BFloat16, from []float32) {
	to = to[:len(from)]
	for i := range from {
		to[i] = ToBFloat16(from[i])
	}
}

// Float32 returns the value.
func (f BFloat16) Float32() float32 { return math.Float32frombits(uint32(f) << 16) }

// ToBFloat16 rounds to nearest, ties to even.
func ToBFloat16(v float32) BFloat16 {
	b := math.Float32bits(v)
	if v != v {
		return BFloat16(b>>16 | 1<<6) // a quiet NaN
	}
	return BFloat16((b + 1<<15 - 1 + b>>16&1) >> 16)
}

// Float32 returns the value. With the bits in the places of a float32 the exponent is 112 too low,
// which the product puts right, of subnormal values too.
func (f Float16) Float32() float32 {
	b := math.Float32bits(math.Float32frombits(uint32(f)&(1<<15-1)<<13) * 0x1p112)
	if b >= 143<<23 { // 2¹⁶ and more: infinity and NaN
		b |= 255 << 23
	}
	return math.Float32frombits(b | uint32(f)>>15<<31)
}

// ToFloat16 rounds to nearest, ties to even.
func ToFloat16(v float32) Float16 {
	b := math.Float32bits(v)
	sign, b := Float16(b>>16&(1<<15)), b&(1<<31-1)
	switch {
	case b > 255<<23:
		return sign | 31<<10 | 1<<9 | Float16(b>>13&1023)
	case b >= 143<<23: // 2¹⁶ and more
		return sign | 31<<10
	case b < 113<<23: // below 2⁻¹⁴ the result is subnormal: adding ½ rounds to multiples of 2⁻²⁴
		return sign | Float16(math.Float32bits(math.Float32frombits(b)+0.5)-126<<23)
	}
	return sign | Float16((b-112<<23+1<<12-1+b>>13&1)>>13) // a carry into the exponent is right
}

// Bytes returns the memory of elements.
func Bytes[T Element](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*SizeOf[T]())
}

// View returns bytes as elements. Their number must be a multiple of the size of one, and their
// address aligned to it.
func View[T Element](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/SizeOf[T]())
}

// SizeOf returns the length of an element in bytes.
func SizeOf[T Element]() int {
	var v T
	return int(unsafe.Sizeof(v))
}

// Overlap reports whether two ranges of memory share a byte.
func Overlap(a, b []byte) bool {
	x, y := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return len(a) != 0 && len(b) != 0 && x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}
