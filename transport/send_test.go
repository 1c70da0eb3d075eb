package transport_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/transport"
	"ibverbx/verbs/soft"
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

// ErrNoResource means: could not start, nothing was consumed, no side effect. A short or bcopy is
// never queued for the caller.
func TestContract01NoResourceHasNoEffect(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped = true
		l := newLink(t, s)
		for i := range l.b.mem {
			l.b.mem[i] = 0
		}
		n := l.a.fill(t)
		worker, endpoint := l.a.w.Stats(), l.a.Stats()
		refused := uint64(0)
		comp := transport.NewCompletion(1, nil)
		for _, op := range operations(func() { t.Error("packed for nothing") }) {
			for range 3 {
				if err := op.call(l.a, comp); err != transport.ErrNoResource {
					t.Fatalf("%s: %v", op.name, err)
				}
				refused++
			}
		}
		if err := only(l.a.StartFlush(transport.FlushRemote, comp)); err != transport.ErrNoResource {
			t.Fatalf("flush: %v", err)
		}
		worker.NoResource += refused + 1
		if got := l.a.w.Stats(); got != worker {
			t.Errorf("worker: %+v, was %+v", got, worker)
		}
		if got := l.a.Stats(); got != endpoint {
			t.Errorf("endpoint: %+v, was %+v", got, endpoint)
		}
		l.quiet()
		if comp.Fired() || l.got != 0 {
			t.Errorf("a refused call had an effect: fired %v, %d messages", comp.Fired(), l.got)
		}
		want := make([]byte, len(l.b.mem))
		for i := range n {
			want[60000+i] = byte(i)
		}
		landed(t, "memory", l.b.mem, want)
	})
}

// Completion{count, callback, first error}: may be shared by several operations; fires once, when
// the count reaches zero. An operation that returns done did not touch it. nil is allowed: then
// only a later completion or a flush shows that the operation has ended.
func TestContract02CompletionCountsDownAndFiresOnce(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		other, _ := l.another(transport.EndpointConfig{})
		for _, op := range operations(func() {}) {
			if !op.comp {
				continue
			}
			fired := 0
			var comp transport.Completion
			comp.Init(6, func(c *transport.Completion) {
				if fired++; !c.Fired() || c != &comp {
					t.Errorf("%s: the callback sees another completion, or one that has not fired", op.name)
				}
			})
			for i := range 6 {
				if fired != 0 {
					t.Fatalf("%s: fired after %d of 6", op.name, i)
				}
				must(t, op.call([]*end{l.a, other}[i%2], &comp)) // shared by operations of two endpoints
				must(t, op.call(l.a, nil))
				if i%2 == 1 {
					l.quiet()
				}
			}
			l.until(op.name, comp.Fired)
			l.flushed(l.a)
			l.flushed(other)
			if fired != 1 || comp.Err() != nil {
				t.Errorf("%s: fired %d times, %v", op.name, fired, comp.Err())
			}
		}
	})
}

// An operation without a completion has ended when that of a later one fires, however long it takes
// and on whichever queue pair: its result is there, and its memory is the caller's again.
func TestContract02ALaterCompletionCoversOneWithout(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		n, dst := overlapping(10000), make([]byte, 1000)
		for name, c := range map[string]struct {
			call  func() error
			check func()
		}{
			"get bcopy": {
				func() error {
					_, err := l.a.GetBcopy(nil, dst, l.a.peer.At(40000))
					return err
				},
				func() { landed(t, "get bcopy", dst, l.b.mem[40000:41000]) },
			},
			"get zcopy": {
				func() error {
					_, err := l.a.GetZcopy(nil, l.a.peer.At(20000), l.a.mr.Slice(20000, n))
					return err
				},
				func() { landed(t, "get zcopy", l.a.mem[20000:20000+n], l.b.mem[20000:20000+n]) },
			},
			"put zcopy": {
				func() error {
					_, err := l.a.PutZcopy(nil, l.a.peer.At(0), l.a.mr.Slice(0, n))
					return err
				},
				func() {
					want := append([]byte(nil), l.a.mem[:n]...)
					clear(l.a.mem[:n]) // it is the program's again
					l.flushed(l.a)
					landed(t, "put zcopy", l.b.mem[:n], want)
				},
			},
		} {
			slow := l.fabric.Inject(soft.Fault{Kind: soft.Delay, Delay: 5 * time.Millisecond,
				Device: l.a.nics[0], Count: 1})
			must(t, c.call())
			var later transport.Completion
			later.Init(1, nil)
			must(t, l.a.FetchAdd(&later, nil, l.a.peer.At(56000), 1))
			l.until(name, later.Fired)
			if err := later.Err(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			c.check()
			slow.Remove()
		}
	})
}

func TestContract02DoneDoesNotTouchTheCompletion(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		comp := transport.NewCompletion(1, nil)
		for name, call := range map[string]func() (bool, error){
			"put zcopy of nothing": func() (bool,
				error) {
				return l.a.PutZcopy(comp, l.a.peer.At(0))
			},
			"put zcopy of an empty piece": func() (bool, error) {
				return l.a.PutZcopy(comp, l.a.peer.At(0),
					l.a.mr.Slice(5, 0))
			},
			"get zcopy of nothing": func() (bool,
				error) {
				return l.a.GetZcopy(comp, l.a.peer.At(0))
			},
			"get bcopy of nothing": func() (bool,
				error) {
				return l.a.GetBcopy(comp, nil, l.a.peer.At(0))
			},
			"local flush of what is idle": func() (bool, error) {
				return l.a.StartFlush(transport.FlushLocal,
					comp)
			},
			"remote flush of what is idle": func() (bool,
				error) {
				return l.a.StartFlush(transport.FlushRemote, comp)
			},
		} {
			if done, err := call(); !done || err != nil {
				t.Errorf("%s: done %v, %v", name, done, err)
			}
		}
		l.quiet()
		if comp.Fired() {
			t.Error("an operation that was done counted on the completion")
		}
		comp.Done(nil)
		if !comp.Fired() {
			t.Error("the caller's own count did not fire it")
		}
	})
}

