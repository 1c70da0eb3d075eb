package tagged

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/flow"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// FuzzHeader parses headers. What is accepted is written as the same bytes.
func FuzzHeader(f *testing.F) {
	f.Add(byte(0), make([]byte, 16), []byte("x"))
	f.Add(byte(3), append(make([]byte, 16), 1, 0, 0, 0, 0, 0, 0, 0), []byte("x"))
	f.Add(byte(4), []byte{1, 0, 0, 0, 5, 0, 0, 0}, []byte(nil))
	f.Fuzz(func(t *testing.T, k byte, b, payload []byte) {
		kind := amEager + transport.AMID(k%8)
		var h header
		if h.parse(kind, b, payload) != nil {
			return
		}
		var again [maxHeader]byte
		if got := h.put(&again, kind); string(got) != string(b) {
			t.Fatalf("% x\nwritten again as\n% x", b, got)
		}
	})
}

// FuzzMemory parses descriptions of memory. What is accepted adds up, and is written as the same
// bytes.
func FuzzMemory(f *testing.F) {
	keys := ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 5: 2})
	one := ibverbx.RemoteSegment{Addr: 64, Length: 10, Keys: keys}.AppendBinary(nil)
	f.Add(byte(1), uint64(10), one)
	f.Add(byte(2), uint64(20), append(one, one...))
	f.Fuzz(func(t *testing.T, count byte, length uint64, b []byte) {
		var m memory
		if m.parse(int(count%(maxPieces+1)), length, b) != nil {
			return
		}
		var again []byte
		total := uint64(0)
		for _, p := range m.pieces[:m.count] {
			again = p.AppendBinary(again)
			total += p.Length
		}
		if string(again) != string(b) || total != length {
			t.Fatalf("%d bytes, % x\nread as %d bytes, % x", length, b, total, again)
		}
	})
}

// Each kind of message takes the fields that it has up to their limits, and no others.
func TestFieldsOfHeaders(t *testing.T) {
	const most = math.MaxInt64
	x := []byte("x")
	for _, c := range []struct {
		what    string
		kind    transport.AMID
		h       header
		payload []byte
		ok      bool
	}{
		{"eager", amEager, header{tag: 1}, nil, true},
		{"eager that waits", amEager, header{flag: flagSync, id: math.MaxUint32}, x, true},
		{"eager that waits without a number", amEager, header{flag: flagSync}, x, true},
		{"eager with a flag", amEager, header{flag: 2, id: 1}, x, false},
		{"eager with a number", amEager, header{id: 1}, x, false},
		{"first", amFirst, header{length: 2}, x, true},
		{"first that waits", amFirst, header{flag: flagSync, id: 1, length: most}, x, true},
		{"first with a number", amFirst, header{id: 1, length: 2}, x, false},
		{"first with a flag", amFirst, header{flag: 2, length: 2}, x, false},
		{"first of all", amFirst, header{length: 1}, x, false},
		{"first of more than all", amFirst, header{}, x, false},
		{"first without a byte", amFirst, header{length: 2}, nil, false},
		{"first of too much", amFirst, header{length: most + 1}, x, false},
		{"more", amMore, header{tag: 1}, x, true},
		{"more without a byte", amMore, header{}, nil, false},
		{"more with a flag", amMore, header{flag: 1}, x, false},
		{"more with a number", amMore, header{id: 1}, x, false},
		{"announcement", amAnnounce, header{flag: 1, length: most}, x, true},
		{"announcement of four pieces", amAnnounce, header{flag: 4, id: 1, length: 1}, x, true},
		{"announcement of five", amAnnounce, header{flag: 5, length: 1}, x, false},
		{"announcement of none", amAnnounce, header{length: 1}, x, false},
		{"announcement of too much", amAnnounce, header{flag: 1, length: most + 1}, x, false},
		{"batch", amBatch, header{}, x, true},
		{"batch with a flag", amBatch, header{flag: 1}, x, false},
		{"batch with a number", amBatch, header{id: 1}, x, false},
		{"notice", amDone, header{id: 1}, nil, true},
		{"notice with a grant", amDone, header{id: 1, window: math.MaxUint16}, nil, true},
		{"notice with bytes", amDone, header{id: 1}, x, false},
		{"notice with a flag", amDone, header{id: 1, flag: 1}, nil, false},
		{"grant", amWindow, header{window: 1}, nil, true},
		{"grant of nothing", amWindow, header{}, nil, false},
		{"grant with a number", amWindow, header{window: 1, id: 1}, nil, false},
		{"grant with bytes", amWindow, header{window: 1}, x, false},
		{"grant with a flag", amWindow, header{window: 1, flag: 1}, nil, false},
	} {
		var b [maxHeader]byte
		wire := c.h.put(&b, c.kind)
		var got header
		if err := got.parse(c.kind, wire, c.payload); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
		if got.window != c.h.window || got.flag != c.h.flag || got.id != c.h.id {
			t.Errorf("%s: read as %+v", c.what, got)
		}
		if err := got.parse(c.kind, append(wire[:len(wire):len(wire)], 0), c.payload); err == nil {
			t.Errorf("%s: a header that is longer by a byte", c.what)
		}
	}
}

