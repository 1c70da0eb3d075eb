package sendside

import (
	"context"
	"errors"
	"fmt"
	"iter"
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

// ranksWorld is the ranks, and what they have begun.
type ranksWorld struct {
	*ranksPlan
	log    func(string)
	fabric *soft.Fabric
	at     int // how many events have begun
	ranks  []*rankSite
	inCall *rankSite // the rank whose program runs as a coroutine now
}

// rankSite is one rank.
type rankSite struct {
	w     *ranksWorld
	id    int
	gone  bool
	dom   *ibverbx.Domain
	tw    *tagged.Worker
	open  []*rankRequest
	sent  []int // to each rank
	teams [rankTeams]*rankTeam
	any   *tagged.Request // receives no message of a team

	resume func() (struct{}, bool) // lets the program that makes the teams run; nil once it has ended
	stop   func()
	yield  func(struct{}) bool
}

// rankTeam is a team of a rank.
type rankTeam struct {
	kind    int
	team    *tagged.Team
	members []int
	made    int // calls
	open    int // requests that are not done
}

// rankRequest is a request that is not done, and what must hold when it is.
type rankRequest struct {
	what  string
	req   *tagged.Request
	in    *rankTeam
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
		for _, s := range w.ranks {
			if s.resume != nil {
				s.stop()
			}
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
		cfg.Transport.Idle = func() {
			if p := w.inCall; p == nil {
				w.step()
			} else if !p.yield(struct{}{}) {
				panic(abandoned{})
			}
		}
		s.sent = make([]int, w.size)
		all.Go(func() { s.tw, errs[i] = tagged.Join(context.Background(), s.dom, cfg) })
	}
	all.Wait()
	w.must("join", errors.Join(errs...))
	for _, s := range w.ranks {
		if w.colors != nil {
			s.makeTeams()
		} else {
			s.teams[rankWorld] = newRankTeam(rankWorld, s.tw.World(), s.tw.World())
		}
	}
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
		s.progress()
	case e.kind == rankCalls && len(w.gone) == 0:
		if in := s.teams[e.arg%rankTeams]; in != nil && in.made < len(w.calls[in.kind]) {
			s.call(in)
		}
	case e.kind == rankSends:
		if to := w.ranks[e.arg%len(w.ranks)]; to != s && !to.gone && w.connected(s.id, to.id) {
			s.send(to, e.arg>>8%rankTeams, e.arg>>16%8 == 0)
		}
	}
}

// newRankTeam describes a team that a rank is in.
func newRankTeam(kind int, team, world *tagged.Team) *rankTeam {
	if team == nil {
		return nil
	}
	in := &rankTeam{kind: kind, team: team}
	for rank := range team.Size() {
		in.members = append(in.members, team.Translate(rank, world))
	}
	return in
}

// makeTeams begins the program that makes the teams of a rank. What makes a team is a call of the
// one that it is of, which other calls begin in only later: they have one order.
func (s *rankSite) makeTeams() {
	var err error
	s.any, err = s.tw.Recv(0, tagged.Any, nil)
	s.w.must("recv", err)
	s.resume, s.stop = iter.Pull(func(yield func(struct{}) bool) {
		s.yield = yield
		defer func() {
			if r := recover(); r != nil && r != (abandoned{}) {
				panic(r)
			}
		}()
		ctx, world := context.Background(), s.tw.World()
		split, err := world.Split(ctx, s.w.colors[s.id], -(s.id % 2))
		s.w.must("split", err)
		if split != nil {
			dup, err := split.Dup(ctx)
			s.w.must("dup", err)
			s.teams[rankSplit] = newRankTeam(rankSplit, split, world)
			want := s.w.colored(s.w.colors[s.id])
			if got := s.teams[rankSplit].members; !slices.Equal(got, want) {
				s.w.fail("teams have their members", "rank %d: %v, want %v", s.id, got, want)
			}
			s.teams[rankDup] = newRankTeam(rankDup, dup, world)
		}
		all, err := world.Dup(ctx)
		s.w.must("dup", err)
		s.teams[rankWorld] = newRankTeam(rankWorld, world, world)
		if last := s.w.size - 1; s.id != last {
			less, err := all.Shrink(ctx, last)
			s.w.must("shrink", err)
			s.teams[rankLess] = newRankTeam(rankLess, less, world)
		}
		s.w.must("close", all.Close())
	})
}