func TestContract02TheFirstErrorIsKept(t *testing.T) {
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

// zcopy completions fire in posting order on an endpoint, even over rails that reorder.
func TestContract03CompletionsFireInPostingOrder(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		for seed := range seeds(20) {
			s.stepped, s.scramble, s.seed = true, true, seed
			l := newLink(t, s)
			sizes := []uint64{1, 30000, 8, 4097, 16384, 2}
			var order, want []int
			n := 0
			for round := range 5 {
				for i, size := range sizes {
					comp := transport.NewCompletion(1, func(n int) func(*transport.Completion) {
						return func(*transport.Completion) { order = append(order, n) }
					}(n))
					var err error
					switch (round + i) % 4 {
					case 0:
						_, err = l.a.GetZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(30000, size))
					case 1:
						err = l.a.FetchAdd(comp, nil, l.a.peer.At(40000), size)
					case 2:
						_, err = l.a.StartFlush(transport.FlushRemote, comp)
					default:
						_, err = l.a.PutZcopy(comp, l.a.peer.At(0), l.a.mr.Slice(0, size))
					}
					must(t, err)
					want = append(want, n)
					n++
				}
			}
			l.until("all completions", func() bool { return len(order) == n })
			if !slices.Equal(order, want) {
				t.Fatalf("seed %d: completions fired in the order %v", seed, order)
			}
			l.close()
		}
	})
}

// Active messages are handled in the order in which they were sent, short, bcopy and zcopy among
// each other.
func TestMessagesAreHandledInOrder(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		var got []string
		s.stepped = true
		s.scramble = true
		s.handle = func(m *transport.Message) { got = append(got, string(m.Header())+string(m.Data())) }
		l := newLink(t, s)
		var want []string
		for i := range 60 {
			copy(l.a.mem[i*10:], fmt.Sprintf("zcopy %02d", i))
			l.until("message sent", func() bool {
				var err error
				switch i % 3 {
				case 0:
					err = l.a.AMShort(1, []byte("short "), []byte(fmt.Sprintf("%02d", i)))
				case 1:
					_, err = l.a.AMBcopy(1, []byte("bcopy "), pack([]byte(fmt.Sprintf("%02d", i))))
				case 2:
					err = l.a.AMZcopy(nil, 1, nil, l.a.mr.Slice(uint64(i*10), 6),
						l.a.mr.Slice(uint64(i*10+6), 2))
				}
				if err != nil && err != transport.ErrNoResource {
					t.Fatal(err)
				}
				return err == nil
			})
			want = append(want, fmt.Sprintf("%s %02d", []string{"short", "bcopy", "zcopy"}[i%3], i))
		}
		l.until("all messages", func() bool { return len(got) == len(want) })
		if !slices.Equal(got, want) {
			t.Fatalf("got %q", got)
		}
	})
}

// A fairness limit per endpoint is allowed: reaching it is ErrNoResource.
func TestContract15ALimitPerEndpoint(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped = true
		l := newLink(t, s)
		limit := l.a.Stats().Limit
		if want := l.a.w.Config().MaxOutstanding; limit != want {
			t.Errorf("limit %d, configured %d", limit, want)
		}
		if n := l.a.fill(t); n != limit {
			t.Errorf("%d operations were accepted: the limit is %d", n, limit)
		}
		if s := l.a.Stats(); s.Outstanding != limit {
			t.Errorf("%+v", s)
		}
		other, _ := l.another(transport.EndpointConfig{})
		must(t, other.PutShort([]byte{1}, other.peer.At(0))) // not the worker's limit
		l.quiet()
		if s := l.a.Stats(); s.Outstanding != 0 {
			t.Errorf("after all has ended: %+v", s)
		}
		if n := l.a.fill(t); n != limit {
			t.Errorf("the second time %d operations were accepted", n)
		}
	})
}

// A call before Connect is refused with ErrNotConnected, and one after Close or Abort says so.
func TestCallsOutsideOfTheLife(t *testing.T) {
	w := newWorld(t, setupFabric(1))
	worker := w.worker(transport.Config{}, nil, w.fabric.Device(0))
	_, mr := w.register(worker, 30000+64, 0)
	e := &end{Endpoint: newEndpoint(t, worker, transport.EndpointConfig{}), w: worker, mr: mr,
		peer: mr.Remote()}
	all := append(operations(func() { t.Error("packed for nothing") }),
		operation{name: "flush", call: func(e *end, c *transport.Completion) error {
			_, err := e.StartFlush(transport.FlushLocal, c)
			return err
		}},
		operation{name: "pending", call: func(e *end, _ *transport.Completion) error {
			return e.Pending(&transport.Pending{Func: func(*transport.Pending,
				*transport.Endpoint) transport.Outcome {
				return transport.PendingDone
			}})
		}})
	for _, op := range all {
		if err := op.call(e, nil); !errors.Is(err, transport.ErrNotConnected) {
			t.Errorf("%s: %v", op.name, err)
		}
	}
	must(t, e.Close(within(t)))
	for _, op := range all {
		if err := op.call(e, nil); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("%s after Close: %v", op.name, err)
		}
	}
	for name, err := range map[string]error{
		"close": e.Close(within(t)), "abort": e.Abort(nil), "connect": e.Connect(transport.Card{}),
		"flush": e.Flush(within(t), transport.FlushLocal),
	} {
		if !errors.Is(err, transport.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if _, err := e.Card(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("card after Close: %v", err)
	}
}
