package transport_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// operation is one kind of call, for tests that make all of them.
type operation struct {
	name string
	call func(e *end, comp *transport.Completion) error
	am   bool // needs a credit
	comp bool // takes a completion
}

// operations are all the calls that send. packed is called when a pack function runs.
func operations(packed func()) []operation {
	data := []byte("eight by")
	pack := func(dst []byte) int { packed(); return copy(dst, data) }
	var old uint64
	dst := make([]byte, 100)
	return []operation{
		{name: "am short", am: true, call: func(e *end, _ *transport.Completion) error {
			return e.AMShort(
				1, nil, data)
		}},
		{name: "am bcopy", am: true, call: func(e *end, _ *transport.Completion) error {
			return only(e.AMBcopy(1, data, pack))
		}},
		{name: "am zcopy", am: true, comp: true, call: func(e *end, c *transport.Completion) error {
			return e.AMZcopy(c, 1, data, e.mr.Slice(0, 100))
		}},
		{name: "put short", call: func(e *end, _ *transport.Completion) error {
			return e.PutShort(
				data, e.peer.At(0))
		}},
		{name: "put bcopy", call: func(e *end, _ *transport.Completion) error {
			return only(e.PutBcopy(pack, e.peer.At(0)))
		}},
		{name: "put zcopy", comp: true, call: func(e *end, c *transport.Completion) error {
			return only(e.PutZcopy(c, e.peer.At(0), e.mr.Slice(0, overlapping(10000))))
		}},
		{name: "get bcopy", comp: true, call: func(e *end, c *transport.Completion) error {
			return only(e.GetBcopy(c, dst, e.peer.At(40000)))
		}},
		{name: "get zcopy", comp: true, call: func(e *end, c *transport.Completion) error {
			return only(e.GetZcopy(c, e.peer.At(10000), e.mr.Slice(20000, overlapping(10000))))
		}},
		{name: "fetch add", comp: true, call: func(e *end, c *transport.Completion) error {
			return e.FetchAdd(c, &old, e.peer.At(30000), 1)
		}},
		{name: "compare swap", comp: true, call: func(e *end, c *transport.Completion) error {
			return e.CompareSwap(c, nil, e.peer.At(30000), 1, 2)
		}},
	}
}

// only is the error of a call that returns a value besides, which is zero where there is an error.
func only[T comparable](v T, err error) error {
	var zero T
	if err != nil && v != zero {
		return errors.New(fmt.Sprintf("%v beside ", v) + err.Error()) // it must not pass for err
	}
	return err
}

