package sendside

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// testbed is what the worlds of the three games have in common: hosts with NICs, connections, and
// programs that wait.
type testbed struct {
	lab.Testbed
	plan    *bedPlan
	links   []*link
	build   *link // the queue pairs that are created now belong to it
	actors  []*actor
	current *actor // the one that runs; nil outside of programs
	cancels []context.CancelFunc
	ending  map[*lab.NIC]int // single queue pairs that were moved to ERR and not closed yet
}

// bedPlan is what a testbed is made of.
type bedPlan struct {
	lab.Plan
	rails int
}

// link is a connection between two hosts.
type link struct {
	lab.Conn
	hosts [2]*lab.Host
	wires []*wire
}

// fate says why an endpoint may fail: for what was done to its link, or to itself.
type fate struct {
	link  *link
	blame string
}

// mayFail is why the endpoint may fail; "" when it may not.
func (f *fate) mayFail() string {
	if f.link.Blame != "" {
		return f.link.Blame
	}
	return f.blame
}

// because notes why the endpoint may fail though its link is sound. The first reason counts.
func (f *fate) because(reason string) {
	if f.blame == "" {
		f.blame = reason
	}
}

// A host's memory: words for atomics, bytes for gets, and some bytes for what ends a run.
const (
	arenaSize = 96 << 10
	libraryAt = 64
	library   = 2 << 10
	spareSize = 2 << 10
)

func newBedPlan(rng *rand.Rand, seed uint64) bedPlan {
	p := bedPlan{Plan: lab.Plan{Seed: seed, Mood: lab.Mood([]int{0, 0, 0, 0, 1, 1, 1, 1}[rng.IntN(8)])}}
	p.rails = []int{1, 2, 2, 3, 4, 4}[rng.IntN(6)]
	for range 2 + []int{0, 0, 1, 1, 2, 3}[rng.IntN(6)] {
		nics := 1 + rng.IntN(3)
		for p.rails%nics != 0 {
			nics--
		}
		p.Hosts = append(p.Hosts, nics)
	}
	// A single queue pair reports completions in the NIC's own order.
	p.Scramble = rng.IntN(3) == 0 && p.rails > 1
	p.Bias = []int{0, 0, 1, 2, 3}[rng.IntN(5)]
	return p
}

// qpConfig draws what the virtual queue pairs of a world have in common.
func (p *bedPlan) qpConfig(rng *rand.Rand) ibverbx.Config {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	cfg := ibverbx.Config{
		Scheme:       ibverbx.Scheme(rng.IntN(2)),
		FragmentSize: uint32(pick(16, 64, 100, 256, 1000)),
		Linger:       ibverbx.None, // no world depends on a clock
	}
	cfg.Conn.RetryCount, cfg.Conn.Patience = pick(1, 2, 3), ibverbx.PatienceShort
	cfg.Conn.Access = verbs.AccessAll
	cfg.Conn.MaxRDAtomic = uint8(pick(0, 1, 2))
	return cfg
}

// play runs a world and returns the promise that it breaks. moved, which may be nil, runs after
// each action of the fabric.
func (b *testbed) play(p *bedPlan, log func(string), moved func(soft.Action), run func()) *hunt.Violation {
	b.plan, b.ending = p, map[*lab.NIC]int{}
	b.Testbed = lab.Testbed{Plan: &p.Plan, Log: log, Hooks: lab.Hooks{CQ: b.tapCQ, QP: b.tapQP, Moved: moved},
		Layout: lab.Layout{Size: arenaSize, Words: libraryAt, Noise: library, Spare: spareSize}}
	v := b.Play(run)
	for _, p := range b.actors {
		p.abandon()
	}
	return v
}

// link makes a connection between two hosts.
func (b *testbed) link(name string, x, y *lab.Host) *link {
	l := &link{Conn: lab.Conn{Name: name}, hosts: [2]*lab.Host{x, y}}
	b.links = append(b.links, l)
	return l
}

