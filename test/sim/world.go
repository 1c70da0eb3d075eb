package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// world is virtual CQs and connected virtual queue pairs on a testbed, and the model of their
// behaviour.
type world struct {
	lab.Testbed
	plan  *plan
	cqs   []*vcq
	conns []*conn
	ends  []*end
	wires map[wireAt]*wire

	faults, railFaults []lab.Fault // that the NICs may meet

	building   *end      // the end that is being made; nil if none
	buildingCQ *vcq      // likewise
	pumping    bool      // the library waits: the fabric moves when it polls
	now        time.Time // by the clock of every virtual queue pair
	ticks      *rand.Rand
	lingered   bool // the clock has moved beyond every Linger
	gids       map[verbs.GID]*lab.NIC
	only       *lab.NIC // only its completion queue may be polled; nil for all
}

// conn is a connection.
type conn struct {
	lab.Conn
	w         *world
	plan      *connPlan
	ends      [2]*end
	hostile   bool  // an end breaks the rules: arrivals are not compared with sends
	drainOnly bool  // it may fail only because an end was drained
	raw       bool  // DQPLB carries the user's immediate
	failover  bool  // it continues when a rail dies
	struck    bool  // and one may have died
	stray     bool  // messages that an end has seen fail may arrive late
	session   int   // number of the session: each Connect begins another
	hostileIn []int // the sessions in which an end broke the rules
	replaced  bool  // another one has replaced it
}

// turnHostile records that an end breaks the rules in this session.
func (c *conn) turnHostile(how string) {
	c.because(how)
	c.hostile = true
	c.hostileIn = append(c.hostileIn, c.session)
}

// These are the sizes of a host's memory. Its end is for the receives and messages that end a run.
const (
	arenaSize = 160 << 10
	spareSize = 56 << 10
)

// run plays a plan. It returns the first promise that was broken, or nil.
func (p *plan) run(log func(string)) *hunt.Violation {
	w := &world{plan: p, wires: map[wireAt]*wire{}, ticks: rand.New(rand.NewPCG(p.Seed, 0x7469636b))}
	w.Testbed = lab.Testbed{Plan: &p.Plan, Layout: lab.Layout{Size: arenaSize, Spare: spareSize}, Log: log,
		Hooks: lab.Hooks{CQ: w.tapCQ, QP: w.tapQP}, NewNetwork: p.newNetwork, Net: p.net}
	w.faults, w.railFaults = lab.Faults, lab.RailFaults
	if p.net != nil {
		w.faults, w.railFaults = lab.NetworkFaults, lab.NetworkRailFaults
	}
	return w.Play(func() {
		w.build()
		lab.PlayEvents(&w.Testbed, p.Events, events, &w.ends, func() {
			if w.At%32 == 0 {
				w.Audit()
				for _, e := range w.ends {
					e.gauges()
				}
			}
		})
		w.finish()
	})
}

func (w *world) build() {
	p := w.plan
	w.SeedEvent(p.Seed)
	w.Build()
	w.gids = map[verbs.GID]*lab.NIC{}
	for _, d := range w.NICs {
		for i := range 2 {
			if g, err := d.QueryGID(1, i); err == nil {
				w.gids[g.GID] = d
			}
		}
	}
	for i, h := range p.cqs {
		w.buildCQ(w.Hosts[h], p.direct[i])
	}
	w.LogPlan("the world", p.Plan)
	w.LogPlan("its network", p.net)
	w.Logf("virtual CQs on hosts %v, polled directly %v", p.cqs, p.direct)
	for i := range p.conns {
		c := &p.conns[i]
		w.LogPlan(sprintf("connection %d", i), *c)
		w.LogPlan("  its first end", c.cfg[0])
		w.LogPlan("  its second end", c.cfg[1])
		w.buildConn(i, c)
	}
	for _, c := range w.conns {
		w.connect(c)
	}
}

// buildCQ makes a virtual CQ with just the room that its virtual queue pairs need.
func (w *world) buildCQ(h *lab.Host, direct bool) {
	index, depth := len(w.cqs), 1
	for _, c := range w.plan.conns {
		for i, cq := range c.cqs {
			if cq == index {
				each := c.cfg[i].MaxMsgCntPerQP + max(c.cfg[i].Credits, c.cfg[i].MaxMsgCntPerQP)
				if depth += (c.rails + 1) * each; c.failover[i] {
					depth += 3*each + 40*(c.rails+4) // spares, and the library's own messages
				}
			}
		}
	}
	if w.plan.Mood == lab.Hostile {
		depth += 64 // for a hostile peer's own posts
	}
	c := &vcq{w: w, host: h, name: sprintf("virtual CQ %d", index), direct: direct}
	w.cqs = append(w.cqs, c)
	var err error
	w.buildingCQ = c
	c.cq, err = h.Dom.NewCQ(depth)
	w.buildingCQ = nil
	w.Must("new virtual cq", err)
}

