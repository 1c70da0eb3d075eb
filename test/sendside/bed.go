package sendside

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/hunt"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

func sprintf(format string, args ...any) string { return fmt.Sprintf(format, args...) }

// bed is what worlds of all kinds stand on: hosts with NICs on a stepped fabric, faults, programs
// that wait, and choices that follow from a seed.
type bed struct {
	plan   *bedPlan
	fabric *soft.Fabric
	nics   []*nic
	hosts  []*host
	links  []*link

	pcg     rand.PCG
	rng     *rand.Rand // of the event under way
	at      int        // events begun
	log     func(string)
	actions []soft.Action
	active  []*strike
	players []*player
	current *player
	moved   func(a soft.Action) // looks at the world after every action of the fabric
	build   *link               // whose queue pairs are being created
}

// bedPlan is what a bed is made of.
type bedPlan struct {
	seed     uint64
	mood     mood
	rails    int
	hosts    []int // how many NICs each has
	scramble bool
	bias     int // how strongly some queue pairs are preferred, 0 to 3
}

// mood says how bad a world is.
type mood uint8

const (
	calm    mood = iota // nothing fails; NICs may be slow, and refuse for now
	faulty              // everything fails that can
	hostile             // and there are peers that break the rules
)

func (m mood) String() string { return [...]string{"calm", "faulty", "hostile"}[m] }

// host is some NICs, a domain over them, and memory.
type host struct {
	*bed
	index  int
	name   string
	nics   []*nic
	dom    *ibverbx.Domain
	memory *memory
	mr     *ibverbx.MR
	remote ibverbx.RemoteMR
	adds   []*op              // atomic additions that have ended
	chain  *[swapsSlots]chain // words that are compared and swapped
	struck bool               // something was done to it that its completion queues may not survive
}

// link is a connection between two hosts. It may fail only where something was done to it.
type link struct {
	name  string
	hosts [2]*host
	wires []*wire
	blame string // why it may fail; "" when it may not
}

// because notes why a link may fail, if that is new.
func (l *link) because(reason string) {
	if l.blame == "" {
		l.blame = reason
	}
}

func newBedPlan(rng *rand.Rand, seed uint64) bedPlan {
	p := bedPlan{seed: seed, mood: mood([]int{0, 0, 0, 0, 1, 1, 1, 2}[rng.IntN(8)])}
	p.rails = []int{1, 2, 2, 3, 4, 4}[rng.IntN(6)]
	for range 2 + []int{0, 0, 1, 1, 2, 3}[rng.IntN(6)] {
		nics := 1 + rng.IntN(3)
		for p.rails%nics != 0 {
			nics--
		}
		p.hosts = append(p.hosts, nics)
	}
	// A single queue pair passes on what the NIC says, in the order in which it says it.
	p.scramble = rng.IntN(3) == 0 && p.rails > 1
	p.bias = []int{0, 0, 1, 2, 3}[rng.IntN(5)]
	return p
}

// play runs a world and returns the promise that it breaks.
func (b *bed) play(run func()) (v *hunt.Violation) {
	b.rng = rand.New(&b.pcg)
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if v, ok = r.(*hunt.Violation); !ok {
				v = b.violation(rulePanic, sprintf("%v\n%s", r, debug.Stack()))
			}
			b.logf("broken: %s: %s", v.Rule, v.Detail)
		}
		for _, p := range b.players {
			p.abandon()
		}
	}()
	run()
	return nil
}

func (b *bed) logf(format string, args ...any) {
	if b.log != nil {
		b.log(sprintf(format, args...))
	}
}

// seedEvent makes all choices from here on follow from r.
func (b *bed) seedEvent(r uint64) { b.pcg.Seed(r, b.plan.seed) }

func (b *bed) pick(of ...int) int { return of[b.rng.IntN(len(of))] }

// one is true once in n times.
func (b *bed) one(n int) bool { return b.rng.IntN(n) == 0 }

