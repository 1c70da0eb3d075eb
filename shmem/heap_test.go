package shmem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"ibverbx/internal/collective"
	"ibverbx/verbs"
)

// Every field of the configuration takes its smallest and its largest value, and nothing beyond:
// the error names the field, its value and the bounds.
func TestBoundsOfTheConfiguration(t *testing.T) {
	exchange := func(context.Context, []byte) ([][]byte, error) { return nil, nil }
	for _, c := range []struct {
		set  func(c *Config)
		says string // "" where it is taken
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Size = 65536 }, ""},
		{func(c *Config) { c.Size = 65537 }, "Size 65537: must be 1 to 65536"},
		{func(c *Config) { c.Size = -1 }, "Size -1: must be 1 to 65536"},
		{func(c *Config) { c.Size, c.Rank = 3, 2 }, ""},
		{func(c *Config) { c.Size, c.Rank = 3, 3 }, "Rank 3: of 3 PEs the ranks are 0 to 2"},
		{func(c *Config) { c.Rank = -1 }, "Rank -1: of 1 PEs the ranks are 0 to 0"},
		{func(c *Config) { c.HeapSize = 64 }, ""},
		{func(c *Config) { c.HeapSize = 63 }, "HeapSize 63: must be 64 bytes to 64 TiB"},
		{func(c *Config) { c.HeapSize = 1 << 46 }, ""},
		{func(c *Config) { c.HeapSize = 1<<46 + 1 }, "HeapSize 70368744177665: must be 64 bytes to 64 TiB"},
		{func(c *Config) { c.Exchange = nil }, ""},
		{func(c *Config) { c.Exchange, c.Size = nil, 2 },
			"Exchange is nil: 2 PEs need it to find each other"},
		{func(c *Config) { c.Step = 1 }, ""},
		{func(c *Config) { c.Step = -1 }, "Step -1ns: must not be negative"},
		{func(c *Config) { c.Size, c.Transport.MaxEndpoints = 7, 8 }, ""},
		{func(c *Config) { c.Size, c.Transport.MaxEndpoints = 7, 7 },
			"Transport.MaxEndpoints 7: 7 PEs need 8"},
	} {
		cfg := Config{Exchange: exchange}
		c.set(&cfg)
		cfg = cfg.withDefaults()
		want := "<nil>"
		if c.says != "" {
			want = "config: invalid argument: " + c.says
		}
		err := cmp.Or(cfg.validatePlace(), cfg.validate())
		if fmt.Sprint(err) != want || c.says != "" && !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// The defaults are those of the documentation.
func TestDefaults(t *testing.T) {
	got := Config{}.withDefaults()
	want := Config{Size: 1, HeapSize: 64 << 20, RegisterFrom: 256 << 10, Step: 50 * time.Microsecond}
	want.Transport.MaxEndpoints, want.Transport.AMBuffers = 2, 1
	want.Transport.QP.Conn.Access = verbs.AccessAll
	want.Transport.Spin, want.Transport.KeepAlive = 50*time.Microsecond, 100*time.Millisecond
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	cfg := Config{}
	cfg.Transport.QP.Failover = true
	if cfg = cfg.withDefaults(); !cfg.Background {
		t.Error("nothing makes progress after the loss of a NIC")
	}
}

// What PEs of different builds must agree on, since they write into each other's memory: where
// things lie, and what the tag of a call and the mark of a barrier hold.
func TestWireFormat(t *testing.T) {
	for pes, want := range map[int]layout{
		1: {rounds: 64, closeRounds: 192, stop: 320, entered: 384, words: 896, slots: 1024, slot: 262144,
			user: 1049600},
		3: {rounds: 64, closeRounds: 192, stop: 320, entered: 384, words: 896, slots: 1280, slot: 262144,
			user: 3147008},
		100: {rounds: 64, closeRounds: 192, stop: 320, entered: 384, words: 896, slots: 13696, slot: 8192,
			user: 3290496},
		65536: {rounds: 64, closeRounds: 192, stop: 320, entered: 384, words: 896, slots: 8389504, slot: 1024,
			user: 276824960},
	} {
		l := newLayout(pes)
		if l != want {
			t.Errorf("%d PEs: %+v, want %+v", pes, l, want)
		}
		if pes < 3 {
			continue
		}
		base := want.words + 2*128
		for name, at := range map[string][2]uint64{
			"slot word 1": {l.slotWord(2, 1), base + 8}, "taken": {l.taken(2), base + 32},
			"question": {l.question(2), base + 40}, "sleeps": {l.sleeps(2), base + 64},
			"gave up": {l.gaveUp(2), base + 72},
			"slot 1":  {l.slotOf(2, 1), want.slots + 9*want.slot},
		} {
			if at[0] != at[1] {
				t.Errorf("%d PEs: %s at %d, want %d", pes, name, at[0], at[1])
			}
		}
	}
	for k, want := range map[kind]uint8{kindBroadcast: 1, kindReduce: 2, kindAllGather: 3, kindAllToAll: 4,
		kindAlloc: 5, kindFree: 6, kindBarrier: 7, kindClose: 8, kindSplit: 9,
		kindReduceScatter: 10, kindScan: 11, kindGather: 12, kindScatter: 13} {
		if uint8(k) != want {
			t.Errorf("%v: %d, want %d", k, k, want)
		}
	}
	var r record
	g := r.add(kindReduce, shape{n: 5, of: collective.TypeOf[int32](), param: 3})
	if g&tagCall != 2<<60|(1<<2|2)<<56|3<<40|5<<18 || g != 0x26000300001513f0 {
		t.Errorf("tag %#x of a reduction of 5 elements of int32 by operation 3", uint64(g))
	}
	if m := r.mark(9); m != 0x944fc6b {
		t.Errorf("mark %#x of barrier 9 behind it", m)
	}
}

// halfInt is an integer, although the type that it is defined on is not.
type halfInt Float16

// TestElements: PEs compare the size of elements, and how they are combined.
func TestElements(t *testing.T) {
	for want, got := range map[string]collective.Type{
		"uint8":      collective.TypeOf[uint8](),
		"uint16":     collective.TypeOf[halfInt](),
		"uint32":     collective.TypeOf[uint32](),
		"uint64":     collective.TypeOf[uint64](),
		"int8":       collective.TypeOf[int8](),
		"int16":      collective.TypeOf[int16](),
		"int32":      collective.TypeOf[int32](),
		"int64":      collective.TypeOf[time.Duration](),
		"Float16":    collective.TypeOf[Float16](),
		"float32":    collective.TypeOf[float32](),
		"float64":    collective.TypeOf[float64](),
		"BFloat16":   collective.TypeOf[BFloat16](),
		"complex64":  collective.TypeOf[complex64](),
		"complex128": collective.TypeOf[complex128](),
	} {
		if got.String() != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// Memory is within the heap if all of it is, to the last byte.
func TestWhatIsWithinTheHeap(t *testing.T) {
	const from, to = 8, 24
	mem := make([]byte, 32)
	heap := mem[from:to]
	for i := range mem {
		for j := i; j < len(mem); j++ {
			want := i >= from && i <= to && j <= to
			off, ok := within(heap, mem[i:j:j+1])
			if ok != want || ok && off != uint64(i-from) || !ok && off != 0 {
				t.Errorf("bytes %d to %d: %d, %v", i, j, off, ok)
			}
		}
	}
}

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

// A mailbox counts the messages that have been taken out, without a gap, whichever is taken out
// first. A peer that sends more than it gets is told of each, another one only when it needs the
// slots.
func TestTakingMessagesOut(t *testing.T) {
	for _, c := range []struct {
		posted uint64
		more   bool     // the run opens more
		slots  []uint64 // as they are emptied
		tells  []uint64 // what the peer is told after each; 0 for nothing
	}{
		{slots: []uint64{0, 1, 2, 3, 0, 1}, tells: []uint64{0, 2, 3, 4, 5, 6}},
		{slots: []uint64{1, 0, 3, 2}, tells: []uint64{0, 2, 0, 4}},
		{posted: 9, slots: []uint64{0, 1, 2, 3, 0}, tells: []uint64{0, 0, 0, 4, 0}},
		{posted: 9, more: true, slots: []uint64{0, 1, 3, 2}, tells: []uint64{1, 2, 0, 4}},
	} {
		m := mailboxes{posted: c.posted, more: c.more}
		for i, slot := range c.slots {
			for m.opened == m.taken || i%2 == 0 && m.opened < m.taken+1+slot {
				m.opened++
			}
			told := uint64(0)
			if m.emptied(slot) {
				m.counted = m.taken
				told = m.counted
			}
			if told != c.tells[i] {
				t.Errorf("%+v: after %d messages the peer is told %d, want %d", c, i+1, told, c.tells[i])
			}
		}
	}
}
