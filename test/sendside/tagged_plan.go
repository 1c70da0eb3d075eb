package sendside

import (
	"math/rand/v2"

	"ibverbx/tagged"
	"ibverbx/test/internal/hunt"
)

// Tagged is the game of messages with tags.
var Tagged = hunt.Game{
	Test: "TestTagged", Dir: "./test/sendside",
	Events: func(seed uint64) int { return len(newTaggedPlan(seed).events) },
	Play: func(seed uint64, keep []int, log func(string)) *hunt.Violation {
		p := newTaggedPlan(seed)
		p.events = keepEvents(p.events, keep)
		return p.run(log)
	},
}

// taggedPlan is what a world of messages is made of and what happens in it.
type taggedPlan struct {
	bedPlan
	configs []tagged.Config
	pairs   [][2]int
	events  []tagEvent
}

// tagEvent is one thing that happens.
type tagEvent struct {
	kind tagKind
	end  int
	r    uint64
}

type tagKind uint8

const (
	tagStep tagKind = iota
	tagProgress
	tagSend
	tagBurst // of messages that nobody waits for
	tagReceive
	tagProbe
	tagWait // a program that sends, receives or waits for a request
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
	calm: {tagStep: 400, tagProgress: 260, tagSend: 160, tagBurst: 8, tagReceive: 150, tagProbe: 20,
		tagWait: 25, tagResume: 60, tagCancelContext: 6, tagCancel: 20,
		tagRegister: 6, tagLook: 10, tagSlow: 8, tagHeal: 12, tagAbort: 1, tagClose: 2},
	faulty: {tagStep: 400, tagProgress: 260, tagSend: 160, tagBurst: 8, tagReceive: 150, tagProbe: 20,
		tagWait: 25, tagResume: 60, tagCancelContext: 6, tagCancel: 20,
		tagRegister: 6, tagLook: 10, tagSlow: 8, tagStrike: 9, tagHeal: 14, tagAbort: 4, tagClose: 4},
}

func newTaggedPlan(seed uint64) *taggedPlan {
	rng := rand.New(rand.NewPCG(seed, 0x746167))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &taggedPlan{bedPlan: newBedPlan(rng, seed)}
	if p.mood == hostile {
		p.mood = faulty
	}
	qp := p.qpConfig(rng)
	for i := range 1 + pick(0, 0, 1, 2, 3) {
		pair := [2]int{rng.IntN(len(p.hosts)), rng.IntN(len(p.hosts))}
		if i < len(p.hosts)-1 {
			pair = [2]int{i, i + 1}
		}
		p.pairs = append(p.pairs, pair)
	}
	for h := range p.hosts {
		cfg := tagged.Config{
			Transport: p.workerConfig(rng, qp, h), EagerLimit: pick(-1, 30, 150, 500, 1200),
			Chunk: pick(40, 200, 0), Window: pick(1, 2, 0),
			MaxUnexpected: pick(1, 2, 4, 16), MaxRequests: pick(1, 0),
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
	total := 0
	for _, n := range tagWeights[p.mood] {
		total += n
	}
	p.events = make([]tagEvent, 20+rng.IntN(pick(60, 150, 400)))
	for i := range p.events {
		n := rng.IntN(total)
		kind := tagKind(0)
		for n >= tagWeights[p.mood][kind] {
			n -= tagWeights[p.mood][kind]
			kind++
		}
		p.events[i] = tagEvent{kind, rng.IntN(1 << 20), rng.Uint64()}
	}
	return p
}

// String describes the world in a few lines.
func (p *taggedPlan) String() string {
	s := sprintf("seed %d, %v: hosts of %v NICs, %d rails, pairs %v", p.seed, p.mood, p.hosts, p.rails,
		p.pairs)
	for i, c := range p.configs {
		s += sprintf("\nhost %d: eager to %d bytes, chunks of %d, window %d, %d unexpected; %d receive "+
			"buffers, %d bounce buffers of %d bytes, %d outstanding", i,
			c.EagerLimit, c.Chunk, c.Window, c.MaxUnexpected, c.Transport.AMBuffers,
			c.Transport.BounceBuffers, c.Transport.BufferSize, c.Transport.MaxOutstanding)
	}
	return s
}
