package transport_test

import (
	"testing"

	"ibverbx/transport"
)

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
