package shmem

import (
	"errors"
	"testing"
)

// check fails the test unless the invariant holds.
func (b *blocks) check(t *testing.T) {
	t.Helper()
	total, used, end := uint64(0), uint64(0), uint64(0)
	for i, s := range b.free {
		if s.length == 0 || s.off%blockAlign != 0 || s.length%blockAlign != 0 {
			t.Fatalf("free span %d is %+v", i, s)
		}
		if i > 0 && s.off <= end {
			t.Fatalf("free span %+v touches or overlaps the one before, which ends at %d", s, end)
		}
		end = s.off + s.length
		total += s.length
	}
	owner := map[uint64]bool{}
	mark := func(off, length uint64) {
		if off < b.start || off+length > b.start+b.size {
			t.Fatalf("%d bytes at %d are outside of the heap", length, off)
		}
		for at := off; at < off+length; at += blockAlign {
			if owner[at] {
				t.Fatalf("line %d is covered twice", at)
			}
			owner[at] = true
		}
	}
	for _, s := range b.free {
		mark(s.off, s.length)
	}
	for off, length := range b.taken {
		mark(off, length)
		used += length
	}
	if used != b.used || total+used != b.size {
		t.Fatalf("%d free, %d used (counted as %d) of %d", total, used, b.used, b.size)
	}
}

func TestBlocksFirstFitAndCoalescing(t *testing.T) {
	b := newBlocks(1024, 1024)
	must := func(bytes, want uint64) uint64 {
		t.Helper()
		off, err := b.alloc(bytes)
		if err != nil || off != want {
			t.Fatalf("alloc(%d) = %d, %v; want %d", bytes, off, err, want)
		}
		b.check(t)
		return off
	}
	x := must(1, 1024)
	y := must(64, 1088)
	z := must(65, 1152)
	must(0, 1280) // nothing has a place of its own, too
	b.release(x)
	b.check(t)
	b.release(z)
	b.check(t)
	must(100, 1152) // does not fit where x was
	must(64, 1024)
	b.release(y)
	must(33, 1088)
	if _, err := b.alloc(1024); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("too large: %v", err)
	}
	if _, err := b.alloc(1 << 63); !errors.Is(err, ErrNoMemory) {
		t.Fatalf("absurd: %v", err)
	}
	for off := range b.taken {
		b.release(off)
		b.check(t)
	}
	must(1024, 1024) // all of it in one piece again
}

func TestBlocksKnowTheirOwn(t *testing.T) {
	b := newBlocks(64, 1024)
	off, err := b.alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if !b.holds(off, 100) || b.holds(off+64, 36) || b.holds(off, 50) || b.holds(0, 100) {
		t.Fatal("holds is wrong")
	}
	b.release(off)
	if b.holds(off, 100) {
		t.Fatal("holds what was released")
	}
}

// Any sequence of calls keeps the invariant, and the same calls give the same answers.
func FuzzBlocks(f *testing.F) {
	f.Add([]byte{10, 20, 0, 200, 1, 30})
	f.Add([]byte{255, 255, 255, 0, 0, 0, 64, 64})
	f.Fuzz(func(t *testing.T, calls []byte) {
		a, b := newBlocks(4096, 16<<10), newBlocks(4096, 16<<10)
		var live []uint64
		for i, c := range calls {
			if c%3 == 0 && len(live) != 0 {
				k := i % len(live)
				a.release(live[k])
				b.release(live[k])
				live = append(live[:k], live[k+1:]...)
			} else {
				x, errA := a.alloc(uint64(c) * 5)
				y, errB := b.alloc(uint64(c) * 5)
				if x != y || (errA == nil) != (errB == nil) {
					t.Fatalf("the same calls gave %d, %v and %d, %v", x, errA, y, errB)
				}
				if errA == nil {
					live = append(live, x)
				}
			}
			a.check(t)
		}
		for _, off := range live {
			a.release(off)
		}
		a.check(t)
		if len(a.free) != 1 {
			t.Fatalf("free after all was released: %+v", a.free)
		}
	})
}
