package sendside

import (
	"math/rand/v2"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// Transport is the game of endpoints.
var Transport = lab.Game("TestTransport", "./test/sendside", newTransportPlan, (*transportPlan).run)

// transportPlan is what a world of endpoints is made of and what happens in it.
type transportPlan struct {
	bedPlan
	lab.Schedule[lab.Event]
	configs []transport.Config // of each host's worker
}

// transportEvents are what happens to endpoints, and how often in worlds that are calm and faulty.
// Peers that break the rules are left to the fuzz tests of the package.
var transportEvents = []lab.Kind[*end]{
	{Name: "step", Often: []int{400, 400}, Do: func(e *end) { e.w.Steps(1 + e.w.Rng.IntN(8)) }},
	{Name: "progress", Often: []int{240, 240}, Do: func(e *end) { e.site.progress() }},
	{Name: "op", Often: []int{200, 200}, Do: func(e *end) {
		for range e.w.Pick(1, 1, 2, 4) {
			e.act(plain)
		}
	}},
	{Name: "burst", Often: []int{20, 20}, Do: func(e *end) { // until one returns ErrNoResource
		for i := 0; i < 20 && e.act(plain) == nil; i++ {
		}
	}},
	{Name: "pending", Often: []int{60, 60}, Do: (*end).sendOrQueue},
	{Name: "notify ready", Often: []int{30, 30}, Do: func(e *end) { e.act(notifying) }},
	{Name: "fence", Often: []int{30, 30}, Do: (*end).fence},
	{Name: "flush", Often: []int{20, 20}, Do: func(e *end) {
		if e.connected {
			_ = e.try(e.newFlush(), e.ep, plain)
		}
	}},
	{Name: "wait", Often: []int{12, 12}, Do: (*end).waitFlush},
	{Name: "resume", Often: []int{60, 60}, Do: func(e *end) { e.w.resumeOne() }},
	{Name: "cancel", Often: []int{3, 3}, Do: func(e *end) { e.w.cancelOne() }},
	{Name: "release", Often: []int{40, 40}, Do: func(e *end) { e.w.release() }},
	{Name: "count", Often: []int{30, 30}, Do: func(e *end) { e.w.countShared() }},
	{Name: "purge", Often: []int{4, 4}, Do: (*end).purge},
	{Name: "misuse", Often: []int{15, 8}, Do: (*end).misuse},
	{Name: "look", Often: []int{15, 10}, Do: (*end).look},
	{Name: "slow", Often: []int{8, 6}, Do: func(e *end) { e.w.strike(e.pair.link, true) }},
	{Name: "strike", Often: []int{0, 10}, Do: func(e *end) { e.w.strike(e.pair.link, false) }},
	{Name: "heal", Often: []int{12, 14}, Do: func(e *end) { e.w.Heal() }},
	{Name: "abort", Often: []int{1, 6}, Do: (*end).abort},
	{Name: "close", Often: []int{2, 5}, Do: (*end).close},
	{Name: "renew", Often: []int{10, 15}, Do: func(e *end) { e.w.renew(e.pair) }},
}

func newTransportPlan(seed uint64) *transportPlan {
	rng := rand.New(rand.NewPCG(seed, 0x73656e64))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &transportPlan{bedPlan: newBedPlan(rng, seed)}
	qp := p.qpConfig(rng)
	p.drawPairs(rng, 1+pick(0, 1, 1, 2, 3))
	for h := range p.Hosts {
		cfg := p.workerConfig(rng, qp, h)
		cfg.MaxEndpoints = 2 + p.endsOf(h) // two for connections that are renewed
		p.configs = append(p.configs, cfg)
	}
	p.Events = lab.DrawEvents(rng, transportEvents, int(p.Mood), 60, 150, 400)
	return p
}

// workerConfig draws the configuration of a host's worker, with small limits.
func (p *bedPlan) workerConfig(rng *rand.Rand, qp ibverbx.Config, host int) transport.Config {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	cfg := transport.Config{
		QP: qp, AMBuffers: pick(1, 1, 2, 3, 4, 8), BounceBuffers: pick(1, 1, 2, 3, 8),
		MaxOutstanding: pick(1, 2, 3, 4, 8), BufferSize: pick(256, 300, 512),
	}
	cfg.QP.QPsPerDevice = p.rails / p.Hosts[host]
	cfg.QP.MaxInline = pick(16, 64, 128)
	cfg.QP.MaxSGE = pick(2, 3, 5)
	cfg.QP.Credits = pick(1, 2)
	if rng.IntN(3) == 0 {
		cfg.QP.MaxMsgCntPerQP = cfg.AMBuffers + pick(3, 4, 6)
	}
	return cfg
}
