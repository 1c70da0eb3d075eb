package failover

import (
	"errors"
	"fmt"
	"time"
)

// spared reports whether another rail of the role of rail i is healthy at both ends.
func (w *world) spared(i int) bool {
	for at, q := range w.ends[0].rails {
		to := w.ends[1].rails[at]
		if at != i && q.rail.role == w.ends[0].rails[i].rail.role && q.up && to.up && q.own == to.peer &&
			q.rail.Stage() == StageLive && to.rail.Stage() == StageLive {
			return true
		}
	}
	return false
}

// strike has a rail fail that others can stand in for.
func (w *world) strike() {
	e := w.ends[w.rng.IntN(2)]
	i := w.rng.IntN(len(e.rails))
	if !w.spared(i) || e.failed != nil {
		return
	}
	switch kind := w.rng.IntN(96); {
	case kind == 0:
		e.killCQ(i)
	case kind < 32 && e.rails[i].rail.Works() && e.canLose(e.rails[i].rail):
		e.lose(i, errors.New("its port is down"))
	default:
		e.killQP(i)
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

// quiet reports whether all rails that can are back, and nothing is outstanding.
func (w *world) quiet() bool {
	for _, e := range w.ends {
		for i, q := range e.rails {
			to := e.peer().rails[i]
			lost := q.rail.Stage() != StageLive
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
