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
	*phaseKind
	r uint64
}

// phaseKind is a kind of phase, and how often it is drawn. A phase that needs a barrier
// begins with one.
type phaseKind struct {
	name  string
	often int
	play  func(e *element, common *rand.Rand)
}

var phases = []phaseKind{
	{"scatter", 12, (*element).scatter}, // puts and gets
	{"signal", 6, func(e *element, common *rand.Rand) { e.sendSignal(false, common) }},
	{"flag", 6, func(e *element, common *rand.Rand) { e.sendSignal(true, common) }},
	{"count", 5, (*element).count},
	{"bits", 4, (*element).toggle},
	{"swap", 4, (*element).swap},
	{"barrier", 2, (*element).barriers},
	{"broadcast", 3, (*element).broadcast},
	{"reduce", 3, (*element).reduce},
	{"all-gather", 3, (*element).gather},
	{"all-to-all", 3, (*element).trade},
	{"alloc", 4, (*element).allocate},
	{"mismatch", 1, (*element).mismatch},
	{"mistake", 2, (*element).mistake},
	fault,
	{"hurry", 5, (*element).hurry}, // calls whose context ends
}

// Phases that are drawn by themselves, too. After a misstep nothing follows.
var (
	fault   = phaseKind{"fault", 3, (*element).meetFault}
	misstep = phaseKind{"misstep", 0, (*element).misstep}
)

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
	weights := make([]int, len(phases))
	for i := range phases {
		weights[i] = phases[i].often
	}
	for i := range p.Events {
		p.Events[i] = phase{&phases[lab.DrawWeighted(rng, weights)], rng.Uint64()}
	}
	if p.Mood == lab.Faulty && rng.IntN(2) == 0 {
		p.Events[rng.IntN(len(p.Events))].phaseKind = &fault
	}
	if rng.IntN(5) == 0 {
		p.Events = append(p.Events, phase{&misstep, rng.Uint64()})
	}
	return p
}

// heapSize is the symmetric heap of each PE.
const heapSize = 32 << 10