// colored returns the ranks of a color, the odd ones first, as their keys say.
func (p *ranksPlan) colored(color int) (ranks []int) {
	for _, odd := range []int{1, 0} {
		for rank, c := range p.colors {
			if c == color && rank%2 == odd {
				ranks = append(ranks, rank)
			}
		}
	}
	return ranks
}

// progress makes progress at a rank, in the call that its program waits in if there is one.
func (s *rankSite) progress() (busy bool) {
	if s.resume != nil {
		s.w.inCall = s
		_, more := s.resume()
		if s.w.inCall = nil; !more {
			s.resume = nil
		}
	}
	busy = s.tw.Progress() != 0
	s.look()
	return busy
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

// send sends a message in a team, for which its receiver has posted a receive already if it has the
// team; or one that nobody receives, which is dropped when the team is closed.
func (s *rankSite) send(to *rankSite, kind int, inVain bool) {
	in := s.teams[kind]
	if in == nil || !slices.Contains(in.members, to.id) {
		return
	}
	s.sent[to.id]++
	number := byte(s.sent[to.id])
	tag := in.team.Tag(uint32(s.id))
	if s.w.colors == nil {
		tag = uint64(s.id)
	}
	there := to.teams[kind]
	switch {
	case inVain && kind != rankWorld:
		tag += 1000
	case there == nil:
		return // it is about to have the team
	default:
		buf := make([]byte, 1)
		req, err := to.tw.Recv(tag, tagged.Exact, buf)
		s.w.must("recv", err)
		there.open++
		what := fmt.Sprintf("message of rank %d", s.id)
		to.open = append(to.open, &rankRequest{what, req, there, func() string {
			if buf[0] != number {
				return fmt.Sprintf("got %d, want %d", buf[0], number)
			}
			return ""
		}})
	}
	e, err := in.team.Peer(slices.Index(in.members, to.id))
	s.w.must("peer", err)
	req, err := e.Send(tag, []byte{number})
	s.w.must("send", err)
	in.open++
	s.open = append(s.open, &rankRequest{"send", req, in, nil})
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
		r.in.open--
		if r.check != nil {
			if wrong := r.check(); wrong != "" {
				s.w.fail("results are right", "rank %d: %s: %s", s.id, r.what, wrong)
			}
		}
	}
	s.open = rest
	if s.any != nil && s.any.Done() {
		s.w.fail("teams are apart", "rank %d: a receive of no team has %v: %v", s.id, s.any.Info(),
			s.any.Err())
	}
}

// finish makes the next call of each team, and closes those that have made all. It reports whether
// any is left.
func (s *rankSite) finish() (left bool) {
	for kind, in := range s.teams {
		switch {
		case in == nil:
		case in.made < len(s.w.calls[kind]):
			s.call(in)
			left = true
		case in.open != 0:
			left = true
		case kind != rankWorld:
			s.w.must("close", in.team.Close())
			s.teams[kind] = nil
		}
	}
	return left
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
			if s.progress() {
				idle = 0
			}
			left := len(w.gone) == 0 && s.finish()
			busy = busy || left || len(s.open) != 0 || s.resume != nil
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
	for idle := 0; idle < 30 && w.colors != nil; idle++ { // what was sent in vain arrives, and is dropped
		for _, s := range w.ranks {
			if s.tw.Progress() != 0 {
				idle = 0
			}
		}
		if w.step() {
			idle = 0
		}
	}
	for _, s := range w.ranks {
		if n := s.tw.Stats().Unexpected; w.colors != nil && n != 0 {
			w.fail("nothing is left", "rank %d: %d messages of closed teams", s.id, n)
		}
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
