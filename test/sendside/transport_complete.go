package sendside

import (
	"errors"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// group is a completion: of one operation, or shared.
type group struct {
	w     *world
	comp  transport.Completion
	left  int   // operations, and counts of the program's own, that are still to come
	ops   []*op // that were accepted
	fired bool
	wants int
	own   bool // the program is counting
	then  func()
}

// newGroup makes a completion, or finds one that is to be shared and has room.
func (w *world) newGroup() *group {
	if w.OneIn(4) {
		for _, g := range w.groups {
			if g.wants > 1 && g.left > 0 {
				g.left--
				return g
			}
		}
	}
	g := &group{w: w, wants: 1}
	if w.OneIn(5) {
		g.wants = 2 + w.Rng.IntN(3)
	}
	g.left = g.wants - 1
	g.comp.Init(g.wants, g.fire)
	w.groups = append(w.groups, g)
	return g
}

// less has the program count what no operation does.
func (g *group) less(n int) {
	for range n {
		g.wants--
		g.own = true
		before := g.w.callback
		g.w.callback = false // it may fire from here, which is the program's own doing
		g.comp.Done(nil)
		g.w.callback = before
		g.own = false
	}
}

// count counts on a shared completion that has room.
func (w *world) count() {
	for _, g := range w.groups {
		if g.left > 0 {
			g.left--
			g.less(1)
			return
		}
	}
}

// fire is the function of the completion.
func (g *group) fire(c *transport.Completion) {
	w := g.w
	if c != &g.comp || g.fired {
		w.Broken(ruleOnce, "a completion of %v fires twice", g.ops)
	}
	g.fired = true
	for i := range w.groups {
		if w.groups[i] == g {
			w.groups = append(w.groups[:i], w.groups[i+1:]...)
			break
		}
	}
	if g.left != 0 {
		w.Broken(ruleOnce, "a completion of %v fires, and %d are still to come", g.ops, g.left)
	}
	err := g.comp.Err()
	if len(g.ops) == 0 {
		if g.then != nil {
			if w.inside == nil {
				w.Broken(rulePlace, "an abort is over outside of progress")
			}
			w.enter(w.inside, "an abort is over")
			g.then()
			w.leave()
		}
		return
	}
	if !g.own {
		w.enter(g.ops[0].e.siteOf(g), sprintf("completion of %v: %v", g.ops, err))
		w.told = true
	}
	if err != nil && len(g.ops) > 1 {
		g.checkShared(err)
	}
	for _, o := range g.ops {
		g.told(o, err)
	}
	if !g.own {
		g.ops[0].e.react()
		w.leave()
	}
}

// siteOf is the worker in whose progress a completion fires: that of any of its operations.
func (e *end) siteOf(g *group) *site {
	for _, o := range g.ops {
		if o.e.site == e.w.inside {
			return o.e.site
		}
	}
	return e.site
}

// told takes in that an operation's completion has fired.
func (g *group) told(o *op, err error) {
	w, e := g.w, o.e
	if len(g.ops) > 1 {
		if err != nil { // it is one of them that has failed, perhaps
			err = e.mayHaveFailed()
		}
	} else if err != nil {
		e.checkError(o, err)
	}
	if err == nil || len(g.ops) == 1 {
		e.endBefore(o, err)
	}
	o.end(err)
	e.advance()
	if o.kind.flush() && err == nil {
		for _, earlier := range e.ops[:o.seq] {
			if !earlier.ended {
				w.Broken(ruleFlush, "%v: before %v has ended", o, earlier)
			}
		}
	}
}

// errPerhaps stands for the end of an operation of which nobody tells how it ended.
var errPerhaps = errors.New("perhaps")

// mayHaveFailed is how an operation has ended whose shared completion tells an error.
func (e *end) mayHaveFailed() error {
	if e.ep.Err() == nil {
		return nil
	}
	return errPerhaps
}

// checkError checks the error that an operation ends with.
func (e *end) checkError(o *op, err error) {
	w := e.w
	var ended *transport.EndpointError
	switch {
	case !errors.As(err, &ended) || ended.Peer != e.name:
		w.Broken(ruleNoticed, "%v ends with %v", o, err)
	case e.closing && e.ctx.Err() != nil && errors.Is(err, transport.ErrCanceled):
	case e.aborted:
		if e.wasSound && !errors.Is(err, transport.ErrCanceled) {
			w.Broken(ruleNoticed, "%v ends with %v after an abort", o, err)
		}
	case e.mayFail() == "":
		w.Broken(lab.Isolation, "%v ends with %v", o, err)
	}
}

// checkShared checks that the error of a shared completion is one of its operations'.
func (g *group) checkShared(err error) {
	var ended *transport.EndpointError
	if errors.As(err, &ended) {
		for _, o := range g.ops {
			if o.e.name == ended.Peer {
				o.e.checkError(o, err)
				return
			}
		}
	}
	g.w.Broken(lab.Isolation, "a completion of %v ends with %v", g.ops, err)
}

// untold says whether a completion of the operation's own has not fired.
func (o *op) untold() bool {
	g := o.group
	return g != nil && len(g.ops) == 1 && g.wants == 1 && !g.fired
}

// endBefore takes in that everything before an operation has ended, too: completions come in the
// order of the calls.
func (e *end) endBefore(o *op, err error) {
	if err != nil {
		err = errPerhaps
	}
	for _, earlier := range e.ops[min(e.ended, o.seq):o.seq] {
		if earlier.ended {
			continue
		}
		if earlier.untold() {
			e.w.Broken(ruleOrder, "%v is told before %v", o, earlier)
		}
		earlier.end(err)
	}
}

// advance moves on over what has ended.
func (e *end) advance() {
	for e.ended < len(e.ops) && e.ops[e.ended].ended {
		e.ended++
	}
}
