package sendside

import (
	"slices"

	"ibverbx/test/internal/lab"
)

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
