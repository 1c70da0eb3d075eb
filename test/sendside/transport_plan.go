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
	lab.Schedule[event]
	configs []transport.Config // of each host's worker
	pairs   [][2]int           // hosts of each connection
	raw     []bool             // of each connection: the second end is an intruder
}

type event = lab.Event[eventKind]

type eventKind uint8

const (
	doStep     eventKind = iota // the fabric moves
	doProgress                  // a worker makes progress
	doOp                        // some operations
	doBurst                     // operations until one returns ErrNoResource
	doPending                   // an operation that is queued if need be
	doNotify                    // an operation that has OnReady called if need be
	doFence
	doFlush   // without waiting
	doWait    // a program that waits in Flush
	doResume  // a program goes on
	doCancel  // a context ends
	doRelease // a kept message is given back
	doCount   // the program counts on a shared completion
	doPurge
	doMisuse // wrong arguments
	doLook   // counters
	doSlow
	doStrike
	doHeal
	doAbort
	doClose
	doRenew // a new connection in place of one that has ended
	doForge // an intruder sends something
	eventKinds
)

var eventNames = [eventKinds]string{"step", "progress", "op", "burst", "pending", "notify ready", "fence",
	"flush",
	"wait", "resume", "cancel", "release", "count",
	"purge", "misuse", "look", "slow", "strike", "heal", "abort", "close", "renew", "forge"}

func (k eventKind) String() string { return eventNames[k] }

// eventWeights are how often each kind happens in each mood.
var eventWeights = [...][eventKinds]int{
	lab.Calm: {doStep: 400, doProgress: 240, doOp: 200, doBurst: 20, doPending: 60, doNotify: 30, doFence: 30,
		doFlush: 20, doWait: 12, doResume: 60, doCancel: 3,
		doRelease: 40, doCount: 30, doPurge: 4, doMisuse: 15, doLook: 15, doSlow: 8, doHeal: 12, doAbort: 1,
		doClose: 2, doRenew: 10},
	lab.Faulty: {doStep: 400, doProgress: 240, doOp: 200, doBurst: 20, doPending: 60, doNotify: 30,
		doFence: 30,
		doFlush: 20, doWait: 12, doResume: 60, doCancel: 3,
		doRelease: 40, doCount: 30, doPurge: 4, doMisuse: 8, doLook: 10, doSlow: 6, doStrike: 10, doHeal: 14,
		doAbort: 6, doClose: 5, doRenew: 15},
	lab.Hostile: {doStep: 400, doProgress: 240, doOp: 200, doBurst: 20, doPending: 60, doNotify: 30,
		doFence: 20,
		doFlush: 20, doWait: 12, doResume: 60, doCancel: 3,
		doRelease: 40, doCount: 30, doPurge: 4, doMisuse: 5, doLook: 10, doSlow: 4, doStrike: 2, doHeal: 14,
		doAbort: 4, doClose: 4, doRenew: 20, doForge: 60},
}

func newTransportPlan(seed uint64) *transportPlan {
	rng := rand.New(rand.NewPCG(seed, 0x73656e64))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &transportPlan{bedPlan: newBedPlan(rng, seed)}
	qp := p.qpConfig(rng)
	for i := range 1 + pick(0, 1, 1, 2, 3) {
		pair := [2]int{rng.IntN(len(p.Hosts)), rng.IntN(len(p.Hosts))} // perhaps within one host
		if i < len(p.Hosts)-1 {
			pair = [2]int{i, i + 1}
		}
		p.pairs = append(p.pairs, pair)
		p.raw = append(p.raw, p.Mood == lab.Hostile && (i == 0 || rng.IntN(2) == 0))
	}
	for h := range p.Hosts {
		cfg := p.workerConfig(rng, qp, h)
		cfg.MaxEndpoints = 2 // for connections that are renewed
		for i, pair := range p.pairs {
			if pair[0] == h {
				cfg.MaxEndpoints++
			}
			if pair[1] == h && !p.raw[i] {
				cfg.MaxEndpoints++
			}
		}
		p.configs = append(p.configs, cfg)
	}
	p.Events = lab.DrawEvents[eventKind](rng, eventWeights[p.Mood][:], 60, 150, 400)
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

// String describes the world in a few lines.
func (p *transportPlan) String() string {
	s := sprintf("seed %d, %v: hosts of %v NICs, %d rails, %v, fragments of %d bytes", p.Seed, p.Mood,
		p.Hosts, p.rails, p.configs[0].QP.Scheme, p.configs[0].QP.FragmentSize)
	if p.Scramble {
		s += ", completions out of order"
	}
	for i, c := range p.configs {
		s += sprintf("\nhost %d: %d receive buffers, %d bounce buffers of %d bytes, %d outstanding, %d "+
			"inline", i, c.AMBuffers, c.BounceBuffers, c.BufferSize, c.MaxOutstanding, c.QP.MaxInline)
	}
	for i, pair := range p.pairs {
		s += sprintf("\nconnection %d: hosts %v", i, pair)
		if p.raw[i] {
			s += ", the second breaks the rules"
		}
	}
	return s
}