// A send goes into a batch that is short enough, and that has a second one, room in the window and
// in the message.
func TestWhatGoesIntoABatch(t *testing.T) {
	const both = 2*batchEntry + 512 + 100 // bytes of the batch below
	for _, c := range []struct {
		what          string
		first, second int // lengths, bytes; no second send where that is negative
		room, limit   int // places of the window, bytes of an active message
		edit          func(first, second *Request)
		ok            bool
	}{
		{"two", 512, 100, 2, maxHeader + both, nil, true},
		{"no second", 512, -1, 9, 1 << 20, nil, false},
		{"one place", 512, 100, 1, 1 << 20, nil, false},
		{"a byte too little room", 512, 100, 2, maxHeader + both - 1, nil, false},
		{"the second as long as possible", 1, 512, 9, 1 << 20, nil, true},
		{"the first too long", 513, 100, 9, 1 << 20, nil, false},
		{"the second too long", 1, 513, 9, 1 << 20, nil, false},
		{"the first begun", 1, 1, 9, 1 << 20, func(a, _ *Request) { a.stage = requestActive }, false},
		{"the first waits for its match", 1, 1, 9, 1 << 20, func(a, _ *Request) { a.kind = sendSync },
			false},
		{"the second waits for its match", 1, 1, 9, 1 << 20, func(_, b *Request) { b.kind = sendSync },
			false},
		{"the second long", 1, 1, 9, 1 << 20, func(_, b *Request) { b.kind = sendLong }, false},
	} {
		e := waiting()
		e.ledger = flow.New(2)
		e.ledger.Connect(c.room)
		e.limits.AMBcopy = c.limit
		var reqs []*Request
		for i, n := range []int{c.first, c.second} {
			if n >= 0 {
				r := e.w.newRequest(uint64(i), [][]byte{make([]byte, n)}, n)
				e.queue.PushBack(&r.inQueue, r)
				reqs = append(reqs, r)
			}
		}
		if c.edit != nil {
			c.edit(reqs[0], reqs[1])
		}
		if e.batches(reqs[0]) != c.ok {
			t.Errorf("%s: %t", c.what, !c.ok)
		}
		if !c.ok {
			continue
		}
		// It holds as many as are allowed and fit, to the byte.
		b := batch{first: e.queue.Front(), most: 2}
		all := 2*batchEntry + c.first + c.second
		for room, want := range map[int]int{all: 2, all - 1: 1, batchEntry + c.first: 1, batchEntry: 0} {
			if n := b.fill(make([]byte, room)); b.count != want {
				t.Errorf("%s: %d messages in %d of %d bytes, want %d", c.what, b.count, n, room, want)
			}
		}
		b.most = 1
		if n := b.fill(make([]byte, all)); b.count != 1 || n != batchEntry+c.first {
			t.Errorf("%s: %d messages of %d bytes in a window of one", c.what, b.count, n)
		}
	}
}

