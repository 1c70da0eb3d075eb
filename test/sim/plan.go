package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// plan describes a world and its events. All of it follows from the seed.
type plan struct {
	lab.Plan
	lab.Schedule[lab.Event]
	cqs    []int  // the host of each virtual CQ
	direct []bool // of each virtual CQ: the program polls the physical CQs itself
	conns  []connPlan

	net        *lab.NetworkPlan // nil: NICs of package soft
	newNetwork func(*lab.NetworkPlan) lab.Network
}

// connPlan is a connection between two virtual queue pairs.
type connPlan struct {
	cqs   [2]int
	cfg   [2]ibverbx.Config
	rails int
	// the NIC of each rail, as an index into those of the host; nil if Domain.NewQP makes the rails
	byHand [2][]int
	strip  bool    // cards have no keys that the C++ original does not know
	small  int     // bytes of a receive; 0: no receive has memory
	lazy   [2]bool // this end posts few receives, so arrivals must wait
	oneID  bool    // all requests and receives have the same ID

	failover [2]bool // this end offers failover
	late     bool    // writes may be in memory after their acknowledgement
	short    bool    // most requests are writes of one fragment
}

// These values are next to the boundaries that the library distinguishes.
var (
	fragmentSizes = []uint32{1, 2, 7, 16, 64, 256, 1000}
	limits        = []int{1, 1, 2, 3, 4, 5, 8, 16}
	firstNumbers  = []uint32{0, 0, 1, 1<<24 - 2, 1<<24 - 3, 1<<24 - 20, 1<<24 - 80}
)

func newPlan(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 0x706c616e))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &plan{Plan: lab.Plan{Seed: seed, Mood: lab.Mood(pick(0, 0, 0, 1, 1, 1, 1, 1, 2, 2)),
		Scramble: rng.IntN(3) == 0, Bias: pick(0, 0, 1, 2, 3)}}
	nics := pick(2, 2, 3, 4, 4)
	first := 1 + rng.IntN(nics-1) // of the first of two hosts
	p.Hosts = []int{first, nics - first}
	for h := range p.Hosts {
		for range pick(1, 1, 1, 2) {
			p.cqs = append(p.cqs, h)
			p.direct = append(p.direct, rng.IntN(8) == 0)
		}
	}
	for range pick(1, 1, 2, 2, 3) {
		p.conns = append(p.conns, p.makeConn(rng))
	}
	p.Events = lab.DrawEvents(rng, events, int(p.Mood), 40, 150, 400)
	p.balance()
	return p
}

// balance makes some ends share fragments by ability, and some record their steps. It draws
// separate numbers, so the rest of a seed's world stays the same.
func (p *plan) balance() {
	rng := rand.New(rand.NewPCG(p.Seed, 0x62616c616e6365))
	for i := range p.conns {
		for j := range p.conns[i].cfg {
			p.conns[i].cfg[j].Balance = ibverbx.Balance(rng.IntN(2))
		}
	}
	for i := range p.conns {
		for j := range p.conns[i].cfg {
			p.conns[i].cfg[j].Trace, p.conns[i].cfg[j].Timing = rng.IntN(4) == 0, rng.IntN(4) == 0
		}
	}
}

func (p *plan) makeConn(rng *rand.Rand) connPlan {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	c := connPlan{rails: pick(1, 2, 2, 3, 3, 4, 5, 6), strip: rng.IntN(6) == 0, small: pick(0, 1, 20, 150)}
	if p.Scramble {
		// a single queue pair reports completions in the NIC's own order
		c.rails = max(c.rails, 2)
	}
	c.lazy = [2]bool{rng.IntN(8) == 0, rng.IntN(8) == 0}
	c.cqs[0] = rng.IntN(len(p.cqs))
	c.cqs[1] = rng.IntN(len(p.cqs)) // perhaps on the same host, or on the same virtual CQ
	cfg := ibverbx.Config{
		Scheme:       ibverbx.Scheme(rng.IntN(2)),
		FragmentSize: fragmentSizes[rng.IntN(len(fragmentSizes))],
		NoNotifyQP:   rng.IntN(6) == 0,
		Linger:       time.Duration(pick(-1, int(time.Hour))), // by the world's clock
	}
	cfg.NoNotifyQP = cfg.NoNotifyQP || c.rails == 1
	if !c.strip {
		cfg.Testing.FirstNumber = firstNumbers[rng.IntN(len(firstNumbers))]
	}
	cfg.Conn.RetryCount, cfg.Conn.Patience = pick(1, 2, 3), ibverbx.PatienceShort
	cfg.Conn.Access = verbs.AccessAll
	cfg.Conn.GIDIndex, cfg.Conn.Port = pick(0, 0, -1, 1), uint8(pick(0, 1))
	cfg.Conn.MTU, cfg.Conn.MaxRDAtomic = verbs.MTU(pick(0, 1, 3)), uint8(pick(0, 0, 1, 3))
	if p.Mood != lab.Calm && rng.IntN(4) == 0 {
		cfg.Conn.RNRRetry = pick(1, 2, 5) // a late receiver makes it fail
	}
	for i := range c.cfg {
		cfg.MaxMsgCntPerQP = limits[rng.IntN(len(limits))]
		cfg.Credits = limits[rng.IntN(len(limits))]
		if c.strip {
			cfg.Credits = max(cfg.Credits, 2) // one of them may be for SENDs
		}
		cfg.MaxBanked = pick(1, 2, 5, 100)
		cfg.MaxSGE = pick(1, 2, 4)
		cfg.MaxInline = pick(16, 64)
		if cfg.Testing.FirstNumber != 0 {
			// Another one for each end.
			cfg.Testing.FirstNumber = firstNumbers[2+rng.IntN(len(firstNumbers)-2)]
		}
		c.cfg[i] = cfg
	}
	p.makeRails(rng, &c)
	c.oneID = c.rails > 1 && rng.IntN(4) == 0
	return c
}

