package lab

import (
	"slices"
	"strings"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Scope is what a fault may make fail.
type Scope uint8

// The scopes.
const (
	OneQP   Scope = iota // one queue pair, and with it its connection
	OneCQ                // a completion queue, and every connection with a queue pair there
	OneLink              // every connection over the NIC
	OneNIC               // likewise, and its objects are lost
)

// Fault is something that goes wrong with NICs: a row of the table.
type Fault struct {
	Name   string
	Gentle bool // it may delay, and must not fail anything
	Scope  Scope

	atPost bool // act has posts to come refused

	// make draws what is injected at a request to come; nil when act does it all.
	make func(t *Testbed) soft.Fault
	// act does something at once. It returns how that ends; nil when it does not last.
	act func(t *Testbed, q *QP) (undo func())
}

// Wide says whether a fault is more than something that happens at a request of one queue pair.
func (f *Fault) Wide() bool { return f.Scope != OneQP || f.act != nil && !f.atPost }

// The names of faults that kits treat apart.
const (
	RefuseSends    = "refuse sends for now"
	RefuseReceives = "refuse receives for now"
	QPDies         = "queue pair dies"
	LinkFlaps      = "link flaps"
)

// Faults is everything that goes wrong with NICs of package soft. Peers that break the rules are
// another matter.
var Faults = []Fault{
	{Name: "stall", Gentle: true, make: inject(soft.StallQP)},
	{Name: "delay", Gentle: true, make: func(*Testbed) soft.Fault {
		return soft.Fault{Kind: soft.Delay, Delay: time.Microsecond}
	}},
	{Name: RefuseSends, Gentle: true, make: refuseForNow(soft.RefuseSend)},
	{Name: RefuseReceives, Gentle: true, make: refuseForNow(soft.RefuseRecv)},
	{Name: "fail a send", make: injectStatus(soft.FailSend)},
	{Name: "fail after the data", make: injectStatus(soft.FailAfterData)},
	{Name: "fail a receive", make: injectStatus(soft.FailRecv)},
	{Name: "refuse sends permanently", make: refusePermanently(soft.RefuseSend)},
	{Name: "refuse receives permanently", make: refusePermanently(soft.RefuseRecv)},
	{Name: "queue pair dies at a request", make: inject(soft.FailQP)},
	{Name: "link cut at a request", Scope: OneLink, make: inject(soft.CutLink)},
	{Name: "NIC dies at a request", Scope: OneNIC, make: inject(soft.KillNIC)},
	{Name: "completion queue overruns", Scope: OneCQ, make: inject(soft.OverrunCQ)},
	{Name: QPDies, act: killQP},
	{Name: "link down", Scope: OneLink, act: cutLink},
	{Name: LinkFlaps, Scope: OneLink, act: flapLink},
	{Name: "NIC dies", Scope: OneNIC, act: killNIC},
}

// What posts are refused with, for now and permanently.
var (
	transientErrors = []error{verbs.ErrNoMemory, verbs.ErrQueueFull}
	permanentErrors = []error{verbs.ErrNotSupported, verbs.ErrInvalid, verbs.ErrState, verbs.ErrDeviceGone}
)

func inject(kind soft.FaultKind) func(*Testbed) soft.Fault {
	return func(*Testbed) soft.Fault { return soft.Fault{Kind: kind} }
}

func injectStatus(kind soft.FaultKind) func(*Testbed) soft.Fault {
	return func(t *Testbed) soft.Fault { return soft.Fault{Kind: kind, Status: t.DrawStatus()} }
}

func refuseForNow(kind soft.FaultKind) func(*Testbed) soft.Fault {
	return func(t *Testbed) soft.Fault {
		return soft.Fault{Kind: kind, Err: transientErrors[t.Rng.IntN(len(transientErrors))],
			Count: t.Pick(1, 2, 5)}
	}
}

func refusePermanently(kind soft.FaultKind) func(*Testbed) soft.Fault {
	return func(t *Testbed) soft.Fault {
		return soft.Fault{Kind: kind, Err: permanentErrors[t.Rng.IntN(len(permanentErrors))]}
	}
}

// DrawStatus draws any status but success.
func (t *Testbed) DrawStatus() verbs.Status { return verbs.Status(1 + t.Rng.IntN(23)) }

// killQP moves a queue pair to ERR, past its tap: it is not the library's doing.
func killQP(_ *Testbed, q *QP) func() {
	_ = q.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
	return nil
}

func cutLink(_ *Testbed, q *QP) func() {
	q.NIC.SetLink(false)
	return func() { q.NIC.SetLink(true) }
}

func flapLink(t *Testbed, q *QP) func() {
	q.NIC.SetLink(false)
	t.Steps(1 + t.Rng.IntN(10))
	q.NIC.SetLink(true)
	return nil
}

func killNIC(_ *Testbed, q *QP) func() {
	d := q.NIC.softDevice()
	d.Kill()
	return d.Restore
}

// DrawFault draws a row of the table that fits.
func (t *Testbed) DrawFault(table []Fault, fits func(*Fault) bool) *Fault {
	for {
		if f := &table[t.Rng.IntN(len(table))]; fits(f) {
			return f
		}
	}
}

// Strike is a fault in force.
type Strike struct {
	Fault *Fault
	Conn  *Conn // the connection that it concerns; nil when that is not all

	nic       *NIC
	injection *soft.Injection
	undo      func()
}

// Strike puts a fault in force on a queue pair of a connection. refine may change what is injected;
// it may be nil.
func (t *Testbed) Strike(q *QP, c *Conn, f *Fault, refine func(*soft.Fault)) {
	s := &Strike{Fault: f, Conn: c, nic: q.NIC}
	if f.Wide() {
		s.Conn = nil
	}
	if f.Scope != OneQP {
		q.NIC.Host.Struck = true
	}
	if f.act != nil {
		s.undo = f.act(t, q)
	}
	if f.make != nil {
		fault := f.make(t)
		if refine != nil {
			refine(&fault)
		}
		fault.Device, fault.QPNum, fault.Skip = q.NIC.softDevice(), q.Num(), t.Rng.IntN(4)
		s.injection = t.Fabric.(*softFabric).Inject(fault)
	}
	s.count(1)
	t.Strikes = append(t.Strikes, s)
}

// Inject puts in force what is no row of the table, on NICs of package soft.
func (t *Testbed) Inject(name string, c *Conn, q *QP, f soft.Fault) {
	f.Device, f.QPNum = q.NIC.softDevice(), q.Num()
	t.Strikes = append(t.Strikes, &Strike{Fault: &Fault{Name: name}, Conn: c, nic: q.NIC,
		injection: t.Fabric.(*softFabric).Inject(f)})
}

// count notes on the NIC what lasts.
func (s *Strike) count(n int) {
	if s.undo == nil && s.injection == nil {
		return
	}
	switch s.Fault.Scope {
	case OneLink:
		s.nic.Down += n
	case OneNIC:
		s.nic.Dead += n
		s.nic.Died = true
	}
}

// end takes the fault back.
func (s *Strike) end() {
	if s.injection != nil {
		s.injection.Remove()
	}
	if s.undo != nil {
		s.undo()
	}
	s.count(-1)
}

// Heal ends one of the faults in force.
func (t *Testbed) Heal() {
	if len(t.Strikes) == 0 {
		return
	}
	i := t.Rng.IntN(len(t.Strikes))
	t.Logf("  heals: %s", t.Strikes[i].Fault.Name)
	t.Strikes[i].end()
	t.Strikes = slices.Delete(t.Strikes, i, i+1)
}

// EndFaults ends those that concern nothing but a connection; all when c is nil.
func (t *Testbed) EndFaults(c *Conn) {
	t.Strikes = slices.DeleteFunc(t.Strikes, func(s *Strike) bool {
		if c != nil && s.Conn != c {
			return false
		}
		s.end()
		return true
	})
}

// Refusing says whether a NIC may refuse sends for now.
func (t *Testbed) Refusing() bool {
	return slices.ContainsFunc(t.Strikes, func(s *Strike) bool { return s.Fault.Name == RefuseSends })
}

// Injected says whether an error is the refusal of a NIC that a fault made refuse.
func Injected(err error) bool { return err != nil && strings.Contains(err.Error(), "injected") }
