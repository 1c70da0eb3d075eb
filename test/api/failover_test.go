package api_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var failoverSeeds = flag.Uint64("failoverseeds", 2, "runs of each shape in tests of failover")

// failoverLink is a link whose ends offer failover.
func failoverLink(t *testing.T, scheme ibverbx.Scheme, nics, qps int) *vqptest.Link {
	t.Helper()
	return vqptest.NewLink(t, vqptest.LinkConfig{NICs: nics, QP: ibverbx.Config{Scheme: scheme,
		QPsPerDevice: qps,
		FragmentSize: 512, MaxMsgCntPerQP: 32, Failover: true, Failback: -1}})
}

// killQP has a queue pair of an end fail.
func killQP(e *vqptest.End, t *testing.T, rail int) {
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
func eachFailover(t *testing.T, nics, qps int, test func(t *testing.T, l *vqptest.Link, seed uint64)) {
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

// roleOf is what a rail of a link with failover carries.
func roleOf(e *vqptest.End, i int) string {
	rails, data := e.Stats().Rails, e.DataRails()
	switch {
	case i < data:
		return "data"
	case e.Scheme() == ibverbx.Spray && (rails[i].Notify || i > (len(rails)+data)/2):
		return "notifications"
	}
	return "sends"
}

func loseMost(t *testing.T, l *vqptest.Link, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	victims := rng.Perm(len(l.A.QPs()))
	left := map[string]int{}
	for i := range victims {
		left[roleOf(l.A, i)]++
	}
	s := newTraffic(l, seed)
	killed := 0
	s.harm = func() {
		if len(victims) == 0 || rng.IntN(100) != 0 {
			return
		}
		v := victims[0]
		victims = victims[1:]
		if left[roleOf(l.A, v)] == 1 {
			return
		}
		left[roleOf(l.A, v)]--
		killed++
		killQP([]*vqptest.End{l.A, l.B}[rng.IntN(2)], t, v)
		if rng.IntN(3) != 0 {
			s.harm() // perhaps the next one at once
		}
	}
	s.run(t, 20_000)
	for _, e := range []*vqptest.End{l.A, l.B} {
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

// NICs go one after the other, at either end, or the cable between, or the CQ of an end, until one
// pair is left. What was lost in a CQ at the end that sends is known from the peer.
func TestNoErrorWhileOneNICLives(t *testing.T) {
	eachFailover(t, 4, 2, func(t *testing.T, l *vqptest.Link, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 8))
		loseNICs(t, l, rng, rng.Perm(4)[:3], func(nic int) {
			end := []*vqptest.End{l.A, l.B}[rng.IntN(2)]
			switch rng.IntN(3) {
			case 0:
				end.NICs[nic].Kill()
			case 1:
				end.NICs[nic].SetLink(false)
			default:
				l.Fabric.Inject(soft.Fault{Kind: soft.OverrunCQ, Device: l.A.NICs[nic]})
			}
		})
	})
}

// loseNICs has NICs lost under traffic, one after the other.
func loseNICs(t *testing.T, l *vqptest.Link, rng *rand.Rand, victims []int, lose func(nic int)) {
	t.Helper()
	want := uint64(len(victims) * l.A.DataRails() / len(l.A.NICs))
	s := newTraffic(l, rng.Uint64())
	s.harm = func() {
		if len(victims) != 0 && rng.IntN(300) == 0 {
			lose(victims[0])
			victims = victims[1:]
		}
	}
	s.run(t, 10_000)
	if n := l.A.Stats().RailsLost; n < want {
		t.Errorf("%d rails were lost, want %d at least", n, want)
	}
}

// Queue pairs die all the time, and come back: on one connection more often than a byte counts. In
// the end all of them serve again, and nothing has leaked.
func TestRailsComeBackHundredsOfTimes(t *testing.T) {
	times := uint64(300)
	if testing.Short() {
		times = 100
	}
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for seed := range *failoverSeeds {
			t.Run(fmt.Sprintf("%v/%d", scheme, seed), func(t *testing.T) {
				var events uint64
				l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: scheme,
					QPsPerDevice: 2,
					FragmentSize: 512, MaxMsgCntPerQP: 32, Failover: true, Failback: time.Microsecond,
					Events: ibverbx.Events{Rail: func(ibverbx.RailEvent) { events++ }}}})
				rng := rand.New(rand.NewPCG(seed, 10))
				if seed%2 == 1 {
					l.A, l.B = l.B, l.A // the end that does not lead sends
				}
				s := newTraffic(l, seed)
				s.harm = func() {
					if victim := rng.IntN(30); victim < len(l.A.QPs()) && l.A.Stats().RailsLost < times &&
						working(l, roleOf(l.A, victim), victim) != 0 {
						killQP([]*vqptest.End{l.A, l.B}[rng.IntN(2)], t, victim)
					}
				}
				s.run(t, 120*int(times))
				awaitAll(l, t)
				a, b := l.A.Stats(), l.B.Stats()
				if a.RailsLost < times || a.RailsBack != a.RailsLost || b.RailsBack != b.RailsLost ||
					events != 2*(a.RailsLost+b.RailsLost) {
					t.Errorf("%d events, %d and %d lost, %d and %d back", events, a.RailsLost, b.RailsLost,
						a.RailsBack, b.RailsBack)
				}
			})
		}
	}
}

