package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// plan is what a world is made of and what happens in it. All of it follows from the seed.
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
	// the NIC of each rail, as an index into those of the host; nil when Domain.NewQP makes the
	// rails
	byHand [2][]int
	strip  bool    // cards have no keys that the C++ original does not know
	small  int     // bytes of a receive; 0: no receive has memory
	lazy   [2]bool // this end posts few receives, so arrivals must wait
	oneID  bool    // all requests and receives have one ID: it need not be unique

	failover [2]bool // this end offers to go on when a rail dies
	late     bool    // writes may be in memory after their acknowledgement
	short    bool    // most requests are writes of one fragment
}

// Values next to the boundaries that the library distinguishes.
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

// balance has some ends share fragments by ability. It draws numbers of its own: what else a seed
// means stays as it was.
func (p *plan) balance() {
	rng := rand.New(rand.NewPCG(p.Seed, 0x62616c616e6365))
	for i := range p.conns {
		for j := range p.conns[i].cfg {
			p.conns[i].cfg[j].Balance = ibverbx.Balance(rng.IntN(2))
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

// makeRails has Domain.NewQP make the rails if both hosts can have as many. Otherwise, and
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

// Game is the simulation as something that is searched, shrunk and played again from a seed.
var Game = lab.Game("TestSimulation", "./test/sim", newPlan, (*plan).run)

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }
