package sendside

import (
	"math/rand/v2"

	"ibverbx/shmem"
	"ibverbx/test/internal/hunt"
)

// Shmem is the game of processing elements.
var Shmem = hunt.Game{
	Test: "TestShmem", Dir: "./test/sendside",
	Events: func(seed uint64) int { return len(newShmemPlan(seed).phases) },
	Play: func(seed uint64, keep []int, log func(string)) *hunt.Violation {
		p := newShmemPlan(seed)
		p.phases = keepEvents(p.phases, keep)
		return p.run(log)
	},
}

// shmemPlan is what a world of PEs is made of, and the phases that all of them go through.
type shmemPlan struct {
	bedPlan
	config shmem.Config
	phases []phase
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
	phaseSignal                   // data and a signal behind it
	phaseFlag                     // data, a fence, and a word behind it
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
	phaseFault    // something is done to a NIC
	phaseKinds
)

var phaseNames = [phaseKinds]string{"scatter", "signal", "flag", "count", "bits", "swap", "barrier",
	"broadcast", "reduce", "all-gather", "all-to-all", "alloc",
	"mismatch", "mistake", "fault"}

func (k phaseKind) String() string { return phaseNames[k] }

var phaseWeights = [phaseKinds]int{phaseScatter: 12, phaseSignal: 6, phaseFlag: 6, phaseCount: 5,
	phaseBits: 4, phaseSwap: 4, phaseBarrier: 2, phaseBroadcast: 3,
	phaseReduce: 3, phaseGather: 3, phaseTrade: 3, phaseAlloc: 4, phaseMismatch: 1, phaseMistake: 2,
	phaseFault: 3}

func newShmemPlan(seed uint64) *shmemPlan {
	rng := rand.New(rand.NewPCG(seed, 0x73686d))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &shmemPlan{bedPlan: newBedPlan(rng, seed)}
	p.mood = mood(pick(int(calm), int(calm), int(faulty)))
	for i := range p.hosts {
		p.hosts[i] = p.hosts[0] // all PEs have the same configuration
	}
	qp := p.qpConfig(rng)
	p.config = shmem.Config{
		// nothing may depend on a clock
		PEs: len(p.hosts), HeapSize: heapSize, RegisterFrom: pick(-1, 300, 0),
		Transport: p.workerConfig(rng, qp, 0),
	}
	p.config.Transport.AMBuffers = 1
	p.config.Transport.QP.MaxMsgCntPerQP = 0
	p.phases = make([]phase, 1+rng.IntN(pick(2, 4, 8)))
	total := 0
	for _, n := range phaseWeights {
		total += n
	}
	for i := range p.phases {
		n := rng.IntN(total)
		kind := phaseKind(0)
		for n >= phaseWeights[kind] {
			n -= phaseWeights[kind]
			kind++
		}
		p.phases[i] = phase{kind, rng.Uint64()}
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
		p.seed, p.mood, p.config.PEs, p.hosts[0], p.rails, t.QP.Scheme, t.QP.MaxMsgSize,
		p.config.RegisterFrom, t.BounceBuffers, t.BufferSize, t.MaxOutstanding, t.QP.MaxInline)
	for i, ph := range p.phases {
		s += sprintf("\nphase %d: %v", i, ph.kind)
	}
	return s
}
