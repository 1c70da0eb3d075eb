package transport_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Purge hands every queued request back exactly once, in order, without running its function.
func TestContract10PurgeHandsEveryRequestBack(t *testing.T) {
	each(t, func(t *testing.T, s setup) {
		s.stepped = true
		l := newLink(t, s)
		l.a.fill(t)
		var queued, back []*transport.Pending
		for range 10 {
			p := request(func(*transport.Endpoint) transport.Outcome {
				t.Error("a purged request runs")
				return transport.PendingDone
			})
			must(t, l.a.Pending(p))
			queued = append(queued, p)
		}
		l.a.Purge(func(p *transport.Pending) { back = append(back, p) })
		if !slices.Equal(queued, back) {
			t.Errorf("%d requests came back, not the %d in their order", len(back), len(queued))
		}
		l.a.Purge(func(*transport.Pending) { t.Error("handed back twice") })
		if s := l.a.Stats(); s.Pending != 0 {
			t.Errorf("%+v", s)
		}
		l.quiet()
		must(t, l.a.PutShort([]byte{1}, l.a.peer.At(0))) // nothing is overtaken now
	})
}

// The function that gets a request may queue it again, or another one that was handed back; none is
// lost.
func TestContract10PurgeMayQueueAgain(t *testing.T) {
	l := newLink(t, setup{stepped: true})
	l.a.fill(t)
	ran, back := 0, 0
	var all [5]*transport.Pending
	for i := range all {
		all[i] = request(func(*transport.Endpoint) transport.Outcome { ran++; return transport.PendingDone })
		must(t, l.a.Pending(all[i]))
	}
	l.a.Purge(func(p *transport.Pending) {
		back++
		if back == 1 {
			if err := l.a.Pending(all[3]); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("a request that is still to be handed back was queued: %v", err)
			}
		}
		must(t, l.a.Pending(p))
	})
	if back != len(all) {
		t.Errorf("%d of %d were handed back", back, len(all))
	}
	l.until("all run after all", func() bool { return ran == len(all) })
}

// A request whose function runs, and purges, is handed back only if it wants to stay.
func TestContract10PurgeFromARunningFunction(t *testing.T) {
	for _, c := range []struct {
		name    string
		requeue bool
		answer  transport.Outcome
		back    int
	}{
		{"done", false, transport.PendingDone, 1},
		{"wants to stay", false, transport.PendingNoResource, 2},
		{"queued itself, done", true, transport.PendingDone, 2},
		{"queued itself, wants to stay", true, transport.PendingProgress, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, setup{stepped: true})
			l.a.fill(t)
			back := map[*transport.Pending]int{}
			first, runs := &transport.Pending{}, 0
			first.Func = func(p *transport.Pending, head *transport.Endpoint) transport.Outcome {
				runs++
				if c.requeue {
					must(t, head.Pending(p))
				}
				head.Purge(func(p *transport.Pending) { back[p]++ })
				return c.answer
			}
			second := request(func(*transport.Endpoint) transport.Outcome {
				t.Error("a purged request runs")
				return transport.PendingDone
			})
			must(t, l.a.Pending(first))
			must(t, l.a.Pending(second))
			l.quiet()
			if runs != 1 || back[second] != 1 || len(back) != c.back || back[first] > 1 {
				t.Errorf("ran %d times; handed back: first %d times, second %d times", runs, back[first],
					back[second])
			}
		})
	}
}

// Purge removes the program's requests only: a flush that waits in the queue goes on.
func TestContract10PurgeLeavesFlushesAlone(t *testing.T) {
	for name, flush := range map[string]func(l *link) error{
		"endpoint": func(l *link) error { return l.a.Flush(within(t), transport.FlushRemote) },
		"worker":   func(l *link) error { return l.a.w.Flush(within(t), transport.FlushLocal) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, setup{stepped: true})
			l.a.fill(t)
			must(t, l.a.Pending(
				request(func(*transport.Endpoint) transport.Outcome { return transport.PendingDone })))
			ended := make(chan error, 1)
			go func() { ended <- flush(l) }()
			// nothing moves in the fabric
			for deadline := time.Now().Add(patience); l.a.Stats().Pending != 2; runtime.Gosched() {
				if time.Now().After(deadline) {
					t.Fatalf("the flush is not queued: %+v", l.a.Stats())
				}
			}
			n := 0
			l.a.Purge(func(*transport.Pending) { n++ })
			if n != 1 {
				t.Errorf("%d requests were handed back: the program had queued 1", n)
			}
			var err error
			l.until("the flush ends", func() bool {
				select {
				case err = <-ended:
					return true
				default:
					return false
				}
			})
			must(t, err)
		})
	}
}

