package sendside

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// testbed is common to the worlds of the three games: hosts with NICs, connections, and programs
// that wait.
type testbed struct {
	lab.Testbed
	plan      *bedPlan
	links     []*link
	build     *link // the queue pairs that are created now belong to it
	actors    []*actor
	current   *actor // the running program; nil outside of programs
	cancels   []context.CancelFunc
	ending    map[*lab.NIC]int // single queue pairs that were moved to ERR and not closed yet
	inside    *lab.Host        // its worker makes progress now; nil outside of that
	finishing bool             // no more events
}

// bedPlan describes a testbed.
type bedPlan struct {
	lab.Plan
	rails int
	pairs [][2]int // hosts of each connection; unused by PEs
}

// link is a connection between two hosts.
type link struct {
	lab.Conn
	hosts [2]*lab.Host
	wires []*wire
}

// A host's memory has words for atomics, bytes for gets, and some bytes for the end of a run.
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

// drawPairs draws connections: of each host with the next one, and some more.
func (p *bedPlan) drawPairs(rng *rand.Rand, n int) {
	for i := range n {
		pair := [2]int{rng.IntN(len(p.Hosts)), rng.IntN(len(p.Hosts))} // perhaps within one host
		if i < len(p.Hosts)-1 {
			pair = [2]int{i, i + 1}
		}
		p.pairs = append(p.pairs, pair)
	}
}

// endsOf returns how many ends of connections are on a host.
func (p *bedPlan) endsOf(host int) (n int) {
	for _, pair := range p.pairs {
		for _, h := range pair {
			if h == host {
				n++
			}
		}
	}
	return n
}

// qpConfig draws the common configuration of a world's virtual queue pairs.
func (p *bedPlan) qpConfig(rng *rand.Rand) ibverbx.Config {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	cfg := ibverbx.Config{
		Scheme:       ibverbx.Scheme(rng.IntN(2)),
		FragmentSize: uint32(pick(16, 64, 100, 256, 1000)),
		Linger:       ibverbx.None, // no world may depend on a clock
	}
	cfg.Conn.RetryCount, cfg.Conn.Patience = pick(1, 2, 3), ibverbx.PatienceShort
	cfg.Conn.Access = verbs.AccessAll
	cfg.Conn.MaxRDAtomic = uint8(pick(0, 1, 2))
	return cfg
}

// play builds and runs a world, and returns the promise that it breaks. moved, if not nil, runs
// after each action of the fabric.
func (b *testbed) play(p *bedPlan, log func(string), moved func(soft.Action), run func()) *hunt.Violation {
	b.plan, b.ending = p, map[*lab.NIC]int{}
	b.Testbed = lab.Testbed{Plan: &p.Plan, Log: log, Hooks: lab.Hooks{CQ: b.tapCQ, QP: b.tapQP, Moved: moved},
		Layout: lab.Layout{Size: arenaSize, Words: libraryAt, Noise: library, Spare: spareSize}}
	v := b.Play(func() {
		b.SeedEvent(p.Seed)
		b.LogPlan("the world", *p)
		b.Build()
		run()
	})
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

// quietRounds is the number of rounds without movement after which a world is at rest. A program
// needs several rounds for a step.
const quietRounds = 6

// workers is a testbed's view of its world's workers.
type workers interface {
	progress(*lab.Host) int // one round; it returns how much it did
	look()                  // handles finished requests, after each round
}

// settle lets everything move until nothing does.
func (b *testbed) settle(w workers) {
	for quiet, rounds := 0, 0; quiet < quietRounds; rounds++ {
		if rounds > 20000 {
			b.Broken(lab.Liveness, "it does not come to rest")
		}
		moved := 0
		if n := b.Movable(); n != 0 {
			b.Steps(1 + b.Rng.IntN(2*n))
			moved++
		}
		for _, h := range b.Hosts {
			moved += w.progress(h)
		}
		for _, a := range slices.Clone(b.waiting()) {
			b.turn(a)
			if a.over {
				moved++
			}
		}
		w.look()
		if quiet++; moved != 0 {
			quiet = 0
		}
	}
}

// turn runs a program, inside its worker's progress.
func (b *testbed) turn(a *actor) {
	b.Logf("  %s", a.name)
	b.inside = a.home
	a.resume()
	b.inside = nil
}

// mustReturn checks, at rest, that no program still waits.
func (b *testbed) mustReturn() {
	for _, a := range b.waiting() {
		b.Broken(lab.Liveness, "%s, and does not return", a.name)
	}
}

// closeWorker closes a host's worker, twice.
func (b *testbed) closeWorker(h *lab.Host, close func() error) {
	b.inside = h
	err := close()
	b.inside = nil
	if err != nil && !h.Struck {
		b.Broken(lab.Leak, "%s: close worker: %v", h.Name, err)
	}
	if err := close(); !errors.Is(err, ibverbx.ErrClosed) {
		b.Broken(lab.Refusal, "%s: closed again: %v", h.Name, err)
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

// strike injects a fault on a link. Faults that concern many links are rarer.
func (b *testbed) strike(l *link, gentle bool) {
	wide := b.OneIn(2)
	f := b.DrawFault(faults, func(f *lab.Fault) bool {
		return f.Gentle == gentle && (wide || !f.Wide()) &&
			// a single queue pair would wait for lost completions by the wall clock
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
	b.Strike(&q.QP, &l.Conn, f)
}

// These are the promises of the send side, besides those of package lab.
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
