package sendside

import (
	"errors"
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// group is a completion, of one operation or shared.
type group struct {
	w     *transportWorld
	comp  transport.Completion
	left  int   // operations or counts of the program that will still join
	ops   []*op // the operations that were accepted
	fired bool
	wants int
	own   bool // the program is counting
	then  func()
}

// newGroup makes a completion, or finds a shared one that has room.
func (w *transportWorld) newGroup() *group {
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

// countDown counts n times instead of operations.
func (g *group) countDown(n int) {
	for range n {
		g.wants--
		g.own = true
		before := g.w.callback
		g.w.callback = false // it may fire here, outside of progress
		g.comp.Done(nil)
		g.w.callback = before
		g.own = false
	}
}

// countShared counts on a shared completion that has room.
func (w *transportWorld) countShared() {
	for _, g := range w.groups {
		if g.left > 0 {
			g.left--
			g.countDown(1)
			return
		}
	}
}

// fire is called when the completion fires.
func (g *group) fire(c *transport.Completion) {
	w := g.w
	if c != &g.comp || g.fired {
		w.Broken(ruleOnce, "a completion of %v fires twice", g.ops)
	}
	g.fired = true
	w.groups = slices.DeleteFunc(w.groups, func(o *group) bool { return o == g })
	if g.left != 0 {
		w.Broken(ruleOnce, "a completion of %v fires, and %d are still to come", g.ops, g.left)
	}
	err := g.comp.Err()
	if len(g.ops) == 0 {
		if g.then != nil {
			if w.inside == nil {
				w.Broken(rulePlace, "an abort is over outside of progress")
			}
			w.enter(w.sites[w.inside.Index], "an abort is over")
			g.then()
			w.leave()
		}
		return
	}
	if !g.own {
		w.enter(g.ops[0].e.siteOf(g), sprintf("completion of %v: %v", g.ops, err))
		w.delivered = true
	}
	if err != nil && len(g.ops) > 1 {
		g.checkShared(err)
	}
	for _, o := range g.ops {
		g.reported(o, err)
	}
	if !g.own {
		g.ops[0].e.react()
		w.leave()
	}
}

// siteOf returns the worker in whose progress a completion fires: that of any of its operations.
func (e *end) siteOf(g *group) *site {
	for _, o := range g.ops {
		if o.e.home == e.w.inside {
			return o.e.site
		}
	}
	return e.site
}

// reported handles an operation whose completion has fired.
func (g *group) reported(o *op, err error) {
	w, e := g.w, o.e
	if len(g.ops) > 1 {
		if err != nil { // perhaps another operation has failed
			err = e.mayHaveFailed()
		}
	} else if err != nil {
		e.checkError(o, err)
		if e.firstFailed == nil {
			e.firstFailed = o
		}
	} else if f := e.firstFailed; f != nil && f.seq < o.seq {
		w.Broken(ruleOrder, "%v ends well behind %v, which has failed", o, f)
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

// errPerhaps is the error of an operation with an unknown outcome.
var errPerhaps = errors.New("perhaps")

// mayHaveFailed returns the error of an operation whose shared completion has one.
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
		if e.soundAtAbort && !errors.Is(err, transport.ErrCanceled) {
			w.Broken(ruleNoticed, "%v ends with %v after an abort", o, err)
		}
	case e.mayFail() == "":
		w.Broken(lab.Isolation, "%v ends with %v", o, err)
	}
}

// checkShared checks that the error of a shared completion belongs to one of its operations.
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

// unreported reports whether the operation has a completion of its own that has not fired.
func (o *op) unreported() bool {
	g := o.group
	return g != nil && len(g.ops) == 1 && g.wants == 1 && !g.fired
}

// endBefore ends all operations before one that has ended, because completions come in the order of
// the calls.
func (e *end) endBefore(o *op, err error) {
	if err != nil {
		err = errPerhaps
	}
	for _, earlier := range e.ops[min(e.ended, o.seq):o.seq] {
		if earlier.ended {
			continue
		}
		if earlier.unreported() {
			e.w.Broken(ruleOrder, "%v is reported before %v", o, earlier)
		}
		earlier.end(err)
	}
}

// advance skips the operations that have ended.
func (e *end) advance() {
	for e.ended < len(e.ops) && e.ops[e.ended].ended {
		e.ended++
	}
}