// Endpoints that share resources are served round-robin: no endpoint starves, however many there
// are.
func TestContract07NoEndpointStarves(t *testing.T) {
	for _, s := range []struct {
		setup
		shape  int
		greedy func(i int) bool // endpoint i sends as much as it can; others one buffer a turn
	}{
		{setup{name: "modest", cfg: transport.Config{BounceBuffers: 8, AMBuffers: 4, MaxOutstanding: 4}}, 2,
			func(int) bool { return false }},
		{setup{name: "greedy", cfg: transport.Config{BounceBuffers: 9, AMBuffers: 4, MaxOutstanding: 4}}, 2,
			func(int) bool { return true }},
		{setup{name: "mixed", cfg: transport.Config{BounceBuffers: 7, AMBuffers: 4, MaxOutstanding: 4}}, 5,
			func(i int) bool { return i%2 == 1 }},
		{setup{name: "one buffer", cfg: transport.Config{BounceBuffers: 1, AMBuffers: 2, MaxOutstanding: 2}},
			0, func(i int) bool { return i%2 == 1 }},
	} {
		t.Run(s.name, func(t *testing.T) {
			const endpoints = 128
			rounds := 10000
			if testing.Short() {
				rounds = 500
			}
			s.cfg.QP = shapes()[s.shape].cfg.QP
			s.cfg.MaxEndpoints = endpoints
			l := newLink(t, s.setup)
			ends := []*end{l.a}
			for len(ends) < endpoints {
				x, _ := l.another(transport.EndpointConfig{})
				ends = append(ends, x)
			}
			share := make([]int, endpoints)
			data := make([]byte, 64)
			stop := false
			for i, e := range ends {
				hungry := request(nil)
				hungry.Func = func(_ *transport.Pending, head *transport.Endpoint) transport.Outcome {
					for {
						if stop {
							return transport.PendingDone
						}
						_, err := head.PutBcopy(pack(data), e.peer.At(uint64(64*i)))
						if err == transport.ErrNoResource {
							return transport.PendingNoResource
						} else if err != nil {
							t.Error(err)
							return transport.PendingDone
						}
						if share[i]++; !s.greedy(i) {
							return transport.PendingProgress
						}
					}
				}
				try(t, func(int) error {
					_,
						err := e.PutBcopy(pack(data), e.peer.At(uint64(64*i)))
					return err
				})
				must(t, e.Pending(hungry))
			}
			for range rounds {
				l.a.w.Progress()
			}
			stop = true
			least, most, all := share[0], share[0], 0
			for _, n := range share {
				least, most, all = min(least, n), max(most, n), all+n
			}
			t.Logf("%d rounds of progress, %d puts: the smallest share is %d, the largest %d", rounds, all,
				least, most)
			if all < rounds/2 {
				t.Errorf("%d puts in %d rounds", all, rounds)
			}
			modest, greedy := [2]int{1 << 30, 0}, [2]int{1 << 30, 0}
			for i, n := range share {
				r := &modest
				if s.greedy(i) {
					r = &greedy
				}
				r[0], r[1] = min(r[0], n), max(r[1], n)
			}
			even := func(r [2]int) bool { return float64(r[1]) <= 1.1*float64(r[0])+2 }
			switch {
			case modest[1] == 0:
				if !even(greedy) {
					t.Errorf("one got %d and another %d", greedy[0], greedy[1])
				}
			case !even(modest):
				t.Errorf("of the modest, one got %d and another %d", modest[0], modest[1])
			case greedy[0]+2 < modest[0]: // turns are equal; a greedy one may find nothing in its turn
				t.Errorf("a greedy one got %d, and a modest one %d", greedy[0], modest[0])
			}
			if least == 0 {
				t.Error("an endpoint starved")
			}
			l.quiet()
		})
	}
}

