package tagged

import (
	"math"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// A header carries each of its fields, as far as its kind has them.
func TestHeadersCarryTheirFields(t *testing.T) {
	sent := header{window: 0x1234, id: 0x56789abc, tag: 0xfedcba9876543210, length: 0x1122334455667788}
	var b [maxHeader]byte
	var got header
	notice := header{window: sent.window, id: sent.id}
	if err := got.parse(amDone, notice.put(&b, amDone), nil); err != nil || got != notice {
		t.Errorf("notice: %v, %+v", err, got)
	}
	eager := header{window: sent.window, tag: sent.tag, length: 3}
	if err := got.parse(amEager, eager.put(&b, amEager), make([]byte, 3)); err != nil || got != eager {
		t.Errorf("eager: %v, %+v", err, got)
	}
	sent.flag = flagSync
	if err := got.parse(amFirst, sent.put(&b, amFirst), make([]byte, 3)); err != nil || got != sent {
		t.Errorf("first: %v, %+v", err, got)
	}
	for i := range b {
		if b[i] == 0 && i != 3 {
			t.Errorf("byte %d of % x has nothing of the fields", i, b)
		}
	}
}

// A batch is divided into its messages, whose lengths have two bytes, and is refused where one does
// not end in it.
func TestBatchesAreDivided(t *testing.T) {
	entry := func(tag uint64, n int) []byte {
		e := waiting()
		r := e.w.newRequest(tag, [][]byte{make([]byte, n)}, n)
		for i := range r.data.bufs {
			r.data.bufs[i][0] = byte(n)
		}
		e.queue.PushBack(&r.inQueue, r)
		b := make([]byte, batchEntry+n)
		(&batch{first: e.queue.Front(), most: 1}).fill(b)
		return b
	}
	whole := append(append(entry(1<<63+5, 300), entry(7, 0)...), entry(8, 1)...)
	b := whole
	for i, want := range []struct {
		tag uint64
		n   int
	}{{1<<63 + 5, 300}, {7, 0}, {8, 1}} {
		tag, data, rest, err := nextInBatch(b)
		if err != nil || tag != want.tag || len(data) != want.n ||
			want.n != 0 && data[0] != byte(want.n) || len(rest) != len(b)-batchEntry-want.n {
			t.Fatalf("message %d: tag %d, %d bytes, %d behind it, %v", i, tag, len(data), len(rest), err)
		}
		b = rest
	}
	for n := range whole[:batchEntry+300] {
		tag, data, rest, err := nextInBatch(whole[:n])
		if err == nil || tag != 0 || data != nil || rest != nil {
			t.Errorf("%d bytes of a batch whose first message ends at %d: tag %d, %v", n, batchEntry+300,
				tag, err)
		}
	}
}

// The pieces of an announcement have bytes, and together just those of the message.
func TestPiecesOfAnAnnouncement(t *testing.T) {
	keys := ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1})
	describe := func(lengths ...uint64) (b []byte) {
		for _, n := range lengths {
			b = ibverbx.RemoteSegment{Addr: 64, Length: n, Keys: keys}.AppendBinary(b)
		}
		return b
	}
	two := describe(60, 40)
	for _, c := range []struct {
		what    string
		count   int
		length  uint64
		payload []byte
		ok      bool
	}{
		{"one", 1, 100, describe(100), true},
		{"one of a byte", 1, 1, describe(1), true},
		{"two", 2, 100, two, true},
		{"four", 4, 4, describe(1, 1, 1, 1), true},
		{"a byte too few", 2, 101, two, false},
		{"a byte too many", 2, 99, two, false},
		{"an empty one", 2, 100, describe(100, 0), false},
		{"the first empty", 2, 100, describe(0, 100), false},
		{"too long a one", 1, 100, describe(101), false},
		{"lengths that overflow", 2, 99, describe(100, math.MaxUint64), false},
		{"more than are announced", 1, 60, two, false},
		{"fewer", 3, 100, two, false},
		{"cut off", 2, 100, two[:len(two)-1], false},
	} {
		m := memory{count: 3}
		if err := m.parse(c.count, c.length, c.payload); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
		if want := map[bool]int{true: c.count}[c.ok]; m.count != want {
			t.Errorf("%s: %d pieces, want %d", c.what, m.count, want)
		}
	}
}
