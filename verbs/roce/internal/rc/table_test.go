package rc

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
)

var printTable = flag.Bool("table", false, "TestTable measures how flows share networks, and prints it;\n"+
	"others play 10 Gb/s as well")

const s1 = 1000 * ms

// kinds of flows in a row of the table.
const (
	own     = "own"     // two ends of this package
	foreign = "foreign" // ends that behave as rdma_rxe does
	tcp     = "CUBIC"
)

func (n *bottleneck) addKind(kind string, window int) {
	switch kind {
	case tcp:
		n.addCubic()
	default:
		n.add(shape{ours: kind == own, window: window})
	}
}

// TestTable prints how flows share networks.
func TestTable(t *testing.T) {
	if !*printTable {
		t.Skip("run it with -args -table")
	}
	path := func(kinds []string, gbits float64, queue int64) func(n *bottleneck) {
		return func(n *bottleneck) {
			n.rate = gbits * gigabi
			n.room = int(n.bytesIn(queue))
			for _, k := range kinds {
				n.addKind(k, 4<<20)
			}
		}
	}
	with := func(set ...func(n *bottleneck)) func(n *bottleneck) {
		return func(n *bottleneck) {
			for _, f := range set {
				f(n)
			}
		}
	}
	loss := func(share float64) func(n *bottleneck) { return func(n *bottleneck) { n.loss = share } }
	var rows []row
	add := func(name string, set func(n *bottleneck)) {
		rows = append(rows, row{name, set, 2 * s1, 4 * s1, nil})
	}
	for _, k := range []string{own, foreign, tcp} {
		for _, gbits := range []float64{1, 10} {
			for _, share := range []float64{0, 0.0001, 0.001, 0.003, 0.01, 0.03} {
				add(fmt.Sprintf("%s, %v Gb/s, %v %% lost", k, gbits, 100*share),
					with(path([]string{k}, gbits, 2*ms), loss(share)))
			}
		}
		add(k+", 1 % arrive twice", with(path([]string{k}, 1, 2*ms), func(n *bottleneck) { n.repeat = 0.01 }))
		add(k+", 1 % late by up to 0.1 ms", with(path([]string{k}, 1, 2*ms), func(n *bottleneck) {
			n.late, n.lateBy = 0.01, 100*us
		}))
	}
	for _, k := range []string{own, foreign} {
		for _, gbits := range []float64{1, 10} {
			for _, queue := range []int64{250 * us, 2 * ms, 8 * ms} {
				add(fmt.Sprintf("%s beside CUBIC, %v Gb/s, queue %v ms", k, gbits, float64(queue)/1e6),
					path([]string{k, tcp}, gbits, queue))
			}
		}
		for _, flows := range []int{2, 10} {
			add(fmt.Sprintf("%d %s, 1 Gb/s", flows, k), path(slices.Repeat([]string{k}, flows), 1, 2*ms))
			add(fmt.Sprintf("%d %s, 10 Gb/s", flows, k), path(slices.Repeat([]string{k}, flows), 10, 2*ms))
		}
	}
	for _, k := range []string{own, foreign, tcp} {
		for _, delay := range []int64{1, 2, 5, 20} {
			name := fmt.Sprintf("%s, path from 0.1 to %d ms", k, delay)
			rows = append(rows, row{name, path([]string{k}, 1, 8*ms), 3 * s1, s1, func(n *bottleneck) {
				n.delay = delay * ms / 2
				n.run(2 * s1)
			}})
		}
	}
	var out strings.Builder
	out.WriteString("| flows | of the link | each | queue, ms | dropped | sent again |\n" +
		"| --- | --- | --- | --- | --- | --- |\n")
	for i := range rows {
		t.Run(rows[i].name, func(t *testing.T) { out.WriteString(rows[i].play(t).String()) })
	}
	fmt.Print("\n", out.String())
}

// row is a row of the table.
type row struct {
	name   string
	set    func(n *bottleneck)
	before int64
	length int64
	change func(n *bottleneck) // in between
}

// outcome is what has become of a row.
type outcome struct {
	name             string
	shares           []float64 // of the link
	deepest, dropped float64   // seconds; share of packets
	resent           float64   // share of the packets of streams
}

func (r *row) play(t testing.TB) outcome {
	n := newBottleneck(t, gigabi, 1<<20, 50*us)
	r.set(n)
	n.run(r.before)
	if r.change != nil {
		r.change(n)
	}
	n.deepest, n.dropped, n.passed, n.marked = 0, 0, 0, 0
	sent, resent := n.counts()
	carried := n.run(r.length)
	o := outcome{name: r.name}
	for _, bytes := range carried {
		o.shares = append(o.shares, bytes/n.bytesIn(r.length))
	}
	o.deepest = float64(n.deepest) / n.rate
	o.dropped = float64(n.dropped) / float64(n.dropped+n.passed)
	sent2, resent2 := n.counts()
	o.resent = float64(resent2-resent) / max(float64(sent2-sent), 1)
	return o
}

// counts returns how many packets the streams have sent, and sent again.
func (n *bottleneck) counts() (sent, resent uint64) {
	for _, f := range n.flows {
		if f, ok := f.(*stream); ok {
			c := f.ends[0].q.Stats()
			sent, resent = sent+c.Sent, resent+c.Resent
		}
	}
	return sent, resent
}

func (o outcome) String() string {
	sum, each := 0.0, make([]string, len(o.shares))
	for i, s := range o.shares {
		sum += s
		each[i] = fmt.Sprintf("%.0f", 100*s)
	}
	return fmt.Sprintf("| %s | %.0f %% | %s | %.2f | %.2f %% | %.1f %% |\n", o.name, 100*sum,
		strings.Join(each, " "), 1e3*o.deepest, 100*o.dropped, 100*o.resent)
}
