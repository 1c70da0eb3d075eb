package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// world is hosts with NICs, virtual CQs and connected virtual queue pairs on a stepped fabric, and
// the model of what they must do.
type world struct {
	plan       *plan
	fabric     *soft.Fabric
	nics       []*nic
	hosts      []*host
	cqs        []*vcq
	conns      []*conn
	ends       []*end
	building   *end // whose queue pairs are being created
	buildingCQ *vcq // likewise

	pcg     rand.PCG
	rng     *rand.Rand // of the event under way
	at      int        // events begun
	log     func(string)
	actions []soft.Action
	moves   int  // of the fabric
	pumping bool // the library waits: let the fabric move when it polls
	only    *nic // the one that is polled alone
	active  []*strike
}

// host is some NICs, a domain over them, and memory.
type host struct {
	memory *memory
	w      *world
	name   string
	nics   []*nic
	dom    *ibverbx.Domain
	mr     *ibverbx.MR
	remote ibverbx.RemoteMR // as the peers know it
	base   uint64           // address of the memory
}

// conn is a connection.
type conn struct {
	plan      *connPlan
	ends      [2]*end
	blame     string // why it may fail; "" when it may not
	lied      bool   // an end breaks the rules, so what arrives means nothing
	cardLied  bool   // so what a card said is not known to the model
	drainOnly bool   // it may fail because an end was drained, and for nothing else
	raw       bool   // the user's immediate travels in DQPLB
	life      int
	lies      []int // the lives in which an end lied
	replaced  bool  // it was made anew
}

// lie notes that an end breaks the rules in this life.
func (c *conn) lie(how string) {
	c.because(how)
	c.lied = true
	c.lies = append(c.lies, c.life)
}

func (w *world) logf(format string, args ...any) {
	if w.log != nil {
		w.log(fmt.Sprintf(format, args...))
	}
}

// seedEvent makes all choices from here on follow from r.
func (w *world) seedEvent(r uint64) { w.pcg.Seed(r, w.plan.seed) }

func (w *world) pick(of ...int) int { return of[w.rng.IntN(len(of))] }

// run plays a plan. It returns the first promise that was broken, or nil.
func (p *plan) run(log func(string)) (v *Violation) {
	w := &world{plan: p, log: log}
	w.rng = rand.New(&w.pcg)
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if v, ok = r.(*Violation); !ok {
				v = &Violation{Seed: p.seed, Event: w.at, Rule: string(rulePanic),
					Detail: fmt.Sprintf("%v\n%s", r, debug.Stack())}
			}
			w.logf("broken: %s: %s", v.Rule, v.Detail)
		}
	}()
	w.build()
	for _, ev := range p.events {
		w.at++
		w.seedEvent(ev.R)
		w.happen(ev)
		if w.at%32 == 0 {
			w.audit()
			for _, e := range w.ends {
				e.gauges()
			}
		}
	}
	w.seedEvent(p.seed)
	w.finish()
	return nil
}

func (w *world) build() {
	p := w.plan
	w.seedEvent(p.seed)
	var err error
	w.fabric, err = soft.New(soft.Config{Devices: p.nics, Stepped: true, Seed: p.seed, Scramble: p.scramble})
	w.must("new fabric", err)
	for i := range p.nics {
		w.nics = append(w.nics, &nic{Device: w.fabric.Device(i), w: w, wires: map[uint32]*wire{}})
	}
	for i, list := range p.hosts {
		w.buildHost(i, list)
	}
	for i, h := range p.cqs {
		w.buildCQ(w.hosts[h], p.direct[i])
	}
	w.logf("%v", p)
	for i := range p.conns {
		w.buildConn(i, &p.conns[i])
	}
	for _, c := range w.conns {
		w.connect(c)
	}
}

func (w *world) buildHost(i int, nics []int) {
	h := &host{memory: newMemory(), w: w, name: sprintf("host %d", i)}
	var devs []verbs.Device
	for _, n := range nics {
		h.nics = append(h.nics, w.nics[n])
		devs = append(devs, w.nics[n])
	}
	var err error
	h.dom, err = ibverbx.NewDomain(devs...)
	w.must("new domain", err)
	h.mr, err = h.dom.Register(h.memory.arena[:], verbs.AccessAll)
	w.must("register", err)
	text, err := json.Marshal(h.mr.Remote())
	w.must("marshal memory", err)
	w.must("unmarshal memory", json.Unmarshal(text, &h.remote))
	h.base = h.mr.Addr()
	w.hosts = append(w.hosts, h)
}

// buildCQ makes a virtual CQ with just the room that its virtual queue pairs need.
func (w *world) buildCQ(h *host, direct bool) {
	index, depth := len(w.cqs), 1
	for _, c := range w.plan.conns {
		for i, cq := range c.cqs {
			if cq == index {
				depth += (c.rails + 1) * (c.cfg[i].MaxMsgCntPerQP +
					max(c.cfg[i].Credits, c.cfg[i].MaxMsgCntPerQP))
			}
		}
	}
	if w.plan.mood == hostile {
		depth += 64 // for what an invader posts by itself
	}
	c := &vcq{w: w, host: h, name: sprintf("virtual CQ %d", index), direct: direct}
	w.cqs = append(w.cqs, c)
	var err error
	w.buildingCQ = c
	c.cq, err = h.dom.NewCQ(depth)
	w.buildingCQ = nil
	w.must("new virtual cq", err)
}

