package tagged

import (
	"math"
	"strings"
	"testing"

	"ibverbx/internal/flow"
	"ibverbx/transport"
)

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
