package failover

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

// The flags are those of the simulations, so that planted bugs are hunted here too.
var (
	worlds = flag.Uint64("seeds", 2_000, "how many worlds to play")
	single = flag.Uint64("seed", 0, "play the world of this seed alone")
	hunted = flag.Bool("hunt", false, "print the first world that is broken in the form of the simulations")
)

// Two ends are played against each other without any NIC: rails are lost at every moment, controls
// are lost with their rail, delayed, and reordered between rails. Both ends agree, nothing is lost
// or carried out twice, nothing lands after it was reported, and all rails come back.
func TestTwoEnds(t *testing.T) {
	first, last := uint64(1), *worlds
	if *single != 0 {
		first, last = *single, *single
	}
	failed := uint64(0)
	for seed := first; seed <= last; seed++ {
		over, err := play(seed)
		if err != nil {
			if *hunted {
				fmt.Printf("found: seed %d, event 0: broken: %v\n", seed, err)
				os.Exit(1)
			}
			t.Fatalf("seed %d: %v\n\nreplay: go test ./internal/failover -run TwoEnds -args -seed %d", seed,
				err, seed)
		}
		if over {
			failed++
		}
	}
	// Only where a CQ dies with messages in it the connection may fail.
	if failed > last/50+1 {
		t.Errorf("%d of %d connections have failed", failed, last)
	}
}

// step does one thing at random.
func (w *world) step() error {
	e := w.ends[w.rng.IntN(2)]
	i := w.rng.IntN(len(e.rails))
	if e.failed != nil {
		return nil
	}
	switch w.rng.IntN(10) {
	case 0:
		w.now = w.now.Add(time.Duration(w.rng.IntN(int(time.Millisecond))))
	case 1:
		e.postRecvs(i)
	case 2, 3, 4:
		return e.carryOut(i)
	case 5, 6, 7:
		return e.poll(i)
	case 8:
		e.postStaged(i)
	default:
		return e.progress()
	}
	return nil
}

// play plays the world of a seed, and returns what is broken. failed says that the connection has
// failed because a CQ has died with messages in it.
func play(seed uint64) (failed bool, err error) {
	w := newWorld(seed)
	// In short worlds rails are lost while others still settle; in long ones they come back, and
	// are lost again.
	events, pause := 400+w.rng.IntN(800), 40
	if seed%2 == 1 {
		events, pause = 4000+w.rng.IntN(8000), 240
	}
	for range events {
		switch k := w.rng.IntN(pause); {
		case k == 0:
			w.strike()
		case k <= pause/8:
			w.ends[w.rng.IntN(2)].post()
		default:
			err = w.step()
		}
		if over, err := w.over(err); over {
			return true, err
		}
	}
	w.calm = true
	for _, e := range w.ends {
		if w.unused { // a NIC that failed holds nothing that says so
			e.p.SuspectIdle()
		}
	}
	for range 200 { // everything is settled, and all rails come back
		for range 400 {
			err := w.step()
			if over, err := w.over(err); over {
				return true, err
			}
		}
		w.now = w.now.Add(100 * time.Millisecond)
		if w.quiet() {
			return false, w.check()
		}
	}
	return false, w.fail("the rails do not come back: %s", w)
}

// over reports whether the world has ended, because something is broken or an end has failed.
func (w *world) over(err error) (bool, error) {
	for _, e := range w.ends {
		if err == nil {
			err = e.p.Check()
		}
		if e.failed != nil {
			if err == nil && !e.mayFail {
				err = w.fail("end %d has failed: %v", e.id, e.failed)
			}
			return true, err
		}
	}
	return err != nil, err
}

// quiet reports whether all rails that can are back and can stand in for others, and nothing is
// outstanding.
func (w *world) quiet() bool {
	for _, e := range w.ends {
		for i, q := range e.rails {
			to := e.peer().rails[i]
			lost := q.rail.Stage() != StageLive || !q.up
			if !q.dead && !to.dead && lost || len(q.wire)+len(q.cq)+len(q.staged) != 0 {
				return false
			}
		}
		if e.p.Paused() || e.p.ControlsQueued() {
			return false
		}
	}
	return true
}

// check checks that both ends agree, and that nothing is lost.
func (w *world) check() error {
	for _, e := range w.ends {
		for i, q := range e.rails {
			if to := e.peer().rails[i]; q.rail.epoch != to.rail.epoch && !q.dead && !to.dead {
				return w.fail("rail %d is in epochs %d and %d", i, q.rail.epoch, to.rail.epoch)
			}
		}
		if e.p.serving != e.peer().p.serving || e.p.serving != e.serving {
			return w.fail("the ends are served by %v and %v", e.p.serving, e.peer().p.serving)
		}
		for n := uint64(1); n < e.next; n++ {
			switch k := e.works[n]; {
			case !k.done:
				return w.fail("end %d: work %d has no end", e.id, n)
			case k.unknown:
			case k.landed == 0 || k.message && k.handled != 1:
				return w.fail("end %d: work %d landed %d times, handled %d times", e.id, n, k.landed,
					k.handled)
			}
		}
	}
	return nil
}

// String says how far the rails are.
func (w *world) String() (s string) {
	for _, e := range w.ends {
		for i, q := range e.rails {
			s += fmt.Sprintf("end %d rail %d: stage %d, epoch %d, up %v, dead %v, %d on the wire, "+
				"%d sends and %d receives outstanding; ", e.id, i,
				q.rail.stage, q.rail.epoch, q.up, q.dead, len(q.wire), q.rail.held, q.recvs)
		}
	}
	return s
}
