package transport_test

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"log"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Two workers over software NICs: an active message, a put into the peer's memory, and a flush that
// returns when it is there. In a real program each runs in a process of its own, and the cards
// travel between them as JSON.
func Example() {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		log.Fatal(err)
	}
	open := func(nic verbs.Device, handle transport.Handler) (*ibverbx.Domain, *transport.Worker,
		*transport.Endpoint) {
		dom, err := ibverbx.NewDomain(nic)
		if err != nil {
			log.Fatal(err)
		}
		w, err := transport.NewWorker(dom, transport.Config{})
		if err != nil {
			log.Fatal(err)
		}
		if err := w.Handle(1, handle); err != nil {
			log.Fatal(err)
		}
		ep, err := w.NewEndpoint(transport.EndpointConfig{})
		if err != nil {
			log.Fatal(err)
		}
		return dom, w, ep
	}
	arrived := transport.NewCompletion(1, nil)
	domA, wa, a := open(fabric.Device(0), func(*transport.Message) {})
	domB, wb, b := open(fabric.Device(1), func(m *transport.Message) {
		fmt.Printf("message: %s %s\n", m.Header(), m.Data())
		arrived.Done(nil)
	})

	connect := func(to, from *transport.Endpoint) {
		card, err := from.Card()
		if err != nil {
			log.Fatal(err)
		}
		wire, err := json.Marshal(card) // and over whatever the two have
		if err != nil {
			log.Fatal(err)
		}
		var received transport.Card
		if err := errors.Join(json.Unmarshal(wire, &received), to.Connect(received)); err != nil {
			log.Fatal(err)
		}
	}
	connect(a, b)
	connect(b, a)

	ctx := context.Background()
	memory, err := domB.Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		log.Fatal(err)
	}
	if err := a.AMShort(1, []byte("hello,"), []byte("peer")); err != nil {
		log.Fatal(err)
	}
	if err := wb.Wait(ctx, arrived); err != nil { // the receiver makes progress, and its handler runs
		log.Fatal(err)
	}
	if err := a.PutShort([]byte("written from afar"), memory.Remote().At(100)); err != nil {
		log.Fatal(err)
	}
	if err := a.Flush(ctx, transport.FlushRemote); err != nil { // needs nothing of the receiver's program
		log.Fatal(err)
	}
	fmt.Printf("memory: %s\n", memory.Bytes()[100:117])

	if err := errors.Join(a.Close(ctx), wa.Close(), wb.Close(), memory.Close(), domA.Close(), domB.Close(),
		fabric.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// message: hello, peer
	// memory: written from afar
}

// exampleLink connects two endpoints with memory on the second's side, for the examples that are
// about something else.
func exampleLink(cfg transport.Config) (a *transport.Endpoint, memory *ibverbx.MR, end func()) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		log.Fatal(err)
	}
	var ends []func() error
	var eps [2]*transport.Endpoint
	for i := range eps {
		dom, err := ibverbx.NewDomain(fabric.Device(i))
		if err != nil {
			log.Fatal(err)
		}
		w, err := transport.NewWorker(dom, cfg)
		if err != nil {
			log.Fatal(err)
		}
		if eps[i], err = w.NewEndpoint(transport.EndpointConfig{}); err != nil {
			log.Fatal(err)
		}
		if memory, err = dom.Register(make([]byte, 4096), verbs.AccessAll); err != nil {
			log.Fatal(err)
		}
		ends = append(ends, w.Close, memory.Close, dom.Close)
	}
	if err := transport.Connect(eps[0], eps[1]); err != nil {
		log.Fatal(err)
	}
	return eps[0], memory, func() {
		for _, f := range append(ends, fabric.Close) {
			if err := f(); err != nil {
				log.Fatal(err)
			}
		}
	}
}

// A send that meets ErrNoResource is queued, and goes out from inside progress once there is room.
// Nothing overtakes it.
func ExamplePending() {
	a, memory, end := exampleLink(transport.Config{MaxOutstanding: 2})
	defer end()

	next := byte(0)
	send := func(ep *transport.Endpoint) error { // as many of ten puts as go
		for next < 10 {
			if err := ep.PutShort([]byte{'0' + next}, memory.Remote().At(uint64(next))); err != nil {
				return err
			}
			next++
		}
		return nil
	}
	rest := &transport.Pending{Func: func(_ *transport.Pending, head *transport.Endpoint) transport.Outcome {
		if send(head) == transport.ErrNoResource {
			return transport.PendingNoResource
		}
		return transport.PendingDone
	}}
	for {
		err := send(a)
		if err == transport.ErrNoResource {
			err = a.Pending(rest)
		}
		if err == transport.ErrBusy {
			continue // there is room again
		}
		if err != nil {
			log.Fatal(err)
		}
		break
	}
	fmt.Println("went out at once:", next)
	if err := a.Flush(context.Background(), transport.FlushRemote); err != nil { // behind what is pending
		log.Fatal(err)
	}
	fmt.Printf("in memory: %s\n", memory.Bytes()[:10])
	// Output:
	// went out at once: 2
	// in memory: 0123456789
}

// One completion for several operations: it fires when all of them have ended, with the first error
// if there was one.
func ExampleCompletion() {
	a, memory, end := exampleLink(transport.Config{})
	defer end()
	source, err := a.Worker().Domain().Register([]byte("three pieces put"), verbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}

	const pieces = 3
	comp := transport.NewCompletion(pieces, func(c *transport.Completion) {
		fmt.Println("all pieces have ended; error:", c.Err())
	})
	for i, piece := range []ibverbx.Segment{source.Slice(0, 6), source.Slice(6, 7), source.Slice(13, 3)} {
		done, err := a.PutZcopy(comp, memory.Remote().At(uint64(16*i)), piece)
		if err != nil {
			log.Fatal(err)
		}
		if done {
			comp.Done(nil) // an operation that is done at once does not count by itself
		}
	}
	// the source must not be written to before this returns
	if err := a.Worker().Wait(context.Background(), comp); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %s, %s\n", memory.Bytes()[0:5], memory.Bytes()[16:22], memory.Bytes()[32:35])
	if err := source.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// all pieces have ended; error: <nil>
	// three, pieces, put
}

// A program publishes its statistics by package expvar: what Stats and QPTotal return are JSON, and
// may be asked for from any goroutine.
func ExampleWorker_Stats() {
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		log.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(fabric.Device(0))
	if err != nil {
		log.Fatal(err)
	}
	w, err := transport.NewWorker(dom, transport.Config{})
	if err != nil {
		log.Fatal(err)
	}
	expvar.Publish("ibverbx.worker", expvar.Func(func() any { return w.Stats() }))
	expvar.Publish("ibverbx.rails", expvar.Func(func() any { return w.QPTotal() }))

	var published transport.Stats
	if err := json.Unmarshal([]byte(expvar.Get("ibverbx.worker").String()), &published); err != nil {
		log.Fatal(err)
	}
	fmt.Println(published.Endpoints, "endpoints,", published.BounceFree, "bounce buffers are free")
	if err := errors.Join(w.Close(), dom.Close(), fabric.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: 0 endpoints, 256 bounce buffers are free
}
