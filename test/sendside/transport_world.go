package sendside

import (
	"encoding/json"

	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// transportWorld is workers and endpoints, and the model of what they must do.
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

// amIDs is how many handlers each worker has.
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

// progress has the worker make one round of progress.
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

// checkHanded checks that requests which ran during a purge, and wanted to stay, were handed back.
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

// renew makes another connection in place of one whose ends are both closed: what they used must be
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
