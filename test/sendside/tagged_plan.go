package sendside

import (
	"math/rand/v2"

	"ibverbx/tagged"
	"ibverbx/test/internal/lab"
)

// Tagged is the game of messages with tags.
var Tagged = lab.Game("TestTagged", "./test/sendside", newTaggedPlan, (*taggedPlan).run)

// taggedPlan is what a world of messages is made of and what happens in it.
type taggedPlan struct {
	bedPlan
	lab.Schedule[lab.Event]
	configs []tagged.Config
}

// taggedEvents are what happens to endpoints, and how often in worlds that are calm and faulty.
// Peers that break the rules are left to the fuzz tests of the package.
var taggedEvents = []lab.Kind[*tagEnd]{
	{Name: "step", Often: []int{400, 400}, Do: func(e *tagEnd) { e.w.Steps(1 + e.w.Rng.IntN(8)) }},
	{Name: "progress", Often: []int{260, 260}, Do: func(e *tagEnd) { e.w.progress(e.home) }},
	{Name: "send", Often: []int{160, 160}, Do: func(e *tagEnd) { times(e.w.Pick(1, 1, 2, 3), e.send) }},
	{Name: "burst", Often: []int{8, 8}, Do: func(e *tagEnd) { times(12, e.send) }},
	{Name: "recv", Often: []int{150, 150}, Do: func(e *tagEnd) { times(e.w.Pick(1, 1, 2, 3), e.recv) }},
	{Name: "probe", Often: []int{20, 20}, Do: func(e *tagEnd) { e.site.probe() }},
	{Name: "wait", Often: []int{25, 25}, Do: (*tagEnd).wait}, // in a send, a receive, or for a request
	{Name: "resume", Often: []int{60, 60}, Do: func(e *tagEnd) { e.w.resumeOne() }},
	{Name: "cancel context", Often: []int{6, 6}, Do: func(e *tagEnd) { e.w.cancelOne() }},
	{Name: "cancel", Often: []int{20, 20}, Do: (*tagEnd).cancel},
	{Name: "register", Often: []int{6, 6}, Do: func(e *tagEnd) { e.site.register() }},
	{Name: "look", Often: []int{10, 10}, Do: (*tagEnd).look},
	{Name: "slow", Often: []int{8, 8}, Do: func(e *tagEnd) { e.w.strike(e.link, true) }},
	{Name: "strike", Often: []int{0, 9}, Do: func(e *tagEnd) { e.w.strike(e.link, false) }},
	{Name: "heal", Often: []int{12, 14}, Do: func(e *tagEnd) { e.w.Heal() }},
	{Name: "abort", Often: []int{1, 4}, Do: (*tagEnd).abort},
	{Name: "close", Often: []int{2, 4}, Do: (*tagEnd).close},
}

func times(n int, do func()) {
	for range n {
		do()
	}
}

func newTaggedPlan(seed uint64) *taggedPlan {
	rng := rand.New(rand.NewPCG(seed, 0x746167))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &taggedPlan{bedPlan: newBedPlan(rng, seed)}
	qp := p.qpConfig(rng)
	p.drawPairs(rng, 1+pick(0, 0, 1, 2, 3))
	for h := range p.Hosts {
		cfg := tagged.Config{
			Transport: p.workerConfig(rng, qp, h), EagerLimit: pick(-1, 30, 150, 500, 1200),
			Chunk: pick(40, 200, 0), Window: pick(1, 2, 0),
			MaxUnexpected: pick(1, 2, 4, 16), MaxLeftover: pick(-1, 0, 3), MaxRequests: pick(1, 0),
		}
		cfg.Transport.MaxEndpoints = 1 + p.endsOf(h)
		cfg.Transport.BufferSize = pick(450, 512, 700)
		p.configs = append(p.configs, cfg)
	}
	p.Events = lab.DrawEvents(rng, taggedEvents, int(p.Mood), 60, 150, 400)
	return p
}
