package sendside

import (
	"math/rand/v2"

	"ibverbx/tagged"
	"ibverbx/test/internal/lab"
)

// Tagged is the game of messages with tags.
var Tagged = lab.Game("TestTagged", "./test/sendside", newTaggedPlan, (*taggedPlan).run)

// taggedPlan is what a world of messages is made of and what happens in it.
type taggedPlan struct {
	bedPlan
	lab.Schedule[tagEvent]
	configs []tagged.Config
	pairs   [][2]int
}

type tagEvent = lab.Event[tagKind]

type tagKind uint8

const (
	tagStep tagKind = iota
	tagProgress
	tagSend
	tagBurst // many messages
	tagReceive
	tagProbe
	tagWait // a program that waits in a send, a receive, or for a request
	tagResume
	tagCancelContext
	tagCancel // a request
	tagRegister
	tagLook
	tagSlow
	tagStrike
	tagHeal
	tagAbort
	tagClose
	tagKinds
)

var tagNames = [tagKinds]string{"step", "progress", "send", "burst", "recv", "probe", "wait", "resume",
	"cancel context", "cancel", "register", "look",
	"slow", "strike", "heal", "abort", "close"}

func (k tagKind) String() string { return tagNames[k] }

// tagWeights are how often each kind happens in each mood. Peers that break the rules are left to
// the fuzz tests of the package.
var tagWeights = [...][tagKinds]int{
	lab.Calm: {tagStep: 400, tagProgress: 260, tagSend: 160, tagBurst: 8, tagReceive: 150, tagProbe: 20,
		tagWait: 25, tagResume: 60, tagCancelContext: 6, tagCancel: 20,
		tagRegister: 6, tagLook: 10, tagSlow: 8, tagHeal: 12, tagAbort: 1, tagClose: 2},
	lab.Faulty: {tagStep: 400, tagProgress: 260, tagSend: 160, tagBurst: 8, tagReceive: 150, tagProbe: 20,
		tagWait: 25, tagResume: 60, tagCancelContext: 6, tagCancel: 20,
		tagRegister: 6, tagLook: 10, tagSlow: 8, tagStrike: 9, tagHeal: 14, tagAbort: 4, tagClose: 4},
}

func newTaggedPlan(seed uint64) *taggedPlan {
	rng := rand.New(rand.NewPCG(seed, 0x746167))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &taggedPlan{bedPlan: newBedPlan(rng, seed)}
	if p.Mood == lab.Hostile {
		p.Mood = lab.Faulty
	}
	qp := p.qpConfig(rng)
	for i := range 1 + pick(0, 0, 1, 2, 3) {
		pair := [2]int{rng.IntN(len(p.Hosts)), rng.IntN(len(p.Hosts))}
		if i < len(p.Hosts)-1 {
			pair = [2]int{i, i + 1}
		}
		p.pairs = append(p.pairs, pair)
	}
	for h := range p.Hosts {
		cfg := tagged.Config{
			Transport: p.workerConfig(rng, qp, h), EagerLimit: pick(-1, 30, 150, 500, 1200),
			Chunk: pick(40, 200, 0), Window: pick(1, 2, 0),
			MaxUnexpected: pick(1, 2, 4, 16), MaxLeftover: pick(-1, 0, 3), MaxRequests: pick(1, 0),
		}
		cfg.Transport.MaxEndpoints = 1
		cfg.Transport.BufferSize = pick(450, 512, 700)
		for _, pair := range p.pairs {
			for _, host := range pair {
				if host == h {
					cfg.Transport.MaxEndpoints++
				}
			}
		}
		p.configs = append(p.configs, cfg)
	}
	p.Events = lab.DrawEvents[tagKind](rng, tagWeights[p.Mood][:], 60, 150, 400)
	return p
}

// String describes the world in a few lines.
func (p *taggedPlan) String() string {
	s := sprintf("seed %d, %v: hosts of %v NICs, %d rails, pairs %v", p.Seed, p.Mood, p.Hosts, p.rails,
		p.pairs)
	for i, c := range p.configs {
		s += sprintf("\nhost %d: eager to %d bytes, chunks of %d, window %d, %d unexpected; %d receive "+
			"buffers, %d bounce buffers of %d bytes, %d outstanding", i,
			c.EagerLimit, c.Chunk, c.Window, c.MaxUnexpected, c.Transport.AMBuffers,
			c.Transport.BounceBuffers, c.Transport.BufferSize, c.Transport.MaxOutstanding)
	}
	return s
}
