package sendside

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"ibverbx/tagged"
)

// ranksPlan describes a world of ranks and its events.
type ranksPlan struct {
	seed     uint64
	size     int // ranks
	onDemand bool
	gone     []int // ranks that fail before all else; then there are no collective calls, and no teams
	colors   []int // of the ranks, if they make teams
	calls    [rankTeams][]rankCall
	events   []rankEvent
}

// rankCall is a call that all ranks of a team make.
type rankCall struct{ kind, n, root int }

// The teams of a rank.
const (
	rankWorld = iota
	rankSplit // of the world, by colors
	rankDup   // of that
	rankLess  // of all ranks but the last
	rankTeams
)

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
	if rng.IntN(2) == 0 && p.gone == nil {
		for range p.size {
			p.colors = append(p.colors, []int{0, 0, 0, 0, 1, -1}[rng.IntN(6)])
		}
	}
	alike := rng.IntN(2) == 0
	for kind := range p.calls {
		if kind != 0 && alike { // all teams make the same calls
			p.calls[kind] = p.calls[0]
			continue
		}
		for range 2 + rng.IntN(10) {
			p.calls[kind] = append(p.calls[kind], rankCall{rng.IntN(rankCallKinds),
				[]int{0, 1, 5, 40, 700}[rng.IntN(5)], rng.IntN(p.size)})
		}
	}
	for range 60 + rng.IntN(200) {
		kind := []int{rankSteps, rankSteps, rankProgress, rankProgress, rankCalls, rankSends}[rng.IntN(6)]
		p.events = append(p.events, rankEvent{kind, rng.IntN(p.size), rng.IntN(1 << 20)})
	}
	return p
}

// rankCallKinds is how many kinds of calls there are.
const rankCallKinds = 10

// rankValue is element i of what a rank passes.
func rankValue(rank, i int) int64 { return int64(rank*7919+i*13) % 1009 }

func rankVector(rank, n int) []int64 {
	v := make([]int64, n)
	for i := range v {
		v[i] = rankValue(rank, i)
	}
	return v
}

// rankSum is element i of the sum of some ranks.
func rankSum(ranks []int, i int) (sum int64) {
	for _, rank := range ranks {
		sum += rankValue(rank, i)
	}
	return sum
}

// call starts the next collective call of a rank in a team.
func (s *rankSite) call(in *rankTeam) {
	c, g, all := s.w.calls[in.kind][in.made], in.team, len(in.members)
	n, me, root := c.n, in.team.Rank(), c.root%all
	var dst []int64
	var want func(i int) int64
	var req *tagged.Request
	var err error
	src := func() []int64 { return rankVector(s.id, n) }
	sum := func(i int) int64 { return rankSum(in.members, i) }
	what := [rankCallKinds]string{"barrier", "broadcast", "reduce", "all-reduce", "reduce-scatter", "scan",
		"gather", "all-gather v", "all-to-all", "all-reduce by a function"}[c.kind]
	atRoot := me == root
	switch c.kind {
	case 0:
		req, err = g.StartBarrier()
	case 1:
		dst, want = src(), func(i int) int64 { return rankValue(in.members[root], i) }
		req, err = tagged.StartBroadcast(g, dst, root)
	case 2:
		dst, want = make([]int64, n), func(int) int64 { return 0 }
		if atRoot {
			want = sum
		}
		req, err = tagged.StartReduce(g, dst, src(), tagged.OpSum, root)
	case 3:
		dst, want = src(), sum
		req, err = tagged.StartAllReduce(g, dst, dst, tagged.OpSum)
	case 4:
		dst, want = make([]int64, n), func(i int) int64 { return rankSum(in.members, me*n+i) }
		req, err = tagged.StartReduceScatter(g, dst, rankVector(s.id, n*all), tagged.OpSum)
	case 5:
		dst, want = make([]int64, n), func(i int) int64 { return rankSum(in.members[:me+1], i) }
		req, err = tagged.StartScan(g, dst, src(), tagged.OpSum)
	case 6:
		if atRoot {
			dst, want = make([]int64, n*all), func(i int) int64 { return rankValue(in.members[i/n], i%n) }
		}
		req, err = tagged.StartGather(g, dst, src(), root)
	case 7:
		counts := make([]int, all)
		total := 0
		for i := range counts {
			counts[i] = n * (i % 3)
			total += counts[i]
		}
		dst, want = make([]int64, total), func(i int) int64 {
			rank := 0
			for ; i >= counts[rank]; rank++ {
				i -= counts[rank]
			}
			return rankValue(in.members[rank], i)
		}
		req, err = tagged.StartAllGatherV(g, dst, counts, rankVector(s.id, counts[me]))
	case 8:
		dst, want = make([]int64, n*all), func(i int) int64 { return rankValue(in.members[i/n], me*n+i%n) }
		req, err = tagged.StartAllToAll(g, dst, rankVector(s.id, n*all))
	default:
		dst, want = src(), func(i int) int64 { return rankValue(in.members[0], i) }
		req, err = tagged.StartAllReduceFunc(g, dst, dst, func(a, _ int64) int64 { return a })
	}
	if errors.Is(err, tagged.ErrBusy) {
		return // as many as can be are under way
	}
	s.w.must(what, err)
	in.made++
	in.open++
	what = fmt.Sprintf("%s of %d, call %d of the %v", what, n, in.made, in.team)
	s.open = append(s.open, &rankRequest{what, req, in, func() string {
		for i, v := range dst {
			if v != want(i) {
				return fmt.Sprintf("element %d is %d, want %d", i, v, want(i))
			}
		}
		return ""
	}})
}