// raise builds the fabric and the hosts.
func (b *bed) raise() {
	p := b.plan
	total := 0
	for _, n := range p.hosts {
		total += n
	}
	var err error
	b.fabric, err = soft.New(soft.Config{Devices: total, Stepped: true, Seed: p.seed, Scramble: p.scramble})
	b.must("new fabric", err)
	for i := range total {
		b.nics = append(b.nics, &nic{Device: b.fabric.Device(i), bed: b})
	}
	rest := b.nics
	for i, n := range p.hosts {
		h := &host{bed: b, index: i, name: sprintf("host %d", i), nics: rest[:n], memory: newMemory()}
		rest = rest[n:]
		var devs []verbs.Device
		for _, d := range h.nics {
			d.host = h
			devs = append(devs, d)
		}
		h.dom, err = ibverbx.NewDomain(devs...)
		b.must("new domain", err)
		h.mr, err = h.dom.Register(h.memory.arena, verbs.AccessAll)
		b.must("register", err)
		h.remote = h.mr.Remote()
		b.hosts = append(b.hosts, h)
	}
}

// qpConfig draws what the virtual queue pairs of a world have in common.
func (p *bedPlan) qpConfig(rng *rand.Rand) ibverbx.Config {
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	cfg := ibverbx.Config{
		Scheme:     ibverbx.Scheme(rng.IntN(2)),
		MaxMsgSize: uint32(pick(16, 64, 100, 256, 1000)),
		Linger:     -1, // nothing in a world may depend on a clock
	}
	cfg.Conn.RetryCount = uint8(pick(1, 2, 3))
	cfg.Conn.MaxRDAtomic = uint8(pick(0, 1, 2))
	return cfg
}

// steps lets the fabric move.
func (b *bed) steps(n int) {
	for range n {
		b.actions = b.fabric.Actions(b.actions[:0])
		if len(b.actions) == 0 {
			return
		}
		a := b.choose()
		b.logf("  %v", a)
		b.fabric.Do(a)
		if b.moved != nil {
			b.moved(a)
		}
	}
}

// choose draws what happens next. Timers run out seldom while anything else can happen, and in some
// worlds some queue pairs are far ahead of others.
func (b *bed) choose() soft.Action {
	best := b.actions[b.rng.IntN(len(b.actions))]
	for range 2 + b.plan.bias {
		a := b.actions[b.rng.IntN(len(b.actions))]
		if best.Kind == soft.Timer && b.rng.IntN(16) != 0 || b.plan.bias != 0 && b.rank(a) > b.rank(best) &&
			a.Kind != soft.Timer {
			best = a
		}
	}
	return best
}

func (b *bed) rank(a soft.Action) uint64 {
	x := b.plan.seed ^ uint64(a.Device)<<32 ^ uint64(a.QPNum)<<8 ^ uint64(a.Kind)
	x *= 0x9e3779b97f4a7c15
	return x >> 40
}

// audit looks at all of the memory.
func (b *bed) audit() {
	for _, h := range b.hosts {
		if what, at, ok := h.memory.audit(); !ok {
			b.broken(ruleMemory, "%s has changed: bytes %d to %d of %s", what, at.off, at.off+at.n, h.name)
		}
	}
}

// raze closes what raise has built. Workers are closed before.
func (b *bed) raze() {
	for _, h := range b.hosts {
		b.must("close memory of "+h.name, h.mr.Close())
		b.must("close domain of "+h.name, h.dom.Close())
		h.memory.free()
	}
	if o := b.fabric.Objects(); o != (soft.Objects{}) {
		b.broken(ruleLeak, "left open: %v", o)
	}
	b.must("close fabric", b.fabric.Close())
}

// keepEvents is the events that a hunt wants played.
func keepEvents[E any](events []E, keep []int) []E {
	if keep == nil {
		return slices.Clone(events)
	}
	list := make([]E, 0, len(keep))
	for _, i := range keep {
		list = append(list, events[i])
	}
	return list
}