// makeRails lets Domain.NewQP make the rails if both hosts can have as many. Otherwise, and
// sometimes anyway, it assigns them to NICs.
func (p *plan) makeRails(rng *rand.Rand, c *connPlan) {
	even := rng.IntN(2) == 0
	for _, cq := range c.cqs {
		even = even && c.rails%p.Hosts[p.cqs[cq]] == 0
	}
	for i, cq := range c.cqs {
		nics := p.Hosts[p.cqs[cq]]
		if even {
			c.cfg[i].QPsPerDevice = c.rails / nics
			continue
		}
		only := rng.IntN(3 * nics) // all on one NIC: faults on the others must have no effect
		for range c.rails {
			on := only
			if only >= nics {
				on = rng.IntN(nics)
			}
			c.byHand[i] = append(c.byHand[i], on)
		}
	}
}

// Game is the simulation, for searches, shrinking and replays from a seed.
var Game = lab.Game("TestSimulation", "./test/sim", newPlan, (*plan).run)

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// These are columns of events beside those of the moods: worlds whose rails die, and those in which
// a peer also breaks the rules.
const (
	railsDie = 3 + iota
	railsDieHostile
)

// events has the kinds of events, and how often they happen: in calm, faulty and hostile worlds,
// and in those whose rails die.
var events = []lab.Kind[*end]{
	{Name: "step", Often: []int{400, 400, 400, 420, 420},
		Do: func(e *end) { e.w.Steps(1 + e.w.Rng.IntN(8)) }},
	{Name: "post send", Often: []int{160, 160, 160, 170, 170},
		Do: func(e *end) { e.postSends(1 + e.w.Rng.IntN(4)) }},
	{Name: "post recv", Often: []int{130, 130, 130, 140, 140},
		Do: func(e *end) { e.postRecvs(1 + e.w.Rng.IntN(3)) }},
	{Name: "burst", Often: []int{3, 3, 3, 3, 3}, Do: (*end).burst},
	{Name: "poll", Often: []int{180, 180, 180, 230, 230}, Do: func(e *end) { e.cq.poll() }},
	{Name: "look", Often: []int{8, 8, 8, 8, 8}, Do: (*end).look},
	{Name: "slow", Often: []int{12, 8, 5, 8, 8}, Do: func(e *end) { e.w.slow(e) }},
	{Name: "strike", Often: []int{0, 14, 4, 36, 36}, Do: func(e *end) { e.w.strike(e) }},
	{Name: "heal", Often: []int{12, 14, 10, 12, 12}, Do: func(e *end) { e.w.Heal() }},
	{Name: "reset", Often: []int{5, 10, 10, 2, 2}, Do: (*end).reset},
	{Name: "connect", Often: []int{40, 40, 40, 40, 40}, Do: func(e *end) { e.w.reconnect(e.conn) }},
	{Name: "renew", Often: []int{3, 8, 8, 8, 8}, Do: func(e *end) { e.w.renew(e.conn) }},
	{Name: "drain", Often: []int{3, 5, 3, 2, 2}, Do: (*end).drain},
	{Name: "close", Often: []int{1, 3, 2, 1, 1}, Do: (*end).close},
	{Name: "break rules", Often: []int{0, 0, 14, 0, 12}, Do: func(e *end) { e.w.breakRules(e) }},
	{Name: "replay", Often: []int{3, 4, 10, 3, 3}, Do: func(e *end) { e.w.replay(e) }},
}

// renew resets both ends and connects them again. It replaces what was closed.
func (w *world) renew(c *conn) {
	for _, e := range c.ends {
		if e.state != closed {
			e.reset()
		}
	}
	w.reconnect(c)
	w.replace(c)
}

// FailoverGame is the simulation of connections that continue when a rail dies.
var FailoverGame = lab.Game("TestFailover", "./test/sim", newFailoverPlan, (*plan).run)