// quietRounds is after how many rounds without movement a world is at rest. A program needs several
// rounds for a step.
const quietRounds = 6

// settle lets everything move until nothing does. progress has all workers make progress, turn has
// a program run, and look runs after each round.
func (b *testbed) settle(progress func() int, turn func(*actor), look func()) {
	for quiet, rounds := 0, 0; quiet < quietRounds; rounds++ {
		if rounds > 20000 {
			b.Broken(lab.Liveness, "it does not come to rest")
		}
		moved := 0
		if n := b.Movable(); n != 0 {
			b.Steps(1 + b.Rng.IntN(2*n))
			moved++
		}
		moved += progress()
		for _, a := range slices.Clone(b.waiting()) {
			turn(a)
			if a.over {
				moved++
			}
		}
		look()
		if quiet++; moved != 0 {
			quiet = 0
		}
	}
}

// cut cuts a span into pieces, some of them empty.
func cut(t *lab.Testbed, s lab.Span, most int) (list []lab.Span) {
	for most > 1 && len(list) < most-1 && !t.OneIn(3) {
		var piece lab.Span
		piece, s = s.Split(t.Rng.IntN(s.N + 1))
		list = append(list, piece)
	}
	return append(list, s)
}

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// faults are the rows of the table that this kit uses.
var faults = slices.DeleteFunc(slices.Clone(lab.Faults), func(f lab.Fault) bool {
	return f.Name == lab.RefuseReceives || f.Name == lab.QPDies || f.Name == lab.LinkFlaps
})

// strike puts a fault in force on a link. What changes the world for many is rarer.
func (b *testbed) strike(l *link, gentle bool) {
	wide := b.OneIn(2)
	f := b.DrawFault(faults, func(f *lab.Fault) bool {
		return f.Gentle == gentle && (wide || !f.Wide()) &&
			// a single queue pair would wait for lost completions by the clock
			(b.plan.rails > 1 || f.Scope != lab.OneCQ)
	})
	if len(l.wires) == 0 {
		return
	}
	q := l.wires[b.Rng.IntN(len(l.wires))]
	b.Logf("  %s: %v of %s", f.Name, q, l.Name)
	if !gentle {
		l.Because(f.Name)
	}
	if f.Scope != lab.OneQP {
		for _, l := range b.links {
			if l.hosts[0] == q.NIC.Host || l.hosts[1] == q.NIC.Host {
				l.Because(f.Name + " on " + q.NIC.Name())
			}
		}
	}
	b.Strike(&q.QP, &l.Conn, f, nil)
}

// The promises of the send side, besides those of package lab.
const (
	ruleOnce       lab.Rule = "what was accepted ends exactly once"
	ruleOrder      lab.Rule = "completions come in the order of the calls"
	ruleMessages   lab.Rule = "messages arrive once and in order"
	ruleNoEffect   lab.Rule = "what is refused has no effect"
	ruleResource   lab.Rule = "ErrNoResource is returned when, and only when, a resource is missing"
	ruleOvertaking lab.Rule = "nothing overtakes the queue"
	ruleBusy       lab.Rule = "a request is queued when the endpoint is out of resources, and only then"
	rulePlace      lab.Rule = "callbacks run inside progress, one at a time, pending ones first"
	ruleQueue      lab.Rule = "the queue is served in order"
	rulePurge      lab.Rule = "a purge hands every request back once, in order"
	ruleFair       lab.Rule = "no endpoint starves"
	ruleFlush      lab.Rule = "a flush ends after all operations before it"
	ruleFence      lab.Rule = "operations after a fence land after those before it"
	ruleAtomic     lab.Rule = "atomics are atomic"
	ruleCredits    lab.Rule = "credits are neither exceeded nor lost"
	ruleBalance    lab.Rule = "counts and buffers balance"
	ruleNoticed    lab.Rule = "a failure is reported once"
)
