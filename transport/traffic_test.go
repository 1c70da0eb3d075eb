package transport_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// A million small and a thousand large puts, interleaved, to two peers: every completion once and
// in order, the data there, and no queue overrun.
func TestAMillionPutsToTwoPeers(t *testing.T) {
	small, large := 1_000_000, 1000
	if testing.Short() {
		small, large = 20_000, 20
	}
	const size = 1 << 20
	s := setup{memory: size + 1<<16, cfg: transport.Config{BounceBuffers: 32}}
	l := newLink(t, s)
	other, _ := l.another(transport.EndpointConfig{})
	ends := []*end{l.a, other}
	var posted, fired [2]uint32
	pool := [2][]*transport.Completion{}
	order := map[*transport.Completion]uint32{} // which of its peer's puts each stands for
	done := [2]func(*transport.Completion){}
	for i := range done {
		done[i] = func(c *transport.Completion) {
			if c.Err() != nil || order[c] != fired[i] {
				t.Errorf("peer %d: completion %d fired in place of %d: %v", i, order[c], fired[i], c.Err())
			}
			fired[i]++
			c.Init(1, done[i])
			pool[i] = append(pool[i], c)
		}
		for range 80 {
			c := transport.NewCompletion(1, done[i])
			order[c] = 0
			pool[i] = append(pool[i], c)
		}
	}
	step := func(i int, call func(c *transport.Completion) error) {
		for {
			if n := len(pool[i]); n != 0 {
				c := pool[i][n-1]
				order[c] = posted[i]
				err := call(c)
				if err == nil {
					pool[i] = pool[i][:n-1]
					posted[i]++
					return
				}
				if err != transport.ErrNoResource {
					t.Fatal(err)
				}
			}
			if l.a.w.Progress() == 0 {
				runtime.Gosched()
			}
		}
	}
	var number [8]byte
	for n := range small {
		i := n % 2
		e := ends[i]
		if n%(small/large) == 0 {
			step(i, func(c *transport.Completion) error {
				_, err := e.PutZcopy(c, e.peer.Slice(0, size), e.mr.Slice(0, size))
				return err
			})
		}
		at := size + uint64(n%8192)*8
		binary.LittleEndian.PutUint64(number[:], uint64(n))
		if n%3 == 0 {
			copy(l.a.mem[at:], number[:]) // no other put within the window sends from there
			step(i, func(c *transport.Completion) error {
				_, err := e.PutZcopy(c, e.peer.Slice(at, 8), e.mr.Slice(at, 8))
				return err
			})
			continue
		}
		for {
			err := e.PutShort(number[:], e.peer.Slice(at, 8))
			if err == nil {
				break
			} else if err != transport.ErrNoResource {
				t.Fatal(err)
			}
			if l.a.w.Progress() == 0 {
				runtime.Gosched()
			}
		}
	}
	for _, e := range ends {
		must(t, e.Flush(within(t), transport.FlushRemote))
	}
	if posted != fired {
		t.Errorf("posted %v, fired %v", posted, fired)
	}
	for n := small - 8192; n < small; n++ {
		if got := binary.LittleEndian.Uint64(l.b.mem[size+n%8192*8:]); got != uint64(n) {
			t.Fatalf("put %d: its word is %d", n, got)
		}
	}
	landed(t, "large puts", l.b.mem[:size], l.a.mem[:size])
}

// Put, fence, a flag: the target, which polls on the flag alone, never sees it before the data.
func TestAFlagBehindAFenceIsSeenAfterTheData(t *testing.T) {
	for _, s := range []setup{shapes()[0], shapes()[1], shapes()[2], shapes()[3]} {
		t.Run(s.name, func(t *testing.T) {
			sizes := []int{1, 7, 8, 9, 100, 4095, 4096, 4097, 10_000, 65_536, 300_001, 1_000_000}
			repeats := 50
			if testing.Short() {
				repeats = 3
			}
			s.memory = 1_000_000 + 64
			s.cfg.QP.FragmentSize = 64 << 10
			l := newLink(t, s)
			const head, tail = 0, 1_000_048
			flag := func(at int) *uint64 { return word(l.b.mem[at:]) }
			for _, size := range sizes {
				for round := range repeats {
					stamp := byte(round*31 + size)
					for i := range size {
						l.a.mem[8+i] = stamp
					}
					seen := make(chan bool, 1)
					value := uint64(size)<<32 | uint64(round) + 1
					go func() {
						deadline := time.Now().Add(patience)
						for atomic.LoadUint64(flag(tail)) != value || atomic.LoadUint64(flag(head)) != value {
							if runtime.Gosched(); time.Now().After(deadline) {
								break
							}
						}
						seen <- bytes.Count(l.b.mem[8:8+size], []byte{stamp}) == size
					}()
					comp := transport.NewCompletion(1, nil)
					if _, err := l.a.PutZcopy(comp, l.a.peer.At(8),
						l.a.mr.Slice(8, uint64(size))); err != nil {
						t.Fatal(err)
					}
					l.a.Fence()
					var raised [8]byte
					binary.NativeEndian.PutUint64(raised[:], value)
					must(t, l.a.PutShort(raised[:], l.a.peer.At(head)))
					must(t, l.a.PutShort(raised[:], l.a.peer.At(tail)))
					must(t, l.a.w.Wait(within(t), comp))
					must(t, l.a.Flush(within(t), transport.FlushLocal))
					if !<-seen {
						t.Fatalf("%d bytes, round %d: the flags are there and the data is not", size, round)
					}
				}
			}
		})
	}
}