// newFailoverPlan draws a world whose rails die. Most of its connections have failover at both
// ends.
func newFailoverPlan(seed uint64) *plan {
	p := newPlan(seed)
	rng := rand.New(rand.NewPCG(seed, 0x6661696c6f766572))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p.Mood = lab.Faulty
	hosts := [][]int{{1, 1}, {2, 2}, {2, 2}, {3, 3}, {1, 2}}
	p.Hosts = hosts[rng.IntN(len(hosts))]
	p.cqs, p.direct, p.conns = nil, nil, nil
	for h := range p.Hosts {
		for range pick(1, 1, 2) {
			p.cqs = append(p.cqs, h)
			p.direct = append(p.direct, rng.IntN(10) == 0)
		}
	}
	for range pick(1, 1, 1, 2) {
		p.conns = append(p.conns, p.makeFailoverConn(rng))
	}
	column := railsDie
	if rng.IntN(10) == 0 {
		p.Mood, column = lab.Hostile, railsDieHostile
	}
	p.Events = lab.DrawEvents(rng, events, column, 80, 160, 320)
	p.balance()
	return p
}

func (p *plan) makeFailoverConn(rng *rand.Rand) connPlan {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	c := p.makeConn(rng)
	c.strip = rng.IntN(16) == 0
	for p.cqs[c.cqs[0]] == p.cqs[c.cqs[1]] && rng.IntN(4) != 0 {
		c.cqs[1] = rng.IntN(len(p.cqs)) // mostly between hosts
	}
	c.rails = pick(2, 2, 3, 4, 4, 6)
	for i := range c.cfg {
		cfg := &c.cfg[i]
		cfg.QPsPerDevice = 0
		cfg.NoNotifyQP = c.cfg[0].NoNotifyQP && rng.IntN(2) == 0
		cfg.Conn.RNRRetry = 0
		cfg.Failback = time.Duration(pick(-1, 0, int(300*time.Microsecond), int(time.Millisecond)))
		if i == 1 && rng.IntN(4) != 0 {
			cfg.Failback = c.cfg[0].Failback
		}
		if c.strip {
			cfg.Testing.FirstNumber, cfg.Credits = 0, max(cfg.Credits, 2)
		}
		c.failover[i] = rng.IntN(12) != 0
	}
	c.cfg[1].NoNotifyQP = c.cfg[0].NoNotifyQP
	c.byHand = [2][]int{}
	p.makeRails(rng, &c)
	for range 3 { // mostly by Domain.NewQP, which makes more of them
		if c.byHand[0] == nil || rng.IntN(3) == 0 {
			break
		}
		c.byHand = [2][]int{}
		p.makeRails(rng, &c)
	}
	if c.byHand[0] != nil {
		c.cfg[0].Scheme, c.cfg[1].Scheme = ibverbx.DQPLB, ibverbx.DQPLB
	}
	ports := rand.New(rand.NewPCG(p.Seed, uint64(len(p.conns))))
	for i := range c.cfg {
		of := []time.Duration{-1, 0, 1, 100 * time.Microsecond, time.Millisecond}
		c.cfg[i].PortTimeout = of[ports.IntN(len(of))]
	}
	c.short = rng.IntN(3) == 0
	c.late = c.cfg[0].Scheme == ibverbx.DQPLB && rng.IntN(3) == 0
	return c
}

// slow injects a fault that must not fail anything.
func (w *world) slow(e *end) {
	w.inject(w.DrawFault(w.faults, func(f *lab.Fault) bool { return f.Gentle }), e.anyWire())
}

// strike injects any other fault. Faults that concern many connections are rarer.
func (w *world) strike(e *end) {
	if e.conn.failover {
		w.strikeRails(e)
		return
	}
	wide := w.OneIn(2)
	w.inject(w.DrawFault(w.faults, func(f *lab.Fault) bool {
		return !f.Gentle && (wide || !f.Wide()) && e.mayMeet(f)
	}), e.anyWire())
}

// mayMeet reports whether NICs can have a fault of an end's queue pairs together with the world's
// other properties. If completions come out of order, the completions seen of a CQ that dies are
// not the first ones, so failover cannot report arrivals by a count. No NIC does both. Even the CQ
// of an end without failover counts, because others share it.
func (e *end) mayMeet(f *lab.Fault) bool {
	return f.Scope != lab.OneCQ || !e.w.plan.Scramble || !e.cq.doesWithout()
}

// anyWire draws a queue pair.
func (e *end) anyWire() *wire { return e.wires[e.w.Rng.IntN(len(e.wires))] }

// inject injects a fault, and records which connections it may fail.
func (w *world) inject(f *lab.Fault, q *wire) {
	e := q.end
	if e.state == closed {
		return
	}
	w.Logf("  %s: %v of %v", f.Name, q, e)
	if !f.Gentle {
		e.conn.touch(q, f.Name)
	}
	e.conn.stray = e.conn.stray || f.Name == lab.ArrivesLate
	q.alone = q.alone || f.Name == lab.QPDies
	e.cq.mayDie = e.cq.mayDie || f.Scope == lab.OneCQ
	w.eachUnder(q, f, func(other *wire) { other.end.conn.touch(other, f.Name) })
	w.Strike(&q.QP, &e.conn.Conn, f)
}