func (w *world) buildConn(i int, p *connPlan) {
	c := &conn{plan: p}
	for j := range c.ends {
		cq := w.cqs[p.cqs[j]]
		e := &end{w: w, conn: c, cq: cq, host: cq.host, index: 2*i + j, name: sprintf("%d%c", i, 'a'+j),
			single: p.rails == 1, stop: forever}
		c.ends[j] = e
		w.ends = append(w.ends, e)
		w.building = e
		var err error
		if p.byHand[j] == nil {
			e.vq, err = e.host.dom.NewQP(cq.cq, p.cfg[j])
		} else {
			e.vq, err = e.byHand(p.byHand[j], p.cfg[j])
		}
		w.must("new virtual qp "+e.name, err)
		cq.ends = append(cq.ends, e)
	}
	c.ends[0].peer, c.ends[1].peer = c.ends[1], c.ends[0]
	for _, e := range c.ends {
		w.logf("%v has rails %v", e, e.wires)
	}
	w.conns = append(w.conns, c)
}

// replace makes a connection anew whose both ends were closed: the room that they had must be free
// again.
func (w *world) replace(c *conn) {
	for _, e := range c.ends {
		if e.state != closed || e.cq.closed || e.cq.mayDie ||
			slices.ContainsFunc(e.host.nics, func(d *nic) bool { return d.dead != 0 }) {
			return
		}
	}
	if !c.replaced && len(w.conns) < 8 {
		c.replaced = true
		w.buildConn(len(w.conns), c.plan)
		w.connect(w.conns[len(w.conns)-1])
	}
}

// byHand makes a virtual queue pair of queue pairs that the program has created.
func (e *end) byHand(rails []int, cfg ibverbx.Config) (*ibverbx.VirtualQP, error) {
	create := func(d *nic) (verbs.QP, error) {
		cq, err := e.cq.physical(d)
		if err != nil {
			return nil, err
		}
		return d.pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{
			MaxSendWR: cfg.MaxMsgCntPerQP, MaxRecvWR: max(cfg.Credits, cfg.MaxMsgCntPerQP),
			MaxSendSGE: cfg.MaxSGE, MaxInline: cfg.MaxInline,
		}})
	}
	var qps []verbs.QP
	for _, n := range rails {
		qp, err := create(e.host.nics[n])
		if err != nil {
			return nil, err
		}
		qps = append(qps, qp)
	}
	if len(qps) == 1 || cfg.NoNotifyQP {
		return ibverbx.NewVirtualQP(e.cq.cq, qps, nil, cfg)
	}
	notify, err := create(e.host.nics[e.w.rng.IntN(len(e.host.nics))])
	if err != nil {
		return nil, err
	}
	return ibverbx.NewVirtualQP(e.cq.cq, qps, notify, cfg)
}

// physical is the virtual CQ's own CQ on a NIC.
func (c *vcq) physical(d *nic) (verbs.CQ, error) {
	for _, cq := range c.taps {
		if cq.nic == d {
			return cq, nil
		}
	}
	return nil, errors.New("no CQ there")
}

// happen plays an event.
func (w *world) happen(ev Event) {
	e := w.ends[ev.End%len(w.ends)]
	w.logf("%d. %v %v", w.at, ev.Kind, e)
	switch ev.Kind {
	case Step:
		w.steps(1 + w.rng.IntN(8))
	case PostSend:
		e.postSends(1 + w.rng.IntN(4))
	case PostRecv:
		e.postRecvs(1 + w.rng.IntN(3))
	case Burst:
		e.burst()
	case Poll:
		e.cq.poll()
	case Look:
		e.look()
	case Slow:
		w.slow(e)
	case Strike:
		w.strike(e)
	case Heal:
		w.heal()
	case Reset:
		e.reset()
	case Connect:
		w.reconnect(e.conn)
	case Renew:
		for _, end := range e.conn.ends {
			if end.state != closed {
				end.reset()
			}
		}
		w.reconnect(e.conn)
		w.replace(e.conn)
	case Drain:
		e.drain()
	case Close:
		e.close()
	case Invade:
		w.invade(e)
	case Replay:
		w.replay(e)
	}
}

// steps lets the fabric move.
func (w *world) steps(n int) {
	for range n {
		w.actions = w.fabric.Actions(w.actions[:0])
		if len(w.actions) == 0 {
			return
		}
		a := w.choose()
		w.logf("  %v", a)
		w.fabric.Do(a)
		w.moves++
	}
}

// choose draws what happens next. Timers run out seldom while anything else can happen, and in some
// worlds some queue pairs are far ahead of others.
func (w *world) choose() soft.Action {
	best := w.actions[w.rng.IntN(len(w.actions))]
	for range 2 + w.plan.bias {
		a := w.actions[w.rng.IntN(len(w.actions))]
		if best.Kind == soft.Timer && w.rng.IntN(16) != 0 || w.plan.bias != 0 && w.rank(a) > w.rank(best) &&
			a.Kind != soft.Timer {
			best = a
		}
	}
	return best
}

func (w *world) rank(a soft.Action) uint64 {
	x := w.plan.seed ^ uint64(a.Device)<<32 ^ uint64(a.QPNum)<<8 ^ uint64(a.Kind)
	x *= 0x9e3779b97f4a7c15
	return x >> 40
}

// pump moves the fabric while the library waits, and far enough: the library gives up on a NIC that
// it has polled a while in vain.
func (w *world) pump() { w.moves += w.fabric.Run(64) }

// waiting calls the library with the fabric moving by itself.
func (w *world) waiting(call func() error) error {
	w.pumping = true
	err := call()
	w.pumping = false
	return err
}

// audit looks at all of the memory.
func (w *world) audit() {
	for _, h := range w.hosts {
		if what, at, ok := h.memory.audit(); !ok {
			w.broken(ruleBuffer, "%s has changed: bytes %d to %d of %s", what, at.off, at.off+at.n, h.name)
		}
	}
}
