package sendside

import (
	"math/rand/v2"

	"ibverbx/shmem"
	"ibverbx/test/internal/lab"
)

// Shmem is the game of processing elements.
var Shmem = lab.Game("TestShmem", "./test/sendside", newShmemPlan, (*shmemPlan).run)

// shmemPlan is what a world of PEs is made of, and the phases that all of them go through.
type shmemPlan struct {
	bedPlan
	lab.Schedule[phase]
	config shmem.Config
}

// phase is a part of the program that all PEs run. What each does in it follows from r and from its
// number.
type phase struct {
	kind phaseKind
	r    uint64
}

type phaseKind uint8

const (
	phaseScatter phaseKind = iota // puts and gets
	phaseSignal                   // data and a signal
	phaseFlag                     // data, a fence, and a word
	phaseCount                    // atomics that add
	phaseBits                     // atomics on bits, of four and eight bytes
	phaseSwap                     // atomics that swap
	phaseBarrier                  // nothing but barriers
	phaseBroadcast
	phaseReduce
	phaseGather
	phaseTrade
	phaseAlloc
	phaseMismatch // PEs ask for different sizes
	phaseMistake  // wrong arguments
	phaseFault    // a fault
	phaseHurry    // calls whose context ends
	phaseMisstep  // PEs make different collective calls; always the last phase
	phaseKinds
)

var phaseNames = [phaseKinds]string{"scatter", "signal", "flag", "count", "bits", "swap", "barrier",
	"broadcast", "reduce", "all-gather", "all-to-all", "alloc",
	"mismatch", "mistake", "fault", "hurry", "misstep"}

func (k phaseKind) String() string { return phaseNames[k] }

var phaseWeights = [phaseKinds]int{phaseScatter: 12, phaseSignal: 6, phaseFlag: 6, phaseCount: 5,
	phaseBits: 4, phaseSwap: 4, phaseBarrier: 2, phaseBroadcast: 3,
	phaseReduce: 3, phaseGather: 3, phaseTrade: 3, phaseAlloc: 4, phaseMismatch: 1, phaseMistake: 2,
	phaseFault: 3, phaseHurry: 3}

func newShmemPlan(seed uint64) *shmemPlan {
	rng := rand.New(rand.NewPCG(seed, 0x73686d))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &shmemPlan{bedPlan: newBedPlan(rng, seed)}
	p.Mood = lab.Mood(pick(int(lab.Calm), int(lab.Calm), int(lab.Faulty)))
	for i := range p.Hosts {
		p.Hosts[i] = p.Hosts[0] // all PEs have the same configuration
	}
	qp := p.qpConfig(rng)
	p.config = shmem.Config{
		// no world depends on a clock
		Size: len(p.Hosts), HeapSize: heapSize, RegisterFrom: pick(-1, 300, 0),
		Transport: p.workerConfig(rng, qp, 0),
	}
	p.config.Transport.AMBuffers = 1
	p.config.Transport.QP.MaxMsgCntPerQP = 0
	p.Events = make([]phase, 1+rng.IntN(pick(2, 4, 8)))
	for i := range p.Events {
		p.Events[i] = phase{phaseKind(lab.DrawWeighted(rng, phaseWeights[:])), rng.Uint64()}
	}
	if p.Mood == lab.Faulty && rng.IntN(2) == 0 {
		p.Events[rng.IntN(len(p.Events))].kind = phaseFault
	}
	if rng.IntN(5) == 0 {
		p.Events = append(p.Events, phase{phaseMisstep, rng.Uint64()})
	}
	return p
}

// heapSize is the symmetric heap of each PE.
const heapSize = 32 << 10

// String describes the world in a few lines.
func (p *shmemPlan) String() string {
	t := &p.config.Transport
	s := sprintf("seed %d, %v: %d PEs with %d NICs each, %d rails, %v, fragments of %d bytes, registers "+
		"from %d; %d bounce buffers of %d bytes, %d outstanding, %d inline",
		p.Seed, p.Mood, p.config.Size, p.Hosts[0], p.rails, t.QP.Scheme, t.QP.FragmentSize,
		p.config.RegisterFrom, t.BounceBuffers, t.BufferSize, t.MaxOutstanding, t.QP.MaxInline)
	for i, ph := range p.Events {
		s += sprintf("\nphase %d: %v", i, ph.kind)
	}
	return s
}
