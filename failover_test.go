package ibverbx_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var failoverSeeds = flag.Uint64("failoverseeds", 2, "runs of each shape in tests of failover")

// failoverLink is a link whose ends offer failover.
func failoverLink(t *testing.T, scheme ibverbx.Scheme, nics, qps int) *link {
	t.Helper()
	return newLink(t, linkConfig{nics: nics, qp: ibverbx.Config{Scheme: scheme, QPsPerDevice: qps,
		MaxMsgSize: 512, MaxMsgCntPerQP: 32, Failover: true}})
}

// killQP has a queue pair of an end fail.
func (e *end) killQP(t *testing.T, rail int) {
	t.Helper()
	err := e.QPs()[rail].Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
	if err != nil {
		t.Fatal(err)
	}
}

// Queue pairs die one after the other, at either end, under traffic of all kinds, until one data
// rail and one of each kind of service is left: nobody sees more than counters.
func TestNoErrorWhileOneRailLives(t *testing.T) {
	for _, shape := range []struct{ nics, qps int }{{1, 2}, {2, 2}, {4, 1}, {3, 4}} {
		t.Run(fmt.Sprintf("%dnics/%dqps", shape.nics, shape.qps), func(t *testing.T) {
			eachFailover(t, shape.nics, shape.qps, loseMost)
		})
	}
}

// eachFailover runs a test in both schemes, and as often as the flag says.
func eachFailover(t *testing.T, nics, qps int, test func(t *testing.T, l *link, seed uint64)) {
	t.Helper()
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for seed := range *failoverSeeds {
			t.Run(fmt.Sprintf("%v/%d", scheme, seed), func(t *testing.T) {
				t.Helper()
				test(t, failoverLink(t, scheme, nics, qps), seed)
			})
		}
	}
}

func loseMost(t *testing.T, l *link, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	victims := rng.Perm(len(l.a.QPs()))
	data := l.a.DataRails()
	stats := l.a.Stats()
	left := map[string]int{}
	role := func(i int) string {
		switch {
		case i < data:
			return "data"
		case l.a.Scheme() == ibverbx.Spray && (stats.Rails[i].Notify || i > (len(stats.Rails)+data)/2):
			return "notifications"
		}
		return "sends"
	}
	for i := range stats.Rails {
		left[role(i)]++
	}
	s := newSoak(l, seed)
	killed := 0
	s.harm = func() {
		if len(victims) == 0 || rng.IntN(100) != 0 {
			return
		}
		v := victims[0]
		victims = victims[1:]
		if left[role(v)] == 1 {
			return
		}
		left[role(v)]--
		killed++
		[]*end{l.a, l.b}[rng.IntN(2)].killQP(t, v)
		if rng.IntN(3) != 0 {
			s.harm() // perhaps the next one at once
		}
	}
	s.run(t, 20_000)
	for _, e := range []*end{l.a, l.b} {
		down := 0
		for _, r := range e.Stats().Rails {
			if r.Down {
				down++
			}
		}
		// a spare that is idle is not noticed
		if down > killed || e.Stats().RailsLost != uint64(down) || killed != 0 && down == 0 {
			t.Errorf("%d rails were killed; %d are down, %d lost", killed, down, e.Stats().RailsLost)
		}
	}
}

// NICs go one after the other, at either end or the cable between, until one pair is left.
func TestNoErrorWhileOneNICLives(t *testing.T) {
	eachFailover(t, 4, 2, func(t *testing.T, l *link, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 8))
		loseNICs(t, l, rng, rng.Perm(4)[:3], func(nic int) {
			end := []*end{l.a, l.b}[rng.IntN(2)]
			if rng.IntN(2) == 0 {
				end.nics[nic].Kill()
			} else {
				end.nics[nic].SetLink(false)
			}
		})
	})
}

// A CQ that dies takes the rails of its device along and nothing else. What was lost in it at the
// end that sends is known from the peer.
func TestNoErrorWhenTheSendersCQDies(t *testing.T) {
	eachFailover(t, 3, 2, func(t *testing.T, l *link, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 9))
		loseNICs(t, l, rng, rng.Perm(3)[:2], func(nic int) {
			l.fabric.Inject(soft.Fault{Kind: soft.OverrunCQ, Device: l.a.nics[nic]})
		})
	})
}

// loseNICs has NICs lost under traffic, one after the other.
func loseNICs(t *testing.T, l *link, rng *rand.Rand, victims []int, lose func(nic int)) {
	t.Helper()
	want := uint64(len(victims) * l.a.DataRails() / len(l.a.nics))
	s := newSoak(l, rng.Uint64())
	s.harm = func() {
		if len(victims) != 0 && rng.IntN(300) == 0 {
			lose(victims[0])
			victims = victims[1:]
		}
	}
	s.run(t, 10_000)
	if n := l.a.Stats().RailsLost; n < want {
		t.Errorf("%d rails were lost, want %d at least", n, want)
	}
}
