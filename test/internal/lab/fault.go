package lab

import (
	"slices"
	"strings"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Scope is the extent of a fault: what it may make fail.
type Scope uint8

// The scopes.
const (
	OneQP   Scope = iota // one queue pair, and with it its connection
	OneCQ                // a completion queue, and every connection with a queue pair there
	OneLink              // every connection over the NIC
	OneNIC               // the same, and its objects are lost
)

// Fault is a failure of NICs: a row of the table.
type Fault struct {
	Name   string
	Gentle bool // it may delay, but must not fail anything
	Scope  Scope

	in     lists
	atPost bool // act makes later posts fail

	// make draws a fault for a later request, on NICs of package soft; nil if act does everything.
	make func(t *Testbed) soft.Fault
	// act takes effect at once. It returns the function that ends it; nil if it does not last.
	act func(t *Testbed, q *QP) (undo func())
}

// lists are the lists that contain a fault.
type lists uint8

const (
	onSoft lists = 1 << iota
	onNetwork
	ofRails        // of a rail of package soft
	ofNetworkRails // of a rail on a network

	everyRail = ofRails | ofNetworkRails
)

// Wide reports whether a fault exceeds a request of one queue pair.
func (f *Fault) Wide() bool { return f.Scope != OneQP || f.act != nil && !f.atPost }

// These are the names of faults that kits treat specially.
const (
	RefuseSends    = "refuse sends for now"
	RefuseReceives = "refuse receives for now"
	QPDies         = "queue pair dies"
	LinkFlaps      = "link flaps"
	ArrivesLate    = "retries used up, and it arrives late"
)

// These are the faults of NICs of package soft, and of NICs on a network; peers that break the
// rules are separate. Rail faults take rails out and do not concern the requests that meet them: a
// connection with failover survives them while a rail of each kind is left.
var (
	Faults            = listed(onSoft)
	NetworkFaults     = listed(onNetwork)
	RailFaults        = listed(ofRails)
	NetworkRailFaults = listed(ofNetworkRails)
)

func listed(in lists) (list []Fault) {
	for _, f := range table {
		if f.in&in != 0 {
			list = append(list, f)
		}
	}
	return list
}

// table has all faults.
var table = []Fault{
	{Name: "stall", in: onSoft, Gentle: true, make: inject(soft.StallQP)},
	{Name: "delay", in: onSoft, Gentle: true, make: func(*Testbed) soft.Fault {
		return soft.Fault{Kind: soft.Delay, Delay: time.Microsecond}
	}},
	{Name: "packets held", in: onNetwork, Gentle: true, act: func(t *Testbed, q *QP) func() {
		q.network().Hold(t.someTime(4 * moment))
		return nil
	}},
	{Name: "all packets lost for a moment", in: onNetwork, Gentle: true, act: func(t *Testbed, q *QP) func() {
		q.network().Lose(true, true, t.someTime(moment))
		return nil
	}},
	{Name: "packets of one direction lost for a moment", in: onNetwork, Gentle: true,
		act: func(t *Testbed, q *QP) func() {
			in := t.OneIn(2)
			q.network().Lose(in, !in, t.someTime(moment))
			return nil
		}},
	{Name: "send buffer full", in: onNetwork, Gentle: true, act: func(t *Testbed, q *QP) func() {
		q.network().Clog(t.Pick(1, 2, 5))
		return nil
	}},
	{Name: RefuseSends, in: onSoft | onNetwork, Gentle: true, atPost: true, act: refuse(forNow, 1, 2, 5)},
	{Name: RefuseReceives, in: onSoft | onNetwork, Gentle: true, atPost: true,
		act: refuseRecv(forNow, 1, 2, 5)},
	{Name: "refuse sends permanently", in: onSoft | onNetwork, atPost: true, act: refuse(permanently, 1)},
	{Name: "refuse receives permanently", in: onSoft | onNetwork, atPost: true,
		act: refuseRecv(permanently, 1)},
	{Name: "sends are refused in ERR", in: everyRail, atPost: true, act: refuse([]error{verbs.ErrState}, 1)},
	{Name: "sends are refused by a NIC that is gone", in: everyRail, atPost: true,
		act: refuse([]error{verbs.ErrDeviceGone}, 1)},
	{Name: "receives are refused in ERR", in: everyRail, atPost: true,
		act: refuseRecv([]error{verbs.ErrState}, 1)},
	{Name: "receives are refused by a NIC that is gone", in: ofRails, atPost: true,
		act: refuseRecv([]error{verbs.ErrDeviceGone}, 1)},
	{Name: "fail a send", in: onSoft, make: func(t *Testbed) soft.Fault {
		return soft.Fault{Kind: soft.FailSend, Status: t.DrawStatus(), VendorErr: t.Rng.Uint32()}
	}},
	{Name: "fail after the data", in: onSoft, make: injectStatus(soft.FailAfterData)},
	{Name: "fail a receive", in: onSoft, make: injectStatus(soft.FailRecv)},
	{Name: "retries used up before the arrival", in: ofRails, make: inject(soft.FailSend)},
	{Name: "retries used up after the arrival", in: ofRails, make: inject(soft.FailAfterData)},
	{Name: ArrivesLate, in: ofRails, make: func(t *Testbed) soft.Fault {
		f := soft.Fault{Kind: soft.ArriveLate}
		if t.OneIn(3) { // nothing behind a message arrives
			f.Match = func(wr *verbs.SendWR) bool { return !wr.Opcode.HasImm() }
		}
		return f
	}},
	{Name: "a request meets a fatal error", in: ofRails, make: func(*Testbed) soft.Fault {
		return soft.Fault{Kind: soft.FailSend, Status: verbs.StatusFatalErr}
	}},
	{Name: "queue pair dies at a request", in: onSoft | ofRails, make: inject(soft.FailQP)},
	{Name: "link cut at a request", in: onSoft | ofRails, Scope: OneLink, make: inject(soft.CutLink)},
	{Name: "NIC dies at a request", in: onSoft | ofRails, Scope: OneNIC, make: inject(soft.KillNIC)},
	{Name: "completion queue overruns", in: onSoft | ofRails, Scope: OneCQ, make: inject(soft.OverrunCQ)},
	{Name: "completion queue overruns after some requests", in: ofRails, Scope: OneCQ,
		make: func(t *Testbed) soft.Fault {
			return soft.Fault{Kind: soft.OverrunCQ, Match: skip(t.Rng.IntN(8))}
		}},
	{Name: QPDies, in: onSoft | onNetwork | everyRail, act: killQP},
	{Name: "link down", in: onSoft | onNetwork | everyRail, Scope: OneLink, act: cutLink},
	{Name: LinkFlaps, in: onSoft | onNetwork | ofRails, Scope: OneLink, act: flapLink},
	{Name: "NIC dies", in: onSoft | ofRails, Scope: OneNIC, act: killNIC},
	{Name: "all packets lost", in: onNetwork | ofNetworkRails, Scope: OneLink,
		act: func(_ *Testbed, q *QP) func() { return q.network().Lose(true, true, 0) }},
	{Name: "packets of one direction lost", in: onNetwork | ofNetworkRails, Scope: OneLink,
		act: func(t *Testbed, q *QP) func() {
			in := t.OneIn(2)
			return q.network().Lose(in, !in, 0)
		}},
}

// PlaceLate is a fault after which acknowledged data is in memory late. It harms no rail.
var PlaceLate = Fault{Name: "data is in memory late", make: func(t *Testbed) soft.Fault {
	return soft.Fault{Kind: soft.PlaceLate, Count: t.Pick(1, 2, 5, 50)}
}}

// These are the errors of refused posts, for now and permanently.
var (
	forNow      = []error{verbs.ErrNoMemory, verbs.ErrQueueFull}
	permanently = []error{verbs.ErrNotSupported, verbs.ErrInvalid, verbs.ErrState, verbs.ErrDeviceGone}
)

func inject(kind soft.FaultKind) func(*Testbed) soft.Fault {
	return func(*Testbed) soft.Fault { return soft.Fault{Kind: kind} }
}

func injectStatus(kind soft.FaultKind) func(*Testbed) soft.Fault {
	return func(t *Testbed) soft.Fault { return soft.Fault{Kind: kind, Status: t.DrawStatus()} }
}

// skip lets n requests pass.
func skip(n int) func(*verbs.SendWR) bool {
	return func(*verbs.SendWR) bool { n--; return n < 0 }
}

func (t *Testbed) someTime(most time.Duration) time.Duration {
	return time.Duration(1 + t.Rng.Int64N(int64(most)))
}

// DrawStatus draws any status but success.
func (t *Testbed) DrawStatus() verbs.Status { return verbs.Status(1 + t.Rng.IntN(23)) }

// killQP moves a queue pair to ERR, past its tap, because the library has not done it.
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

// DrawFault draws a fitting row of the table.
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
	Conn  *Conn // the connection that it concerns; nil if it concerns others too

	nic       *NIC
	injection *soft.Injection
	undo      func()
}

// Strike injects a fault at a queue pair of a connection.
func (t *Testbed) Strike(q *QP, c *Conn, f *Fault) {
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
		fault.Device, fault.QPNum, fault.Skip = q.NIC.softDevice(), q.Num(), t.Rng.IntN(4)
		s.injection = t.Fabric.(*softFabric).Inject(fault)
	}
	s.count(1)
	t.Strikes = append(t.Strikes, s)
}

// count counts lasting faults on the NIC.
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

// end removes the fault.
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

// EndFaults ends the faults that concern only a connection; all if c is nil.
func (t *Testbed) EndFaults(c *Conn) {
	t.Strikes = slices.DeleteFunc(t.Strikes, func(s *Strike) bool {
		if c != nil && s.Conn != c {
			return false
		}
		s.end()
		return true
	})
}

// Refusing reports whether a NIC may refuse sends for now.
func (t *Testbed) Refusing() bool {
	return slices.ContainsFunc(t.Strikes, func(s *Strike) bool { return s.Fault.Name == RefuseSends })
}

// Injected reports whether an error is a NIC's refusal that a fault has caused.
func Injected(err error) bool { return err != nil && strings.Contains(err.Error(), "injected") }