// Bad arguments are refused at once with an error that names the argument; no credit is consumed.
func TestBadArgumentsAreRefused(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		a := l.a
		lim := a.Limits()
		comp := transport.NewCompletion(1, nil)
		foreign := newLink(t, setup{}).a.mr
		closed, err := a.w.Domain().Register(make([]byte, 64), verbs.AccessAll)
		must(t, err)
		piece := closed.All()
		must(t, closed.Close())
		big := make([]byte, 1<<20)
		at := a.peer.At
		for _, c := range []struct {
			name string
			call func() error
			is   error
			says string
		}{
			{"am short, too long", func() error { return a.AMShort(1, nil, big[:lim.AMShort+1]) },
				transport.ErrTooLong, fmt.Sprint(lim.AMShort)},
			{"am short, header too long",
				func() error { return a.AMShort(1, big[:transport.MaxHeader+1], nil) }, transport.ErrTooLong,
				"header"},
			{"am short, unknown id", func() error { return a.AMShort(2, nil, nil) }, transport.ErrNoHandler,
				"id 2"},
			{"am short, id beyond all", func() error { return a.AMShort(255, nil, nil) },
				transport.ErrNoHandler, "id 255"},
			{"am bcopy, unknown id", func() error { return only(a.AMBcopy(63, nil, pack(nil))) },
				transport.ErrNoHandler, "id 63"},
			{"am bcopy, header too long",
				func() error { return only(a.AMBcopy(1, big[:65], pack(nil))) },
				transport.ErrTooLong, "header"},
			{"am bcopy, pack boasts", func() error {
				return only(a.AMBcopy(1, nil, func(dst []byte) int { return len(dst) + 1 }))
			}, transport.ErrTooLong, "pack"},
			{"am bcopy, pack of less than nothing", func() error {
				return only(a.AMBcopy(1, nil, func([]byte) int { return -1 }))
			}, transport.ErrTooLong, "pack"},
			{"am bcopy, no function", func() error { return only(a.AMBcopy(1, nil, nil)) }, verbs.ErrInvalid,
				"no pack function"},
			{"put bcopy, no function", func() error { return only(a.PutBcopy(nil, at(0))) }, verbs.ErrInvalid,
				"no pack function"},
			{"flush, unknown kind",
				func() error { return only(a.StartFlush(transport.FlushRemote+1, comp)) },
				verbs.ErrInvalid, "have local (0) and remote (1)"},
			{"am zcopy, too long",
				func() error {
					err := a.AMZcopy(comp, 1, nil,
						a.mr.Slice(0, uint64(lim.AMZcopy+1)))
					return err
				}, transport.ErrTooLong, fmt.Sprintf("payload have more than the %d bytes", lim.AMZcopy)},
			{"am zcopy, unknown id",
				func() error { return a.AMZcopy(comp, 9, nil, a.mr.Slice(0, 1)) },
				transport.ErrNoHandler, "id 9"},
			{"am zcopy, too many pieces", func() error {
				err := a.AMZcopy(comp, 1, nil, slices.Repeat([]ibverbx.Segment{a.mr.Slice(0, 1)},
					lim.Pieces+1)...)
				return err
			}, verbs.ErrInvalid, "pieces"},
			{"am zcopy, beyond the region",
				func() error {
					err := a.AMZcopy(comp, 1, nil,
						a.mr.Slice(uint64(len(a.mem))-1, 2))
					return err
				}, ibverbx.ErrBounds, ""},
			{"put short, too long", func() error { return a.PutShort(big[:lim.PutShort+1], at(0)) },
				transport.ErrTooLong, fmt.Sprint(lim.PutShort)},
			{"put short, overrun", func() error { return a.PutShort(big[:9], a.peer.Slice(0, 8)) },
				ibverbx.ErrBounds, ""},
			{"put short, beyond the region",
				func() error { return a.PutShort(big[:9], a.peer.Slice(uint64(len(a.mem))-8, 9)) },
				ibverbx.ErrBounds, ""},
			{"put short, no memory", func() error { return a.PutShort(big[:9], ibverbx.RemoteSegment{}) },
				ibverbx.ErrNoKey, ""},
			{"put bcopy, pack boasts", func() error {
				return only(a.PutBcopy(func(dst []byte) int { return len(dst) + 1 }, at(0)))
			}, transport.ErrTooLong, "pack"},
			{"put bcopy, overrun",
				func() error { return only(a.PutBcopy(pack(big[:9]), a.peer.Slice(0, 8))) },
				ibverbx.ErrBounds, ""},
			{"put zcopy, overrun",
				func() error {
					return only(a.PutZcopy(comp, at(uint64(len(a.mem))-1), a.mr.Slice(0, 2)))
				}, ibverbx.ErrBounds, ""},
			{"put zcopy, beyond the region",
				func() error {
					return only(a.PutZcopy(comp, at(0), a.mr.Slice(0, uint64(len(a.mem))+1)))
				}, ibverbx.ErrBounds, ""},
			{"put zcopy, not registered",
				func() error {
					return only(a.PutZcopy(comp, at(0), ibverbx.Segment{Addr: 4096, Length: 1}))
				}, ibverbx.ErrNoKey, ""},
			{"put zcopy, lengths that wrap", func() error {
				return only(a.PutZcopy(comp, at(0), a.mr.Slice(0, 1<<63), a.mr.Slice(0, 1<<63)))
			}, ibverbx.ErrBounds, ""},
			{"get bcopy, too long",
				func() error { return only(a.GetBcopy(comp, big[:lim.GetBcopy+1], at(0))) },
				transport.ErrTooLong, fmt.Sprint(lim.GetBcopy)},
			{"get bcopy, overrun",
				func() error { return only(a.GetBcopy(comp, big[:9], a.peer.Slice(0, 8))) },
				ibverbx.ErrBounds, ""},
			{"get zcopy, overrun",
				func() error { return only(a.GetZcopy(comp, a.peer.Slice(0, 8), a.mr.Slice(0, 9))) },
				ibverbx.ErrBounds, ""},
			{"get zcopy, lengths that wrap", func() error {
				return only(a.GetZcopy(comp, at(0), a.mr.Slice(0, 1<<63), a.mr.Slice(0, 1<<63)))
			}, ibverbx.ErrBounds, ""},
			{"fetch add, misaligned", func() error { return a.FetchAdd(comp, nil, at(4), 1) },
				ibverbx.ErrAlignment, ""},
			{"fetch add, overrun",
				func() error { return a.FetchAdd(comp, nil, a.peer.Slice(0, 7), 1) },
				ibverbx.ErrBounds, ""},
			{"compare swap, misaligned",
				func() error { return a.CompareSwap(comp, nil, at(1), 1, 2) },
				ibverbx.ErrAlignment, ""},
		} {
			before, worker := a.Stats(), a.w.Stats()
			err := c.call()
			var refusal *transport.OpError
			if !errors.Is(err, c.is) || !errors.As(err, &refusal) {
				t.Errorf("%s: %v", c.name, err)
				continue
			}
			op, _, _ := strings.Cut(c.name, ",")
			if refusal.Op != op || refusal.Peer != "peer b" || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: the error reads %q", c.name, err)
			}
			if after := a.Stats(); after != before {
				t.Errorf("%s: %+v, was %+v", c.name, after, before)
			}
			if after := a.w.Stats(); after != worker {
				t.Errorf("%s: %+v, was %+v", c.name, after, worker)
			}
		}
		if s.single() { // several take any number
			_, err := a.PutZcopy(comp, at(0), slices.Repeat([]ibverbx.Segment{a.mr.Slice(0, 1)}, 80)...)
			if !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("put zcopy of 80 pieces: %v", err)
			}
		}
		// Closed memory, and memory that is not registered on every NIC, is refused at once; a
		// single queue pair leaves that to its NIC.
		if _, err := a.PutZcopy(comp, at(0), piece); err == nil && !s.single() {
			t.Error("put zcopy from a closed region was not refused")
		}
		if !s.single() && s.nics == 2 {
			if _, err := a.PutZcopy(comp, at(0), foreign.All()); !errors.Is(err, ibverbx.ErrNoKey) {
				t.Errorf("put zcopy from memory of another domain, registered on one NIC of two: %v", err)
			}
		}
		if !s.single() && comp.Fired() {
			t.Error("a refused operation counted on the completion")
		}
	})
}

