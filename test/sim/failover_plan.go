package sim

import (
	"math/rand/v2"
	"time"

	"ibverbx"
	"ibverbx/test/internal/lab"
)

// FailoverGame is the simulation of connections that go on when a rail dies.
var FailoverGame = lab.Game("TestFailover", "./test/sim", newFailoverPlan, (*plan).run)

// newFailoverPlan is a world whose rails die. Most of its connections have failover at both ends.
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
