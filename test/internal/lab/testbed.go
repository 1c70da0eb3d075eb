package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime/debug"

	"ibverbx"
	"ibverbx/test/internal/hunt"
	"ibverbx/verbs"
)

// Testbed is hosts with NICs on a fabric, the faults in force, and choices that follow from a seed.
// A world embeds it.
type Testbed struct {
	Plan   *Plan
	Layout Layout // of each host's memory
	Hooks  Hooks
	Log    func(string) // receives the trace, line by line; may be nil

	// NewNetwork makes the network of the NICs; if nil, they are those of package soft.
	NewNetwork func(*NetworkPlan) Network
	Net        *NetworkPlan // of that network

	Fabric  Fabric
	NICs    []*NIC
	Hosts   []*Host
	Strikes []*Strike  // faults in force
	Rng     *rand.Rand // choices of the event under way
	At      int        // events that have begun
	Moves   int        // actions that the fabric has performed

	pcg rand.PCG
}

// Host is some NICs, a domain over them, and memory registered in it.
type Host struct {
	*Testbed
	Index  int
	Name   string
	NICs   []*NIC
	Dom    *ibverbx.Domain
	Memory *Memory
	MR     *ibverbx.MR
	Remote ibverbx.RemoteMR // the memory, as peers know it
	Struck bool             // a fault was in force on a whole NIC or completion queue of the host
}

// Segment names a part of the host's memory.
func (h *Host) Segment(s Span) ibverbx.Segment { return h.MR.Slice(uint64(s.Off), uint64(s.N)) }

// Segments names several parts of the host's memory.
func (h *Host) Segments(list []Span) (segs []ibverbx.Segment) {
	for _, s := range list {
		segs = append(segs, h.Segment(s))
	}
	return segs
}

// RemoteSegment names a part of the host's memory to a peer.
func (h *Host) RemoteSegment(s Span) ibverbx.RemoteSegment {
	return h.Remote.Slice(uint64(s.Off), uint64(s.N))
}

// Conn is a connection. It may fail only because of a fault that concerns it.
type Conn struct {
	Name  string
	Blame string // why it may fail; "" if it may not
}

// Because records why the connection may fail. The first reason counts.
func (c *Conn) Because(reason string) {
	if c.Blame == "" {
		c.Blame = reason
	}
}

// Play plays a world and returns the first promise that it breaks, or nil.
func (t *Testbed) Play(run func()) (v *hunt.Violation) {
	t.Rng = rand.New(&t.pcg)
	defer func() {
		if r := recover(); r != nil {
			var ok bool
			if v, ok = r.(*hunt.Violation); !ok {
				v = t.Violation(Panic, fmt.Sprintf("%v\n%s", r, debug.Stack()))
			}
			t.Logf("broken: %s: %s", v.Rule, v.Detail)
		}
	}()
	run()
	return nil
}

// Logf writes a line of the trace.
func (t *Testbed) Logf(format string, args ...any) {
	if t.Log != nil {
		t.Log(fmt.Sprintf(format, args...))
	}
}

// unset matches a field of a plan with its zero value.
var unset = regexp.MustCompile(`\w+:(0s?|false|<nil>|\[\]|\[\[\] \[\]\]) ?`)

// LogPlan writes a part of a world's plan to the trace.
func (t *Testbed) LogPlan(name string, plan any) {
	if t.Log != nil {
		t.Log(name + ": " + unset.ReplaceAllString(fmt.Sprintf("%+v", plan), ""))
	}
}

// SeedEvent makes all choices from here on follow from r.
func (t *Testbed) SeedEvent(r uint64) { t.pcg.Seed(r, t.Plan.Seed) }

// Pick draws one of the numbers.
func (t *Testbed) Pick(of ...int) int { return of[t.Rng.IntN(len(of))] }

// OneIn returns true once in n times.
func (t *Testbed) OneIn(n int) bool { return t.Rng.IntN(n) == 0 }

// Build makes the fabric, its NICs and the hosts.
func (t *Testbed) Build() {
	p := t.Plan
	total := 0
	for _, n := range p.Hosts {
		total += n
	}
	var psns *psns
	if t.NewNetwork == nil {
		t.Fabric = t.newSoftFabric(total)
	} else {
		net := t.NewNetwork(t.Net)
		net.Describe(t.Log != nil)
		t.Fabric, psns = net, newPSNs(p.Seed)
	}
	for i := range total {
		t.NICs = append(t.NICs, &NIC{Device: t.Fabric.Device(i), hooks: &t.Hooks, psns: psns})
	}
	rest := t.NICs
	for i, n := range p.Hosts {
		t.buildHost(i, rest[:n])
		rest = rest[n:]
	}
}

func (t *Testbed) buildHost(index int, nics []*NIC) {
	h := &Host{Testbed: t, Index: index, Name: fmt.Sprintf("host %d", index), NICs: nics,
		Memory: NewMemory(t.Layout)}
	var devs []verbs.Device
	for _, d := range nics {
		d.Host = h
		devs = append(devs, d)
	}
	var err error
	h.Dom, err = ibverbx.NewDomain(devs...)
	t.Must("new domain", err)
	h.MR, err = h.Dom.Register(h.Memory.arena, verbs.AccessAll)
	t.Must("register", err)
	text, err := json.Marshal(h.MR.Remote())
	t.Must("marshal memory", err)
	t.Must("unmarshal memory", json.Unmarshal(text, &h.Remote))
	t.Hosts = append(t.Hosts, h)
}

// Steps lets the fabric perform up to n actions, which are drawn.
func (t *Testbed) Steps(n int) {
	for range n {
		if t.Movable() == 0 {
			return
		}
		what := t.Fabric.Step(t)
		t.Moves++
		if t.Log != nil {
			t.Log("  " + what)
		}
		t.inspect()
	}
}

// Movable returns how many actions of the fabric are possible now.
func (t *Testbed) Movable() int { return t.Fabric.Movable() }

// RunFabric lets the fabric perform up to n actions in its own order.
func (t *Testbed) RunFabric(n int) {
	t.Moves += t.Fabric.Run(n)
	t.inspect()
}

// inspect checks the NICs of a network.
func (t *Testbed) inspect() {
	if n, ok := t.Fabric.(Network); ok {
		if err := n.Check(); err != nil {
			t.Broken(NICs, "%v", err)
		}
	}
}

// Audit checks all of the memory.
func (t *Testbed) Audit() {
	for _, h := range t.Hosts {
		if what, at, ok := h.Memory.Audit(); !ok {
			t.Broken(Ownership, "%s has changed: bytes %d to %d of %s", what, at.Off, at.Off+at.N, h.Name)
		}
	}
}

// Close closes what Build has made and checks that nothing is left open. Everything created on the
// domains is already closed; memory and domains may be.
func (t *Testbed) Close() {
	for _, h := range t.Hosts {
		t.mayBeClosed("memory of "+h.Name, h.MR.Close())
		t.mayBeClosed("domain of "+h.Name, h.Dom.Close())
		h.Memory.Free()
	}
	t.Must("close fabric", t.Fabric.Close())
}

// mayBeClosed ends the run if a close fails for another reason than an earlier close.
func (t *Testbed) mayBeClosed(what string, err error) {
	if !errors.Is(err, ibverbx.ErrClosed) {
		t.Must("close "+what, err)
	}
}