// A completion that counts nothing is refused by the call that gets it: inside progress it would be
// counted below zero.
func TestCompletionsThatCountNothingAreRefused(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		var zero transport.Completion
		fired := transport.NewCompletion(1, nil)
		fired.Done(nil)
		for _, comp := range []*transport.Completion{&zero, fired} {
			_, put := l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, 8))
			_, get := l.a.GetBcopy(comp, make([]byte, 8), l.a.peer.At(0))
			am := l.a.AMZcopy(comp, 1, nil, l.a.mr.Slice(0, 8))
			add := l.a.FetchAdd(comp, nil, l.a.peer.At(0), 1)
			for call, err := range map[string]error{"put": put, "get": get, "am": am, "fetch add": add} {
				if !errors.Is(err, verbs.ErrInvalid) {
					t.Errorf("%s: %v", call, err)
				}
			}
		}
		if s := l.a.w.Stats(); s.BounceFree != s.BounceTotal || l.a.Stats().Outstanding != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A call before Connect is refused with ErrNotConnected, and one after Close or Abort says so.
func TestCallsOutsideOfTheLife(t *testing.T) {
	all := append(operations(func() { t.Error("packed for nothing") }),
		operation{name: "flush", call: func(e *end, c *transport.Completion) error {
			return only(e.StartFlush(transport.FlushLocal, c))
		}},
		operation{name: "pending", call: func(e *end, _ *transport.Completion) error {
			return e.Pending(request(nil))
		}})
	refused := func(when string, e *end, want error) {
		t.Helper()
		for _, op := range all {
			if err := op.call(e, nil); !errors.Is(err, want) {
				t.Errorf("%s %s: %v", op.name, when, err)
			}
		}
	}
	l := newLink(t, shapes()[1])
	fresh := *l.a
	fresh.Endpoint = newEndpoint(t, l.a.w, transport.EndpointConfig{})
	refused("before Connect", &fresh, transport.ErrNotConnected)
	must(t, fresh.Close(within(t)))
	refused("after Close", &fresh, transport.ErrClosed)
	peer := card(t, l.b.Endpoint)
	gone := transport.NewCompletion(1, nil)
	must(t, l.a.Abort(gone))
	refused("after Abort", l.a, transport.ErrCanceled)
	l.until("it is released", gone.Fired)
	refused("after its release", l.a, transport.ErrCanceled)
	for _, e := range []*end{&fresh, l.a} {
		_, errCard := e.Card()
		for name, err := range map[string]error{
			"close": e.Close(within(t)), "abort": e.Abort(nil), "connect": e.Connect(peer), "card": errCard,
			"flush": e.Flush(within(t), transport.FlushLocal),
		} {
			if !errors.Is(err, transport.ErrClosed) && !errors.Is(err, transport.ErrCanceled) {
				t.Errorf("%s after the end: %v", name, err)
			}
		}
		e.Fence()
		if e.Stage() != "released" || e.Stats().Outstanding != 0 || e.Limits().PutShort == 0 ||
			e.Err() == nil || e.Name() == "" {
			t.Errorf("%s: %+v, %+v, %v", e.Stage(), e.Stats(), e.Limits(), e.Err())
		}
	}
}