func (w *world) buildConn(i int, p *connPlan) {
	c := &conn{w: w, plan: p}
	c.Name = sprintf("connection %d", i)
	for j := range c.ends {
		cq := w.cqs[p.cqs[j]]
		e := &end{w: w, conn: c, cq: cq, host: cq.host, index: 2*i + j, name: sprintf("%d%c", i, 'a'+j),
			single: p.rails == 1, session: session{stopAt: forever}}
		c.ends[j] = e
		w.ends = append(w.ends, e)
		w.building = e
		var err error
		cfg := p.cfg[j]
		cfg.Failover, cfg.Events.Rail, cfg.Events.Settled = p.failover[j], e.onRail, e.onSettled
		cfg.Testing.Clock = func() time.Time {
			// Each look takes some time, so that the rails differ.
			w.now = w.now.Add(time.Duration(w.ticks.IntN(100_000)))
			return w.now
		}
		if p.byHand[j] == nil {
			e.vq, err = e.host.Dom.NewQP(cq.cq, cfg)
		} else {
			e.vq, err = e.byHand(p.byHand[j], cfg)
		}
		w.Must("new virtual qp "+e.name, err)
		for i, qp := range e.vq.QPs() {
			e.wires[i] = qp.(*wire)
		}
		cq.ends = append(cq.ends, e)
	}
	c.ends[0].peer, c.ends[1].peer = c.ends[1], c.ends[0]
	for _, e := range c.ends {
		w.Logf("%v has rails %v", e, e.wires)
	}
	w.conns = append(w.conns, c)
}

// replace makes another connection in place of one whose ends are both closed: their room in the
// virtual CQs must be free again.
func (w *world) replace(c *conn) {
	for _, e := range c.ends {
		if e.state != closed || e.cq.closed || e.cq.mayDie ||
			slices.ContainsFunc(e.host.NICs, func(d *lab.NIC) bool { return d.Dead != 0 }) {
			return
		}
	}
	if !c.replaced && len(w.conns) < 8 {
		c.replaced = true
		w.buildConn(len(w.conns), c.plan)
		w.connect(w.conns[len(w.conns)-1])
	}
}

// byHand makes a virtual queue pair from queue pairs that the program has created.
func (e *end) byHand(rails []int, cfg ibverbx.Config) (*ibverbx.VirtualQP, error) {
	sends := cfg.MaxMsgCntPerQP
	if cfg.Failover {
		sends += 2 // for the library's own messages
	}
	create := func(d *lab.NIC) verbs.QP {
		at := slices.IndexFunc(e.cq.taps, func(cq *tappedCQ) bool { return cq.NIC == d })
		cq := e.cq.taps[at] // the virtual CQ's own
		qp, err := d.PD.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{
			MaxSendWR: sends, MaxRecvWR: max(cfg.Credits, cfg.MaxMsgCntPerQP),
			MaxSendSGE: cfg.MaxSGE, MaxInline: cfg.MaxInline,
		}})
		e.w.Must("create qp", err)
		return qp
	}
	var qps []verbs.QP
	for _, n := range rails {
		qps = append(qps, create(e.host.NICs[n]))
	}
	var notify verbs.QP
	if len(qps) != 1 && !cfg.NoNotifyQP {
		notify = create(e.host.NICs[e.w.Rng.IntN(len(e.host.NICs))])
	}
	return ibverbx.NewVirtualQP(e.cq.cq, qps, notify, cfg)
}

// pump moves the fabric while the library waits. It performs many actions at once, because the
// library gives up on a NIC after some polls in vain.
func (w *world) pump() { w.RunFabric(64) }

// waiting makes a call that waits: the fabric moves whenever the library polls.
func (w *world) waiting(call func() error) error {
	w.pumping = true
	err := call()
	w.pumping = false
	return err
}

// These are the promises of a virtual queue pair, besides those of package lab.
const (
	ruleOneForOne    lab.Rule = "one completion for each request, and none for a refused one"
	ruleOrder        lab.Rule = "completions come in posting order"
	ruleNotification lab.Rule = "when a notification is reported, all earlier writes are in memory"
	ruleFirstError   lab.Rule = "the first error is kept, and no later request posts anything"
	ruleRouting      lab.Rule = "a completion belongs to the request that its work-request id names"
	ruleBackpressure lab.Rule = "a physical queue is never overrun"
	ruleWire         lab.Rule = "the wire format"
	ruleFence        lab.Rule = "a fence waits for earlier data"
	ruleCounters     lab.Rule = "counters add up"
	ruleRepeat       lab.Rule = "what goes out again is lost for certain, and was not reported"
	ruleTrace        lab.Rule = "the trace has each step of a request, in order"
	ruleNoticed      lab.Rule = "what is broken is noticed"
)
