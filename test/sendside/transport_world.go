package sendside

import (
	"encoding/json"
	"math/rand/v2"

	"ibverbx"
	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// Transport is the game of endpoints.
var Transport = lab.Game("TestTransport", "./test/sendside", newTransportPlan, (*transportPlan).run)

// transportPlan describes a world of endpoints and its events.
type transportPlan struct {
	bedPlan
	lab.Schedule[lab.Event]
	configs []transport.Config // of each host's worker
}

// transportEvents are the events of endpoints, and how often they happen in calm and in faulty
// worlds. The fuzz tests of the package play peers that break the rules.
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

// transportWorld is workers and endpoints, and the model of their behaviour.
type transportWorld struct {
	testbed
	plan      *transportPlan
	sites     []*site
	ends      []*end // all that were ever made
	pairs     []*pair
	groups    []*group // completions that have not fired
	kept      []*keptMessage
	calling   int  // calls of the library that are under way, other than progress
	callback  bool // a callback runs
	round     bool // the progress under way is exactly one round
	delivered bool // a completion or message was delivered in this round
}

// site is a host's worker.
type site struct {
	*lab.Host
	w      *transportWorld
	worker *transport.Worker
	ends   []*end // all that were ever made
	cfg    transport.Config
	adds   []*op             // atomic additions that have ended
	chains [swapsSlots]chain // words that are compared and swapped
}

// pair is a connection.
type pair struct {
	*link
	ends    [2]*end
	renewed bool
}

func (p *transportPlan) run(log func(string)) *hunt.Violation {
	w := &transportWorld{plan: p}
	return w.play(&p.bedPlan, log, w.moved, func() {
		w.open()
		lab.PlayEvents(&w.Testbed, p.Events, transportEvents, &w.ends, func() {
			w.checkHanded()
			if w.At%16 == 0 {
				w.auditAll()
			}
		})
		w.finish()
	})
}

// open makes the workers and their connections.
func (w *transportWorld) open() {
	for i, h := range w.Hosts {
		cfg := w.plan.configs[i]
		w.LogPlan(h.Name, cfg)
		cfg.Idle = w.idle
		s := &site{Host: h, w: w, cfg: cfg}
		var err error
		s.worker, err = transport.NewWorker(h.Dom, cfg)
		w.Must("new worker", err)
		for id := range amIDs {
			w.Must("handle", s.worker.Handle(transport.AMID(id), s.handle))
		}
		w.sites = append(w.sites, s)
	}
	for _, hosts := range w.plan.pairs {
		w.connect(hosts)
	}
}

// amIDs is the number of handlers of each worker.
const amIDs = 3

// connect makes a connection between two hosts.
func (w *transportWorld) connect(hosts [2]int) {
	c := &pair{link: w.link(sprintf("connection %d", len(w.pairs)), w.Hosts[hosts[0]], w.Hosts[hosts[1]])}
	w.pairs = append(w.pairs, c)
	c.ends[0] = w.newEnd(c, w.sites[hosts[0]], 'a')
	c.ends[1] = w.newEnd(c, w.sites[hosts[1]], 'b')
	c.ends[0].peer, c.ends[1].peer = c.ends[1], c.ends[0]
	c.ends[0].other, c.ends[1].other = &c.ends[1].fate, &c.ends[0].fate
	for i, e := range c.ends {
		card, err := c.ends[1-i].ep.Card()
		w.Must("card", err)
		if w.OneIn(4) {
			text, err := json.Marshal(card)
			w.Must("marshal card", err)
			card = transport.Card{}
			w.Must("unmarshal card", json.Unmarshal(text, &card))
		}
		e.card = card
		e.flushAt = card.Flush.Addr()
		err = e.ep.Connect(card)
		if err != nil && c.Blame == "" {
			w.Broken(lab.Isolation, "%v: connect: %v", e, err)
		}
		early := 0
		for _, q := range e.wires {
			early += q.early
		}
		if want := e.site.cfg.AMBuffers + 3; err == nil && early != want {
			w.Broken(ruleCredits, "%v: %d of %d receives are there before a message can arrive", e, early,
				want)
		}
		e.connected = err == nil
		e.dead = err != nil
	}
}

func (w *transportWorld) progress(h *lab.Host) int { return w.sites[h.Index].progress() }

// progress makes one round of progress of the worker.
func (s *site) progress() int {
	w := s.w
	w.inside, w.round, w.delivered = s.Host, true, false
	for _, e := range s.ends {
		e.turnedAway = false
	}
	n := s.worker.Progress()
	w.inside, w.round = nil, false
	if w.delivered && n == 0 {
		w.Broken(rulePlace, "a callback ran, and progress says that it has done nothing")
	}
	w.checkHanded()
	return n
}

// checkHanded checks that requests that ran during a purge and wanted to stay were handed back.
func (w *transportWorld) checkHanded() {
	for _, e := range w.ends {
		if e.handing != nil {
			w.Broken(rulePurge, "%v: a request that ran during a purge was not handed back", e)
		}
	}
}

// enter begins a callback of a worker.
func (w *transportWorld) enter(s *site, what string) {
	switch {
	case w.inside != s.Host:
		w.Broken(rulePlace, "%s outside of its worker's progress", what)
	case w.calling != 0:
		w.Broken(rulePlace, "%s inside of a call", what)
	case w.callback:
		w.Broken(rulePlace, "%s inside of another callback", what)
	}
	w.callback = true
	w.Logf("  %s", what)
	if w.OneIn(16) {
		if n := s.worker.Progress(); n != 0 {
			w.Broken(rulePlace, "progress inside of a callback did %d things", n)
		}
	}
}

func (w *transportWorld) leave() { w.callback = false }

// renew replaces a connection whose ends are both closed with another one: their resources must be
// free again. No fault may have struck the hosts.
func (w *transportWorld) renew(c *pair) {
	for _, e := range c.ends {
		if !e.released {
			return
		}
	}
	if c.renewed || len(w.pairs) >= 8 || len(w.Strikes) != 0 || c.hosts[0].Struck || c.hosts[1].Struck {
		return
	}
	c.renewed = true
	w.connect([2]int{c.hosts[0].Index, c.hosts[1].Index})
}

// moved checks, after every action of the fabric, that fences hold.
func (w *transportWorld) moved(a soft.Action) {
	if a.Kind != soft.Execute {
		return
	}
	for _, e := range w.ends {
		if e.fenced {
			e.checkFence()
		}
	}
}

// auditAll checks all memory.
func (w *transportWorld) auditAll() {
	for _, e := range w.ends {
		for _, o := range e.ops[e.ended:] {
			o.checkPartly()
		}
	}
	w.Audit()
}
