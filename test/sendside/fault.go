package sendside

import (
	"strings"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// strike is a fault in force.
type strike struct {
	name      string
	injection *soft.Injection
	undo      func()
}

// end takes the fault back.
func (s *strike) end() {
	if s.injection != nil {
		s.injection.Remove()
	}
	if s.undo != nil {
		s.undo()
	}
}

// faultRow is a row of the table of faults: how to make one that strikes a queue pair.
type faultRow struct {
	name   string
	gentle bool // it may delay and must not fail anything
	make   func(b *bed) soft.Fault
	also   func(b *bed, q *wire) (undo func()) // what it does beyond the one link, and how that ends
}

// faultRows is everything that goes wrong with NICs. Peers that break the rules are another matter.
var faultRows = []faultRow{
	{"stall", true, func(*bed) soft.Fault { return soft.Fault{Kind: soft.StallQP} }, nil},
	{"delay", true, func(*bed) soft.Fault { return soft.Fault{Kind: soft.Delay, Delay: time.Microsecond} },
		nil},
	{"refuse sends for now", true, func(b *bed) soft.Fault {
		return soft.Fault{Kind: soft.RefuseSend, Err: b.transient(), Count: b.pick(1, 2, 5)}
	}, nil},
	{"fail a send", false,
		func(b *bed) soft.Fault { return soft.Fault{Kind: soft.FailSend, Status: b.status()} }, nil},
	{"fail after the data", false, func(b *bed) soft.Fault {
		return soft.Fault{Kind: soft.FailAfterData,
			Status: b.status()}
	}, nil},
	{"fail a receive", false,
		func(b *bed) soft.Fault { return soft.Fault{Kind: soft.FailRecv, Status: b.status()} }, nil},
	{"refuse sends for good", false,
		func(b *bed) soft.Fault { return soft.Fault{Kind: soft.RefuseSend, Err: b.refusal()} }, nil},
	{"refuse receives for good", false,
		func(b *bed) soft.Fault { return soft.Fault{Kind: soft.RefuseRecv, Err: b.refusal()} }, nil},
	{"queue pair dies", false, func(*bed) soft.Fault { return soft.Fault{Kind: soft.FailQP} }, nil},
	{"link cut at a request", false, func(*bed) soft.Fault { return soft.Fault{Kind: soft.CutLink} },
		blameNIC},
	{"NIC dies at a request", false, func(*bed) soft.Fault { return soft.Fault{Kind: soft.KillNIC} },
		blameNIC},
	{"completion queue overruns", false, func(*bed) soft.Fault { return soft.Fault{Kind: soft.OverrunCQ} },
		blameNIC},
	{"link down", false, nil, cutLink},
	{"NIC dies", false, nil, killNIC},
}

func (b *bed) transient() error {
	return []error{verbs.ErrNoMemory, verbs.ErrQueueFull}[b.rng.IntN(2)]
}

func (b *bed) refusal() error {
	return []error{verbs.ErrNotSupported, verbs.ErrInvalid, verbs.ErrState,
		verbs.ErrDeviceGone}[b.rng.IntN(4)]
}

// status is any status but success.
func (b *bed) status() verbs.Status { return verbs.Status(1 + b.rng.IntN(23)) }

// strike puts a fault in force. What changes the world for many is rarer.
func (b *bed) strike(l *link, gentle bool) {
	wide := b.one(2)
	var row faultRow
	for {
		row = faultRows[b.rng.IntN(len(faultRows))]
		if row.gentle == gentle && (wide || row.also == nil) &&
			(b.plan.rails > 1 || row.name != "completion queue overruns") {
			break // what an overrun loses a single queue pair would be waited for by the clock
		}
	}
	if len(l.wires) == 0 {
		return
	}
	q := l.wires[b.rng.IntN(len(l.wires))]
	s := &strike{name: row.name}
	b.logf("  %s: %s qp %d of %s", row.name, q.nic.Name(), q.Num(), l.name)
	if !gentle {
		l.because(row.name)
	}
	if row.also != nil {
		s.undo = row.also(b, q)
	}
	if row.make != nil {
		f := row.make(b)
		f.Device, f.QPNum, f.Skip = q.nic.Device, q.Num(), b.rng.IntN(4)
		s.injection = b.fabric.Inject(f)
	}
	b.active = append(b.active, s)
}

// blameNIC notes that every link over a NIC may fail.
func blameNIC(b *bed, q *wire) func() {
	q.nic.host.struck = true
	for _, l := range b.links {
		if l.hosts[0] == q.nic.host || l.hosts[1] == q.nic.host {
			l.because("what was done to " + q.nic.Name())
		}
	}
	return nil
}

func cutLink(b *bed, q *wire) func() {
	blameNIC(b, q)
	q.nic.SetLink(false)
	return func() { q.nic.SetLink(true) }
}

func killNIC(b *bed, q *wire) func() {
	blameNIC(b, q)
	q.nic.Kill()
	return func() { q.nic.Restore() }
}

// heal ends one of the faults in force.
func (b *bed) heal() {
	if len(b.active) == 0 {
		return
	}
	i := b.rng.IntN(len(b.active))
	b.logf("  heals: %s", b.active[i].name)
	b.active[i].end()
	b.active = append(b.active[:i], b.active[i+1:]...)
}

// endFaults ends all.
func (b *bed) endFaults() {
	for _, s := range b.active {
		s.end()
	}
	b.active = nil
}

// refusing reports whether a NIC may refuse for now.
func (b *bed) refusing() bool {
	for _, s := range b.active {
		if s.name == "refuse sends for now" {
			return true
		}
	}
	return false
}

// injected says whether an error is a NIC's refusal that was made on purpose: a single queue pair
// passes it on as it is.
func injected(err error) bool { return strings.Contains(err.Error(), "injected") }
