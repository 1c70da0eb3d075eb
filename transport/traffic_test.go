package transport_test

import (
	"encoding/binary"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"ibverbx/transport"
)

// Several goroutines send on one endpoint, and on several of one worker, with and without a
// goroutine of the worker's own. Messages of each goroutine arrive once and in their order, and
// every completion fires.
func TestConcurrentSenders(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		for _, started := range []bool{false, true} {
			const senders, messages = 4, 150
			var next [senders]uint32
			var total atomic.Int32
			s.handle = func(m *transport.Message) {
				who, n := binary.LittleEndian.Uint32(m.Header()), binary.LittleEndian.Uint32(m.Header()[4:])
				if next[who] != n {
					t.Errorf("sender %d: message %d, expected %d", who, n, next[who])
				}
				next[who] = n + 1
				total.Add(1)
			}
			l := newLink(t, s)
			other, _ := l.another(transport.EndpointConfig{})
			if started {
				must(t, l.a.w.Start())
			}
			must(t, l.b.w.Start())
			var fired atomic.Int32
			var all sync.WaitGroup
			for who := range uint32(senders) {
				all.Go(func() {
					e := []*end{l.a, other}[who/2%2] // who 0 and 1 on one endpoint, 2 and 3 on the other
					sendFrom(t, e, who, messages, &fired)
				})
			}
			all.Wait()
			must(t, l.a.w.Flush(within(t), transport.FlushRemote))
			must(t, l.a.w.WaitFor(within(t), 0, func() bool { return fired.Load() == senders*messages }))
			must(t, l.b.w.WaitFor(within(t), 0, func() bool { return total.Load() == senders*messages }))
			l.close()
		}
	})
}

// sendFrom sends numbered messages and a put behind each. When it meets ErrNoResource it makes
// progress, or queues a request.
func sendFrom(t *testing.T, e *end, who uint32, messages int, fired *atomic.Int32) {
	var hdr [8]byte
	binary.LittleEndian.PutUint32(hdr[:], who)
	for n := range messages {
		binary.LittleEndian.PutUint32(hdr[4:], uint32(n))
		retry(t, e, func(ep *transport.Endpoint) error {
			switch n % 3 {
			case 0:
				return ep.AMShort(1, hdr[:], nil)
			case 1:
				_, err := ep.AMBcopy(1, hdr[:], pack(hdr[:]))
				return err
			}
			err := ep.AMZcopy(nil, 1, hdr[:], e.mr.Slice(uint64(who)*100, 100))
			return err
		})
		comp := transport.NewCompletion(1, func(*transport.Completion) { fired.Add(1) })
		retry(t, e, func(ep *transport.Endpoint) error {
			_, err := ep.PutZcopy(comp, e.peer.At(uint64(who)*100), e.mr.Slice(uint64(who)*100, 100))
			return err
		})
	}
}

// retry repeats a call until it goes out: with progress in between, or every other time by way of
// the queue.
func retry(t *testing.T, e *end, call func(ep *transport.Endpoint) error) {
	for tries := 0; ; tries++ {
		err := call(e.Endpoint)
		if err == nil {
			return
		}
		if err != transport.ErrNoResource {
			t.Error(err)
			return
		}
		if tries%2 == 0 {
			e.w.Progress()
			runtime.Gosched()
			continue
		}
		sent := transport.NewCompletion(1, nil)
		err = e.Pending(request(func(head *transport.Endpoint) transport.Outcome {
			err := call(head)
			o := outcome(t, err)
			if o == transport.PendingDone {
				sent.Done(err)
			}
			return o
		}))
		switch err {
		case nil:
			if err := e.w.Wait(within(t), sent); err != nil {
				t.Error(err)
			}
			return
		case transport.ErrBusy:
		default:
			t.Error(err)
			return
		}
	}
}

// Several goroutines send on NotifyReady; OnReady is called for what was refused, and no wake-up is
// lost.
func TestConcurrentSendersThatAreNotified(t *testing.T) {
	s := setup{cfg: small()}
	s.cfg.QP = shapes()[1].cfg.QP
	const want = 2000
	// A send and its count are one step: otherwise OnReady could see a message counted that is
	// refused.
	var mu sync.Mutex
	sent := 0
	var l *link
	one := func(ep *transport.Endpoint) error {
		mu.Lock()
		defer mu.Unlock()
		if sent == want {
			return io.EOF
		}
		err := ep.PutShort([]byte{1}, l.a.peer.At(0))
		if err == nil {
			sent++
		} else if err != transport.ErrNoResource {
			t.Error(err)
		}
		return err
	}
	send := func(ep *transport.Endpoint) {
		for one(ep) == nil {
		}
	}
	s.onReady = send
	l = newLink(t, s)
	must(t, l.a.w.Start())
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { send(l.a.NotifyReady()) })
	}
	all.Wait()
	must(t, l.b.w.WaitFor(within(t), 1e6, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return sent == want
	}))
}

// Endpoints open and close while others send, each with operations in flight.
func TestConcurrentLives(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		l := newLink(t, s)
		must(t, l.b.w.Start())
		var all sync.WaitGroup
		var mu sync.Mutex // guards the link's list of regions; its fatal errors end the test
		rounds := 20
		if testing.Short() {
			rounds = 5
		}
		for who := range 3 {
			all.Go(func() {
				for i := range rounds {
					mu.Lock()
					x, y := l.another(transport.EndpointConfig{})
					mu.Unlock()
					for range 10 {
						_ = x.AMShort(1, nil, []byte("hello"))
						_, _ = x.PutZcopy(nil, x.peer.At(0), x.mr.Slice(30000, 8))
					}
					switch (who + i) % 3 {
					case 0:
						if err := x.Close(within(t)); err != nil {
							t.Error(err)
						}
					case 1:
						if err := x.Abort(nil); err != nil {
							t.Error(err)
						}
					case 2:
						var both sync.WaitGroup
						both.Go(func() { _ = x.Close(within(t)) }) // the peer may be gone first
						both.Go(func() { _ = y.Close(within(t)) })
						both.Wait()
						continue
					}
					_ = y.Abort(nil)
				}
			})
		}
		all.Wait()
		l.until("all but one endpoint are given back", func() bool {
			return l.a.w.Stats().Endpoints == 1 && l.b.w.Stats().Endpoints == 1
		})
	})
}