// working is how many rails of a role work at both ends, but for one.
func working(l *vqptest.Link, role string, but int) (n int) {
	a, b := l.A.Stats().Rails, l.B.Stats().Rails
	qa, qb := l.A.QPs(), l.B.QPs()
	for i := range a {
		if i != but && roleOf(l.A, i) == role && !a[i].Down && !b[i].Down &&
			qa[i].State() == verbs.StateRTS && qb[i].State() == verbs.StateRTS {
			n++
		}
	}
	return n
}

// awaitAll keeps a little traffic going until all rails are in service.
func awaitAll(l *vqptest.Link, t *testing.T) {
	t.Helper()
	down := func(e *vqptest.End) (n int) {
		for _, r := range e.Stats().Rails {
			if r.Down {
				n++
			}
		}
		return n
	}
	deadline := time.Now().Add(10 * time.Second)
	for down(l.A)+down(l.B) != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d and %d rails do not come back: %+v", down(l.A), down(l.B), l.A.Stats())
		}
		for _, e := range []*vqptest.End{l.A, l.B} {
			e.Send(t, e.Write(verbs.OpRDMAWrite, 0, receivesAt, 8))
			e.Wait(t, 1)
		}
	}
}

// While a port is down nothing tries to bring its rails back: to connect a queue pair takes the
// kernel seconds then, in which the program stands still. Once it is up, they come back.
func TestRailsStayAwayWhileAPortIsDown(t *testing.T) {
	eitherEnd(t, func(t *testing.T, scheme ibverbx.Scheme, of func(*vqptest.Link) *vqptest.End) {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: scheme,
			QPsPerDevice: 2, FragmentSize: 512, Failover: true, Failback: time.Microsecond,
			Conn: ibverbx.ConnConfig{Timeout: 4, RetryCount: 1}}})
		at := of(l)
		at.NICs[0].SetLink(false)
		for range 300 {
			for _, e := range []*vqptest.End{l.A, l.B} {
				e.Send(t, e.Write(verbs.OpRDMAWrite, 0, receivesAt, 4096))
				e.Wait(t, 1)
				for i, r := range e.Stats().Rails {
					if state := e.QPs()[i].State(); r.Down && state != verbs.StateErr {
						t.Fatalf("rail %d is in %v", i, state)
					}
				}
			}
		}
		if l.A.Stats().RailsLost == 0 || l.B.Stats().RailsLost == 0 {
			t.Error("no rail was lost")
		}
		at.NICs[0].SetLink(true)
		awaitAll(l, t)
	})
}

// An error says why nothing has gone on: nothing is left, or the peer does not offer it. What took
// a queue pair out says what its port is like.
func TestErrorsSayWhyNothingGoesOn(t *testing.T) {
	for _, tt := range []struct {
		name        string
		offers, own bool
		kill        int
		says        string
	}{
		{"the last", true, true, 2, "no other queue pair can go on for it: "},
		{"the first", false, true, 1, "nothing goes on: the peer does not offer failover"},
		{"not asked for", true, false, 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var events []ibverbx.RailEvent
			cfg := ibverbx.Config{QPsPerDevice: 1, Failover: tt.own, Failback: -1,
				Events: ibverbx.Events{Rail: func(e ibverbx.RailEvent) { events = append(events, e) }}}
			peer := ibverbx.Config{QPsPerDevice: 1, Failover: tt.offers, Failback: -1}
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: cfg, PeerQP: &peer})
			if got, want := l.A.Stats().Failover, tt.offers && tt.own; got != want {
				t.Errorf("in force: %v, want %v", got, want)
			}
			for i := range tt.kill {
				l.A.NICs[i].Kill()
				l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 0, receivesAt, 4096))
				l.A.Wait(t, 1)
			}
			var failed *ibverbx.FailedError
			if err := l.A.Err(); !errors.As(err, &failed) || !strings.HasPrefix(failed.Failover, tt.says) ||
				!strings.Contains(err.Error(), tt.says) || (tt.says == "") != (failed.Failover == "") {
				t.Errorf("%v: want %q", err, tt.says)
			}
			for _, e := range events {
				if !errors.Is(e.Cause, verbs.ErrDeviceGone) {
					t.Errorf("%v: does not say that the NIC is gone", e)
				}
			}
			if (len(events) != 0) != (tt.kill == 2) {
				t.Errorf("says %v", events)
			}
		})
	}
}