// addGreedy connects endpoints of a's worker to peers that are bare virtual queue pairs: their
// cards claim that they have receives without end, and they post none.
func addGreedy(tb testing.TB, l *link, n int) (victims []*transport.Endpoint, failed *int) {
	tb.Helper()
	failed = new(int)
	var raws []*ibverbx.VirtualQP
	tb.Cleanup(func() {
		for _, raw := range raws {
			_ = raw.Close()
			_ = raw.CQ().Close()
		}
		l.close()
	})
	for i := range n {
		victim := newEndpoint(tb, l.a.w, transport.EndpointConfig{Name: fmt.Sprintf("greedy %d", i),
			OnError: func(*transport.Endpoint, error) { *failed++ }})
		cfg := l.a.w.Config().QP
		cfg.Linger = -1
		raw, err := l.b.w.Domain().NewQP(nil, cfg)
		must(tb, err)
		raws = append(raws, raw)
		qp, err := raw.Card()
		must(tb, err)
		must(tb, raw.Connect(card(tb, victim).QP))
		must(tb, victim.Connect(transport.Card{Version: 2, QP: qp, AMBuffers: transport.MaxAMBuffers,
			BufferSize: 8192, Handlers: 2, Flush: l.b.mr.Remote()}))
		victims = append(victims, victim)
	}
	return victims, failed
}

// hog has each endpoint send by bcopy for as long as it can.
func hog(tb testing.TB, victims []*transport.Endpoint) {
	tb.Helper()
	for _, v := range victims {
		try(tb, func(int) error { _, err := v.AMBcopy(1, nil, pack([]byte{1})); return err })
	}
}

// Peers that claim receives and post none hold bounce buffers for as long as a NIC tries. Whatever
// they hold, every other endpoint still sends by bcopy, messages and puts and gets.
func TestOthersCannotTakeAnEndpointsBounceBuffers(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.cfg.QP.Conn.RNRRetry = verbs.RNRRetryForever
		l := newLink(t, s)
		victims, failed := addGreedy(t, l, 4)
		hog(t, victims)
		if free := l.a.w.Stats().BounceFree; free != 0 {
			t.Fatalf("%d bounce buffers are free", free)
		}
		other, peer := l.another(transport.EndpointConfig{}) // one that comes later, too
		for _, e := range []*end{l.a, other} {
			for i := range 10 {
				got := l.got
				l.until("a message is sent", func() bool {
					_, err := e.AMBcopy(1, nil, pack([]byte{1}))
					if err != nil && err != transport.ErrNoResource {
						t.Fatal(err)
					}
					return err == nil
				})
				l.until("it arrives", func() bool { return l.got == got+1 })
				l.until("a put", func() bool {
					_, err := e.PutBcopy(pack([]byte{byte(i), 7}), e.peer.At(100))
					return err == nil
				})
				l.flushed(e)
				landed(t, "the put", l.b.mem[100:102], []byte{byte(i), 7})
				dst, got2 := make([]byte, 2), transport.NewCompletion(1, nil)
				l.until("a get", func() bool {
					_, err := e.GetBcopy(got2, dst, e.peer.At(100))
					return err == nil
				})
				l.until("its data", got2.Fired)
				landed(t, "the get", dst, []byte{byte(i), 7})
			}
		}
		must(t, peer.Err())
		if *failed != 0 {
			t.Errorf("%d of the others failed", *failed)
		}
	})
}

// By default a NIC tries a few times only: such an endpoint fails, and gives back what it held.
func TestAPeerWithoutReceivesFailsSoon(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		s.cfg.QP.Linger = -1
		l := newLink(t, s)
		victims, failed := addGreedy(t, l, 4)
		hog(t, victims)
		begin := time.Now()
		l.until("all of them fail", func() bool { return *failed == len(victims) })
		t.Logf("failed after %v", time.Since(begin))
		for _, v := range victims {
			var why *ibverbx.FailedError
			if err := v.Err(); !errors.Is(err, transport.ErrPeerFailed) || !errors.As(err, &why) ||
				!errors.Is(why.Err, verbs.StatusRNRRetryExcErr) {
				t.Errorf("%v", err)
			}
		}
		l.until("the buffers are back", func() bool {
			s := l.a.w.Stats()
			return s.BounceFree == s.BounceTotal
		})
		must(t, l.a.Err())
	})
}
