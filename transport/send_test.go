package transport_test

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx/transport"
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

// A call before Connect is refused with ErrNotConnected, and one after Close or Abort says so.
func TestCallsOutsideOfTheLife(t *testing.T) {
	all := append(operations(func() { t.Error("packed for nothing") }),
		operation{name: "flush", call: func(e *end, c *transport.Completion) error {
			return only(e.StartFlush(transport.FlushLocal, c))
		}},
		operation{name: "pending", call: func(e *end, _ *transport.Completion) error {
			return e.Pending(request(func(*transport.Endpoint) transport.Outcome { return transport.PendingDone }))
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