// Each invariant of an endpoint holds up to its limit, and is found broken beyond.
func TestBrokenInvariants(t *testing.T) {
	for _, c := range []struct {
		what string
		edit func(e *Endpoint)
		ok   bool
	}{
		{"nothing", func(*Endpoint) {}, true},
		{"all reads", func(e *Endpoint) { e.reads = 3 }, true},
		{"a read too many", func(e *Endpoint) { e.reads = 4 }, false},
		{"fewer than no reads", func(e *Endpoint) { e.reads = -1 }, false},
		{"a message that is read", func(e *Endpoint) { e.active = 1; queueReading(e) }, true},
		{"one in the queue that is not", func(e *Endpoint) { queueReading(e) }, false},
		{"all notices", func(e *Endpoint) { e.notices.Push(1); e.notices.Push(2) }, true},
		{"a notice too many", func(e *Endpoint) {
			for i := range uint32(3) {
				e.notices.Push(i)
			}
		}, false},
		{"a fragment", func(e *Endpoint) { e.partial = assembly{length: 2, got: 1} }, true},
		{"no byte of one", func(e *Endpoint) { e.partial = assembly{length: 2} }, false},
		{"all of one", func(e *Endpoint) { e.partial = assembly{length: 2, got: 2} }, false},
		{"bytes of none", func(e *Endpoint) { e.partial = assembly{got: 1} }, false},
		{"one kept and received", func(e *Endpoint) {
			e.partial = assembly{length: 2, got: 1, req: &Request{}, in: &inbound{}}
		}, false},
		{"the ledger", func(e *Endpoint) { e.ledger.Free(1) }, false},
		{"ended", func(e *Endpoint) { e.err = ErrClosed }, true},
		{"ended amid a fragment", func(e *Endpoint) {
			e.err, e.partial = ErrClosed, assembly{length: 2, got: 1}
		}, true},
		{"ended with a receive", func(e *Endpoint) {
			e.err, e.partial = ErrClosed, assembly{length: 2, got: 1, req: &Request{}}
		}, false},
		{"ended with a send", func(e *Endpoint) {
			r := &Request{}
			e.err = ErrClosed
			e.queue.PushBack(&r.inQueue, r)
		}, false},
		{"ended with a send that waits", func(e *Endpoint) {
			e.err = ErrClosed
			e.waiting.add(&Request{})
		}, false},
		{"ended with a message to read", func(e *Endpoint) {
			e.err, e.active = ErrClosed, 1
			queueReading(e)
		}, false},
		{"ended with a receive for it alone", func(e *Endpoint) {
			e.err = ErrClosed
			e.posted.push(&entry{}, 1)
		}, false},
	} {
		e := waiting()
		e.ledger = flow.New(2)
		e.w.cfg.Window, e.w.cfg.MaxUnexpected = 3, 2
		c.edit(e)
		if err := e.broken(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func queueReading(e *Endpoint) {
	rd := &reading{}
	e.readQueue.PushBack(&rd.inList, rd)
}

// A broken invariant panics, with the endpoint's name; one that holds does not.
func TestBrokenInvariantsPanic(t *testing.T) {
	e := waiting()
	e.name = "peer 7"
	e.ledger = flow.New(2)
	e.w.cfg.Window, e.w.cfg.MaxUnexpected = 3, 2
	e.check()
	e.reads = -1
	defer func() {
		if text, _ := recover().(string); !strings.HasPrefix(text, "tagged: peer 7: invariant: -1 reads") {
			t.Errorf("the check panics with %q", text)
		}
	}()
	e.check()
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

// The wire format, as two processes of different builds share it. A figure of this test may change
// only together with wireVersion, or peers of the builds before misread each other.
func TestWireFormat(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"version", wireVersion, 1},
		{"first id of the package", int(FirstAMID), 56},
		{"eager", int(amEager), 56}, {"first fragment", int(amFirst), 57}, {"fragment", int(amMore), 58},
		{"announcement", int(amAnnounce), 59}, {"done", int(amDone), 60}, {"window", int(amWindow), 61},
		{"batch", int(amBatch), 62},
		{"the sender waits", flagSync, 1},
		{"largest window", maxWindow, 65535},
		{"pieces of an announcement", maxPieces, 4},
		{"longest header", maxHeader, 24},
		{"before each message of a batch", batchEntry, 10},
		{"smallest transport buffer", leastBuffer, 416},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, the wire format has %d", c.name, c.got, c.want)
		}
	}
	h := header{window: 0x0201, flag: 3, id: 0x07060504, tag: 0x0f0e0d0c0b0a0908,
		length: 0x1716151413121110}
	const all = "010203" + "00" + "04050607" + "08090a0b0c0d0e0f" + "1011121314151617"
	for kind, size := range map[transport.AMID]int{amEager: 16, amFirst: 24, amMore: 16, amAnnounce: 24,
		amDone: 8, amWindow: 8, amBatch: 8} {
		var b [maxHeader]byte
		if got := hex.EncodeToString(h.put(&b, kind)); got != all[:2*size] {
			t.Errorf("message %d: header %s, the wire format has %s", kind, got, all[:2*size])
		}
	}
	tag, data, rest, err := nextInBatch([]byte("\x01\x02\x03\x04\x05\x06\x07\x08\x02\x00abrest-of-it"))
	if err != nil || tag != 0x0807060504030201 || string(data) != "ab" || string(rest) != "rest-of-it" {
		t.Errorf("batch: tag %#x, %q, %q, %v", tag, data, rest, err)
	}
}

// A card's JSON has the names that other builds read.
func TestNamesInACard(t *testing.T) {
	var card Card
	card.Transport.QP.QPNums = []uint32{17}
	text, err := json.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{"max_unexpected", "transport", "version"}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestSteps: between all pairs of ranks, of any number, a routed message arrives in at most as many
// steps as the number has bits, each between ranks that are adjacent.
func TestSteps(t *testing.T) {
	all := func(int) bool { return true }
	for size := 1; size <= 70; size++ {
		for from := range size {
			for to := range size {
				m := &routed{from: from, to: to, last: -1}
				if !m.travel(t, size, all) || m.hops > bits.Len(uint(size-1)) {
					t.Fatalf("%d ranks, from %d to %d: %d steps", size, from, to, m.hops)
				}
			}
		}
	}
}

// travel makes the steps of a message, and reports whether it arrives.
func (m *routed) travel(t *testing.T, size int, usable func(rank int) bool) bool {
	for at := m.from; at != m.to; m.hops++ {
		next := m.step(at, size, usable)
		if next < 0 {
			return false
		}
		if next >= size || !adjacent(at, next) || !usable(next) {
			t.Fatalf("%d ranks, from %d to %d: %d is after %d", size, m.from, m.to, next, at)
		}
		m.last, at = at, next
	}
	return true
}

// TestStepsAroundTheDead: whichever two ranks are gone, a message between two others arrives if any
// way between them is left, and ends at some rank if none is.
func TestStepsAroundTheDead(t *testing.T) {
	for size := 3; size <= 20; size++ {
		for a := range size {
			for b := a + 1; b < size; b++ {
				alive := func(rank int) bool { return rank != a && rank != b }
				for from := range size {
					near := reached(from, size, alive)
					for to := range size {
						if from == to || !alive(from) {
							continue
						}
						m := &routed{from: from, to: to, last: -1}
						if m.travel(t, size, alive) != near[to] || m.hops > maxHops {
							t.Fatalf("%d ranks without %d and %d: from %d to %d: %d steps, a way is left: %t",
								size, a, b, from, to, m.hops, near[to])
						}
					}
				}
			}
		}
	}
}

// reached has the ranks to which a way leads over adjacent ones.
func reached(from, size int, alive func(rank int) bool) []bool {
	known, next := make([]bool, size), []int{from}
	known[from] = true
	for len(next) != 0 {
		at := next[0]
		next = next[1:]
		for to := range size {
			if adjacent(at, to) && alive(to) && !known[to] {
				known[to] = true
				next = append(next, to)
			}
		}
	}
	return known
}

// TestAssemble: the pieces of a routed message make it whole, also if some come twice, or are lost
// and come again, because a rank on the way has failed.
func TestAssemble(t *testing.T) {
	const text = "0123456789"
	piece := func(r *ranks, kind uint8, from, to int) string {
		m := &routed{from: 1, kind: kind, total: len(text), offset: from}
		whole, ok := r.assemble(m, []byte(text[from:to]))
		if ok != (len(whole) != 0) {
			t.Errorf("%q, whole: %t", whole, ok)
		}
		return string(whole)
	}
	for _, c := range []struct {
		what   string
		pieces [][2]int
	}{
		{"in order", [][2]int{{0, 4}, {4, 8}, {8, 10}}},
		{"all twice", [][2]int{{0, 4}, {0, 4}, {4, 8}, {4, 8}, {8, 10}}},
		{"one lost", [][2]int{{0, 4}, {8, 10}, {0, 4}, {4, 8}, {8, 10}}},
		{"one between others", [][2]int{{0, 4}, {4, 8}, {0, 4}, {8, 10}}},
		{"by a way with other buffers", [][2]int{{0, 4}, {4, 8}, {0, 9}, {9, 10}}},
	} {
		var r ranks
		for i, p := range c.pieces {
			want := ""
			if i == len(c.pieces)-1 {
				want = text
			}
			if got := piece(&r, routeCard, p[0], p[1]); got != want {
				t.Errorf("%s: after piece %d: %q", c.what, i, got)
			}
		}
		if len(r.arriving) != 0 {
			t.Errorf("%s: something is left", c.what)
		}
	}
	var r ranks
	piece(&r, routeCard, 0, 4)
	piece(&r, routeRefused, 0, 8) // another message: of the one before no more will come
	if got := piece(&r, routeRefused, 8, 10); got != text {
		t.Errorf("after a message of which only a part came: %q", got)
	}
}
