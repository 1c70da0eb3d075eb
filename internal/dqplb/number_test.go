package dqplb

import (
	"math/rand/v2"
	"testing"
)

// lastNum is the highest number that is ever sent; 0 follows.
const lastNum = 0xFFFFFE

func TestNumbersWrapBeforeTheReservedOne(t *testing.T) {
	for _, c := range []struct{ s, next uint32 }{{0, 1}, {lastNum - 1, lastNum}, {lastNum, 0}} {
		if got := following(c.s); got != c.next {
			t.Errorf("after %#x comes %#x, want %#x", c.s, got, c.next)
		}
	}
	for _, c := range []struct{ s, n, sum uint32 }{
		{0, 0, 0}, {0, lastNum, lastNum}, {1, lastNum, 0}, {lastNum, 0, lastNum}, {lastNum, 1, 0},
		{lastNum, lastNum, lastNum - 1}, {lastNum - 5, 10, 4},
	} {
		if got := Distance(c.s, c.sum); got != c.n {
			t.Errorf("distance from %#x to %#x = %d, want %d", c.s, c.sum, got, c.n)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		s, n := rng.Uint32N(Mod), rng.Uint32N(Mod)
		sum := uint32((uint64(s) + uint64(n)) % Mod)
		if got := Distance(s, sum); got != n {
			t.Fatalf("distance from %#x to %#x = %d, want %d", s, sum, got, n)
		}
		if next := following(s); next > lastNum || Distance(s, next) != 1 {
			t.Fatalf("after %#x comes %#x", s, next)
		}
	}
}

// On the wire a number is little-endian, which package verbs sees as swapped.
func TestNumberImmediateIsSwapped(t *testing.T) {
	for _, c := range []struct{ v, imm uint32 }{{0x000001, 0x01000000}, {0x80123456, 0x56341280},
		{1 << 30, 0x40}} {
		if got := Swap(c.v); got != c.imm || Swap(got) != c.v {
			t.Errorf("%#x travels as %#x, want %#x", c.v, got, c.imm)
		}
	}
}
