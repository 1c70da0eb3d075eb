package sendside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/test/internal/hunt"
	"ibverbx/verbs/soft"
)

// Ranks is the game of ranks that have joined: collective calls, several under way at each rank,
// and endpoints that are made on demand, in some worlds around ranks that are gone.
var Ranks = hunt.Game{
	Test: "TestRanks", Dir: "./test/sendside",
	Events: func(seed uint64) int { return len(newRanksPlan(seed).events) },
	Play: func(seed uint64, keep []int, log func(string)) *hunt.Violation {
		return newRanksPlan(seed).play(keep, log)
	},
}

// ranksPlan describes a world of ranks and its events.
type ranksPlan struct {
	seed     uint64
	size     int // ranks
	onDemand bool
	gone     []int // ranks that fail before all else; then there are no collective calls
	calls    []rankCall
	events   []rankEvent
}

// rankCall is a call that all ranks make.
type rankCall struct{ kind, n, root int }

// rankEvent is an event of one rank.
type rankEvent struct{ kind, rank, arg int }

// The kinds of events of ranks, as often as they are in the list.
const (
	rankSteps = iota
	rankProgress
	rankCalls
	rankSends
	rankEvents
)

func newRanksPlan(seed uint64) *ranksPlan {
	rng := rand.New(rand.NewPCG(seed, 0x72616e6b))
	p := &ranksPlan{seed: seed, size: 2 + rng.IntN(6), onDemand: rng.IntN(3) != 0}
	if p.onDemand && rng.IntN(3) == 0 {
		p.size = 4 + rng.IntN(9)
		for range 1 + rng.IntN(2) {
			if dead := rng.IntN(p.size); !slices.Contains(p.gone, dead) {
				p.gone = append(p.gone, dead)
			}
		}
	}
	for range 2 + rng.IntN(10) {
		p.calls = append(p.calls, rankCall{rng.IntN(rankCallKinds), []int{0, 1, 5, 40, 700}[rng.IntN(5)],
			rng.IntN(p.size)})
	}
	for range 60 + rng.IntN(200) {
		kind := []int{rankSteps, rankSteps, rankProgress, rankProgress, rankCalls, rankSends}[rng.IntN(6)]
		p.events = append(p.events, rankEvent{kind, rng.IntN(p.size), rng.IntN(1 << 20)})
	}
	return p
}

// ranksWorld is the ranks, and what they have begun.
type ranksWorld struct {
	*ranksPlan
	log    func(string)
	fabric *soft.Fabric
	at     int // how many events have begun
	ranks  []*rankSite
}

// rankSite is one rank.
type rankSite struct {
	w     *ranksWorld
	id    int
	gone  bool
	made  int // calls
	dom   *ibverbx.Domain
	tw    *tagged.Worker
	open  []*rankRequest
	peers []*rankPeer
}

// rankPeer is what a rank and one other have sent each other.
type rankPeer struct{ sent, received int }

// rankRequest is a request that is not done, and what must hold when it is.
type rankRequest struct {
	what  string
	req   *tagged.Request
	check func() string
}

// brokenRank is a broken promise: it ends the world.
type brokenRank struct{ rule, detail string }

func (w *ranksWorld) fail(rule, format string, args ...any) {
	panic(brokenRank{rule, fmt.Sprintf(format, args...)})
}

// play plays the world, with the events in keep, or all.
func (p *ranksPlan) play(keep []int, log func(string)) (v *hunt.Violation) {
	w := &ranksWorld{ranksPlan: p, log: log}
	defer func() {
		if r := recover(); r != nil {
			b, ok := r.(brokenRank)
			if !ok {
				b = brokenRank{"no panic", fmt.Sprint(r)}
			}
			v = &hunt.Violation{Seed: p.seed, Event: w.at, Rule: b.rule, Detail: b.detail}
		}
	}()
	w.join()
	if keep == nil {
		for i := range p.events {
			keep = append(keep, i)
		}
	}
	for _, i := range keep {
		w.at = i + 1
		w.event(p.events[i])
	}
	w.finish()
	return nil
}

// join has all ranks join. Nothing moves on the fabric, nothing need: they exchange cards.
func (w *ranksWorld) join() {
	var err error
	w.fabric, err = soft.New(soft.Config{Devices: w.size, Stepped: true, Seed: w.seed})
	w.must("fabric", err)
	rows := [2][][]byte{make([][]byte, w.size), make([][]byte, w.size)}
	var meet [2]sync.WaitGroup
	meet[0].Add(w.size)
	meet[1].Add(w.size)
	errs := make([]error, w.size)
	var all sync.WaitGroup
	for i := range w.size {
		s := &rankSite{w: w, id: i}
		s.dom, err = ibverbx.NewDomain(w.fabric.Device(i))
		w.must("domain", err)
		w.ranks = append(w.ranks, s)
		round := 0
		cfg := tagged.Config{Rank: i, Size: w.size, OnDemand: w.onDemand, EagerLimit: 600,
			Exchange: func(_ context.Context, mine []byte) ([][]byte, error) {
				k := round
				round++
				rows[k][i] = mine
				meet[k].Done()
				meet[k].Wait()
				return rows[k], nil
			}}
		cfg.Transport.BufferSize = 512
		cfg.Transport.QP.Conn.Patience = ibverbx.PatienceShort
		cfg.Transport.QP.Linger = ibverbx.None
		cfg.Transport.Idle = func() { w.step() }
		for range w.size {
			s.peers = append(s.peers, &rankPeer{})
		}
		all.Go(func() { s.tw, errs[i] = tagged.Join(context.Background(), s.dom, cfg) })
	}
	all.Wait()
	w.must("join", errors.Join(errs...))
	for _, dead := range w.gone {
		w.ranks[dead].gone = true
		for _, s := range w.ranks {
			if oneBit(s.id ^ dead) {
				e, err := s.tw.Peer(dead)
				w.must("peer", err)
				w.must("abort", e.Abort())
			}
		}
	}
}

