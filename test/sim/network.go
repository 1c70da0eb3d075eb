package sim

import (
	"math/rand/v2"

	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// This file plays the simulation over NICs of other providers. Their tests make the network, since
// only they reach its inside.

type (
	// Network is NICs of another provider in virtual time.
	Network = lab.Network
	// NetworkPlan describes a Network.
	NetworkPlan = lab.NetworkPlan
	// Device is a NIC of a Network.
	Device = lab.Device
	// Testbed is the argument of a Network's step.
	Testbed = lab.Testbed
)

// NewFlags defines the flags of a test that plays worlds.
func NewFlags() *hunt.Flags { return hunt.NewFlags() }

// Over returns the simulation over networks that open makes. test and dir name the test that plays
// it.
func Over(test, dir string, open func(*NetworkPlan) Network) hunt.Game {
	return over(test, dir, open, newPlan)
}

// FailoverOver is [Over] for worlds whose rails die.
func FailoverOver(test, dir string, open func(*NetworkPlan) Network) hunt.Game {
	return over(test, dir, open, newFailoverPlan)
}

func over(test, dir string, open func(*NetworkPlan) Network, draw func(uint64) *plan) hunt.Game {
	return lab.Game(test, dir, func(seed uint64) *plan {
		p := draw(seed).onNetwork(seed)
		p.newNetwork = open
		return p
	}, (*plan).run)
}

// onNetwork returns the same world on a network, without the properties of package soft's NICs:
// GIDs of several indexes, completions out of order, and data that is in memory late.
func (p *plan) onNetwork(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 0x6e6574))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	nics := 0
	for _, n := range p.Hosts {
		nics += n
	}
	p.net = lab.DrawNetwork(rng, seed, nics)
	p.Scramble = false
	for i := range p.conns {
		c := &p.conns[i]
		c.late = false
		many := rng.IntN(6) == 0
		fragment := uint32(pick(0, 0, 700, 2000))
		timer, mtu := pick(14, 18, 20), verbs.MTU(pick(1, 1, 1, 2, 0))
		if c.strip {
			mtu = max(mtu, verbs.MTU256) // such cards have no MTU
		}
		for j := range c.cfg {
			cfg := &c.cfg[j]
			cfg.Conn.Timeout, cfg.Conn.RetryCount = lab.NetworkTimeout, lab.NetworkRetries
			cfg.Conn.MinRNRTimer, cfg.Conn.MTU = timer, mtu
			cfg.Conn.GIDIndex = min(cfg.Conn.GIDIndex, 0)
			if many {
				cfg.MaxMsgCntPerQP, cfg.Credits = 60, 60 // more than NICs send at a time
			}
			if fragment != 0 {
				cfg.FragmentSize = fragment
			}
		}
	}
	return p
}