// However many queue pairs are lost, there is a receive for each word about them, with queues of
// any depth: a word that found none would hold up the data behind it.
func TestWordsFindReceives(t *testing.T) {
	for _, depth := range []int{32, 128} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 4, QP: ibverbx.Config{Scheme: ibverbx.Spray,
			QPsPerDevice:   2,
			MaxMsgCntPerQP: depth, Failover: true, Failback: -1}})
		for rail := l.A.DataRails(); rail > 1; {
			for id := range uint64(8) {
				l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 64))
			}
			vqptest.IDs(t, l.A.Wait(t, 8), verbs.StatusSuccess)
			rail--
			killQP(l.A, t, rail)
		}
	}
}

// A peer that does not poll for a while lets no word fail, even where NICs do not wait for
// receives for ever.
func TestWordsWaitForNoPoll(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: ibverbx.Spray,
		QPsPerDevice:   8,
		MaxMsgCntPerQP: 32, Failover: true, Failback: -1, Conn: ibverbx.ConnConfig{RNRRetry: 6}}})
	for id := range uint64(32) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 64))
	}
	l.A.NICs[1].Kill()
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		l.A.Pump(t)
	}
	vqptest.IDs(t, l.A.Wait(t, 32), verbs.StatusSuccess)
	if n, err := l.A.Stats().RailsLost, l.A.Err(); n < 8 || err != nil {
		t.Errorf("%d rails were lost, want 8 at least; error %v", n, err)
	}
}

// SENDs go both ways over a queue pair that has come back, as often as it does.
func TestSendsGoOverAServiceThatIsBack(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: scheme,
				QPsPerDevice:   1,
				MaxMsgCntPerQP: 16, Failover: true, Failback: time.Millisecond}})
			carrier := func() (rail int) {
				before := l.A.Stats().Rails
				sendBothWays(t, l)
				for i, r := range l.A.Stats().Rails {
					if r.Notifications != before[i].Notifications {
						rail = i
					}
				}
				return rail
			}
			for range 6 {
				killQP(l.A, t, carrier())
				back := l.A.Stats().RailsBack
				for deadline := time.Now().Add(5 * time.Second); l.A.Stats().RailsBack == back; {
					if sendBothWays(t, l); time.Now().After(deadline) {
						t.Fatalf("it does not come back: %+v", l.A.Stats())
					}
				}
			}
		})
	}
}

// sendBothWays has each end send a message that the other receives.
func sendBothWays(t *testing.T, l *vqptest.Link) {
	t.Helper()
	ends := []*vqptest.End{l.A, l.B}
	for _, e := range ends {
		into := ibverbx.RecvWR{ID: 1, Local: e.Other.MR.Slice(4096, 64)}
		if _, err := e.Other.PostRecv(into); err != nil {
			t.Fatal(err)
		}
		e.Send(t, ibverbx.SendWR{ID: 2, Opcode: verbs.OpSend, Local: e.MR.Slice(0, 32)})
	}
	for _, e := range ends {
		vqptest.IDs(t, e.Wait(t, 2), verbs.StatusSuccess)
	}
}

// A CQ may die when its rails are lost already, and its death may be told twice: they never come
// back, a reset says so, and all can be closed.
func TestACQThatDiesTwice(t *testing.T) {
	for _, before := range []bool{false, true} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("lost before %v, reset %v", before, reset), func(t *testing.T) {
				l := newTimedLink(t, backAfterASecond(ibverbx.DQPLB))
				for i := 0; before && i < len(l.A.RailQPs); i += 2 { // rails take turns on two NICs
					killQP(l.A, t, i)
				}
				for range 3 {
					l.after(0)
					l.A.CQ().FailDevice(l.A.NICs[0].ID(), verbs.ErrOverrun)
				}
				l.after(time.Hour)
				l.expect(t, 3, 0)
				sendBothWays(t, l.Link)
				if reset {
					if err := l.A.Reset(); err == nil {
						t.Error("a queue pair whose completions cannot come was reset")
					}
				}
				if err := l.A.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