func oneBit(n int) bool { return n != 0 && n&(n-1) == 0 }

func (w *ranksWorld) must(what string, err error) {
	if err != nil {
		w.fail("what may not fail", "%s: %v", what, err)
	}
}

// event makes one event happen.
func (w *ranksWorld) event(e rankEvent) {
	s := w.ranks[e.rank]
	if w.log != nil {
		w.log(fmt.Sprintf("rank %d: event %d, %d", e.rank, e.kind, e.arg))
	}
	switch {
	case e.kind == rankSteps:
		for range 1 + e.arg%12 {
			w.step()
		}
	case s.gone:
	case e.kind == rankProgress:
		s.tw.Progress()
		s.look()
	case e.kind == rankCalls && len(w.gone) == 0 && s.made < len(w.calls):
		s.call(w.calls[s.made])
	case e.kind == rankSends:
		if to := w.ranks[e.arg%len(w.ranks)]; to != s && !to.gone && w.connected(s.id, to.id) {
			s.send(to)
		}
	}
}

// step has one thing happen on the fabric.
func (w *ranksWorld) step() bool {
	a, ok := w.fabric.Step()
	if ok && w.log != nil {
		w.log(a.String())
	}
	return ok
}

// connected reports whether a way leads from one rank to another.
func (w *ranksWorld) connected(from, to int) bool {
	if !w.onDemand {
		return true
	}
	known, next := map[int]bool{from: true}, []int{from}
	for len(next) != 0 {
		at := next[0]
		next = next[1:]
		for _, s := range w.ranks {
			if oneBit(s.id^at) && !s.gone && !known[s.id] {
				known[s.id], next = true, append(next, s.id)
			}
		}
	}
	return known[to]
}

// send sends a message, which its receiver has posted a receive for already.
func (s *rankSite) send(to *rankSite) {
	there := to.peers[s.id]
	s.peers[to.id].sent++
	number := byte(s.peers[to.id].sent)
	buf := make([]byte, 1)
	req, err := to.tw.Recv(uint64(s.id), tagged.Exact, buf)
	s.w.must("recv", err)
	there.received++
	to.open = append(to.open, &rankRequest{fmt.Sprintf("message of rank %d", s.id), req, func() string {
		if buf[0] != number {
			return fmt.Sprintf("got %d, want %d", buf[0], number)
		}
		return ""
	}})
	e, err := s.tw.Peer(to.id)
	s.w.must("peer", err)
	req, err = e.Send(uint64(s.id), []byte{number})
	s.w.must("send", err)
	s.open = append(s.open, &rankRequest{"send", req, nil})
}

// look handles the requests that are done.
func (s *rankSite) look() {
	rest := s.open[:0]
	for _, r := range s.open {
		if !r.req.Done() {
			rest = append(rest, r)
			continue
		}
		if err := r.req.Err(); err != nil {
			s.w.fail("requests succeed", "rank %d: %s: %v", s.id, r.what, err)
		}
		r.req.Free()
		if r.check != nil {
			if wrong := r.check(); wrong != "" {
				s.w.fail("results are right", "rank %d: %s: %s", s.id, r.what, wrong)
			}
		}
	}
	s.open = rest
}

// finish has all ranks make the calls that are left, and everything end.
func (w *ranksWorld) finish() {
	for idle, rounds := 0, 0; idle < 2000 && rounds < 50000; idle++ {
		rounds++
		busy := false
		for _, s := range w.ranks {
			if s.gone {
				continue
			}
			if len(w.gone) == 0 && s.made < len(w.calls) {
				s.call(w.calls[s.made])
			}
			if s.tw.Progress() != 0 {
				idle = 0
			}
			s.look()
			busy = busy || len(s.open) != 0 || len(w.gone) == 0 && s.made < len(w.calls)
		}
		for range 8 {
			if w.step() {
				idle = 0
			}
		}
		if !busy {
			w.close()
			return
		}
	}
	for _, s := range w.ranks {
		for _, r := range s.open {
			w.fail("everything ends", "rank %d: %s does not", s.id, r.what)
		}
	}
	w.fail("everything ends", "a call does not begin")
}

// close closes the ranks: nothing may be left in them.
func (w *ranksWorld) close() {
	for _, s := range w.ranks {
		w.must("close", errors.Join(s.tw.Close(), s.dom.Close()))
		if st := s.tw.Stats(); st.Requests != 0 || st.Unexpected != 0 || st.UnexpectedBytes != 0 {
			w.fail("nothing is left", "rank %d: %d requests, %d messages of %d bytes", s.id, st.Requests,
				st.Unexpected, st.UnexpectedBytes)
		}
	}
	if o := w.fabric.Objects(); o != (soft.Objects{}) {
		w.fail("nothing is left", "%v", o)
	}
}