// A nil argument is an error, or a panic that says so where there is no error to return, and
// changes nothing.
func TestNilArguments(t *testing.T) {
	l := newLink(t, setup{})
	var none context.Context
	_, noDomain := transport.NewWorker(nil, transport.Config{})
	for call, err := range map[string]error{
		"worker":           noDomain,
		"pending":          l.a.Pending(nil),
		"pending, no func": l.a.Pending(&transport.Pending{}),
		"connect a":        transport.Connect(nil, l.a.Endpoint),
		"connect b":        transport.Connect(l.a.Endpoint, nil),
		"wait":             l.a.w.Wait(t.Context(), nil),
		"wait, no ctx": l.a.w.Wait(none,
			transport.NewCompletion(1, nil)),
		"wait for": l.a.w.WaitFor(t.Context(), 0, nil),
		"wait for, no ctx": l.a.w.WaitFor(
			none, 0, func() bool { return true }),
		"flush": l.a.Flush(none,
			transport.FlushLocal),
		"worker flush": l.a.w.Flush(none,
			transport.FlushLocal),
		"close": l.a.Close(
			none),
		"handle": l.a.w.Handle(7, nil),
	} {
		op := strings.Fields(strings.TrimPrefix(strings.TrimSuffix(call, ","), "worker "))[0]
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), strings.TrimSuffix(op, ",")) {
			t.Errorf("%s: %v", call, err)
		}
	}
	func() {
		defer func() {
			if why := fmt.Sprint(recover()); !strings.Contains(why, "purge") {
				t.Errorf("purge: %s", why)
			}
		}()
		l.a.Purge(nil)
	}()
	l.a.fill(t)
	if err := l.a.NotifyReady().AMShort(1, nil, nil); err != transport.ErrNoResource { // there is no OnReady
		t.Errorf("a message beyond the limit: %v", err)
	}
	l.flushed(l.a)
	l.send(l.a, nil)
	l.until("a message", func() bool { return l.got == 1 })
}

func TestACompletionKeepsTheFirstError(t *testing.T) {
	first, second := errors.New("first"), errors.New("second")
	comp := transport.NewCompletion(3, nil)
	comp.Done(nil)
	comp.Done(first)
	comp.Done(second)
	if !comp.Fired() || !errors.Is(comp.Err(), first) {
		t.Fatal(comp.Fired(), comp.Err())
	}
	comp.Init(1, nil)
	if comp.Fired() || comp.Err() != nil {
		t.Fatal("after Init it still has", comp.Fired(), comp.Err())
	}
	comp.Done(nil)
	defer func() {
		if recover() == nil {
			t.Error("counting more than the count did not panic")
		}
	}()
	comp.Done(nil)
}

// panics reports whether f does.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

// Mistakes of the program that no error could tell it of panic: completions for nothing, messages
// that are given back twice, or that were not kept.
func TestMistakesThatPanic(t *testing.T) {
	for n, want := range map[int]bool{-1: true, 0: true, 1: false} {
		if panics(func() { transport.NewCompletion(n, nil) }) != want {
			t.Errorf("a completion for %d operations: panics %v", n, !want)
		}
	}
	var kept *transport.Message
	inHandler := false
	l := newLink(t, setup{handle: func(m *transport.Message) {
		inHandler = panics(m.Release)
		m.Keep()
		kept = m
	}})
	l.send(l.a, []byte{1})
	l.until("the message", func() bool { return kept != nil })
	if !inHandler {
		t.Error("a message was released that was not kept")
	}
	kept.Release()
	if !panics(kept.Release) {
		t.Error("a message was released twice")
	}
	l.quiet()
	if s := l.b.w.Stats(); s.AMKept != 0 {
		t.Errorf("%d messages are kept", s.AMKept)
	}
}
