package sendside

import (
	"context"
	"errors"
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// waitFlush starts a program that waits in Flush.
func (e *end) waitFlush() {
	w := e.w
	if !e.connected || len(w.waiting()) >= 4 {
		return
	}
	ctx := w.context()
	kind := transport.FlushKind(w.Rng.IntN(2))
	whole := w.OneIn(4)
	w.start(sprintf("%v waits in flush %d, whole worker %v", e, kind, whole), e.site.Host, func() {
		// The call is made when the program is first resumed, not when it is started: a flush of
		// the worker includes endpoints that have connected in between.
		ends := []*end{e}
		if whole {
			ends = e.site.flushable()
		}
		want := make([]int, len(ends))
		queued := make([][]*request, len(ends))
		failed := ""
		for i, o := range ends {
			want[i], queued[i] = len(o.ops), slices.Clone(o.queue)
			o.waitingFlushes++
		}
		var err error
		if whole {
			err = e.site.worker.Flush(ctx, kind)
		} else {
			err = e.ep.Flush(ctx, kind)
		}
		w.Logf("  %v: flush: %v", e, err)
		for i, o := range ends {
			if !errors.Is(err, context.Canceled) {
				o.waitingFlushes-- // a cancelled one continues, perhaps in the queue
			}
			o.dirty = false // as far as the model knows
			if o.mayFail() != "" || o.ends() {
				failed = o.name
				continue
			}
			if err == nil {
				o.flushed(want[i], queued[i])
			}
		}
		if err != nil && failed == "" && !errors.Is(err, context.Canceled) {
			w.Broken(lab.Isolation, "%v: flush: %v", e, err)
		}
	})
}

// flushable returns the ends that a flush of the worker includes if it is called now.
func (s *site) flushable() (ends []*end) {
	for _, o := range s.ends {
		if o.connected && !o.closed {
			ends = append(ends, o)
		}
	}
	return ends
}

// flushed checks that everything before a flush has ended.
func (e *end) flushed(n int, queued []*request) {
	for _, r := range queued {
		if !r.done && !r.own && !slices.Contains(e.queue, r) {
			e.w.Broken(ruleFlush, "%v: a flush has ended before a request that was queued earlier", e)
		}
	}
	for _, o := range e.ops[:n] {
		if o.unreported() {
			e.w.Broken(ruleFlush, "%v: a flush has ended before %v", e, o)
		}
		o.end(nil)
	}
	e.advance()
}

// abort closes an endpoint at once.
func (e *end) abort() {
	w := e.w
	if e.ends() || w.callback {
		return
	}
	e.soundAtAbort = e.ep.Err() == nil
	e.aborted, e.closed = true, true
	e.peer.because("its peer has aborted")
	g := &group{w: w, wants: 1}
	g.comp.Init(1, g.fire)
	g.then = func() {
		for _, o := range e.ops {
			if o.unreported() {
				w.Broken(ruleOrder, "the abort of %v is over before %v has ended", e, o)
			}
			o.end(errPerhaps)
		}
		e.advance()
		if len(e.queue) != 0 {
			w.Broken(ruleQueue, "the abort of %v is over before %d requests were handed back", e,
				len(e.queue))
		}
		e.released = true
	}
	w.calling++
	err := e.ep.Abort(&g.comp)
	w.calling--
	if err != nil {
		w.Broken(lab.Leak, "%v: abort: %v", e, err)
	}
	w.groups = append(w.groups, g)
}

// close starts a program that waits in Close.
func (e *end) close() {
	if e.w.callback {
		return
	}
	e.fate.close(4, e.ep, func(err error, worked bool) {
		e.released = true
		if err == nil && worked {
			e.closedWell = e.connected
			e.flushed(len(e.ops), e.queue)
			if len(e.queue) != 0 {
				e.w.Broken(ruleFlush, "%v has closed without an error, and %d requests wait", e, len(e.queue))
			}
		}
		for _, o := range e.ops {
			o.end(errPerhaps)
		}
		e.advance()
	})
}

// finish ends a world: faults end, kept messages are released, and everything moves until it is at
// rest. Then all accepted operations must have ended, and all buffers and credits must be back.
func (w *transportWorld) finish() {
	w.Logf("the end")
	w.finishing = true
	w.EndFaults(nil)
	w.settle(w)
	for _, e := range w.ends {
		e.checkStarved()
	}
	for len(w.kept) != 0 {
		w.release()
	}
	w.settle(w)
	w.abortWhatWaits()
	w.settle(w)
	w.mustReturn()
	for _, e := range w.ends {
		e.checkEnd()
	}
	w.checkBalance()
	w.Audit()
	for _, s := range w.sites {
		w.closeWorker(s.Host, s.worker.Close)
	}
	w.Audit()
	for _, s := range w.sites {
		s.checkAtomics()
	}
	w.Close()
}

// look checks requests that had to be handed back, and makes all counts that the program still
// owes.
func (w *transportWorld) look() {
	w.checkHanded()
	for _, g := range slices.Clone(w.groups) {
		if g.left > 0 {
			n := g.left
			g.left = 0
			g.countDown(n)
		}
	}
}

// abortWhatWaits aborts endpoints that wait for a peer that is gone, because they would never learn
// that.
func (w *transportWorld) abortWhatWaits() {
	for _, e := range w.ends {
		if e.connected && !e.closed && e.mayFail() != "" && e.ep.Err() == nil {
			if e.closing {
				for _, cancel := range w.cancels {
					cancel()
				}
				continue
			}
			if g := e.ep.Stats(); g.Pending != 0 || g.Outstanding != 0 {
				e.abort()
			}
		}
	}
}

// checkStarved checks, at rest, that no request waits for credits while the peer has buffers left,
// and none that needs no credit at all.
func (e *end) checkStarved() {
	p := e.peer
	if len(e.queue) == 0 || e.mayFail() != "" || p.mayFail() != "" {
		return
	}
	if want := e.queue[0].want; want != nil && (!want.kind.am() ||
		p.handled-p.givenBack < p.site.cfg.AMBuffers) {
		e.w.Broken(lab.Liveness, "%v waits, and %v keeps %d messages of %d: %+v, %+v", want, p,
			p.handled-p.givenBack, p.site.cfg.AMBuffers, e.gauge(), p.gauge())
	}
}

// checkEnd checks an endpoint at rest.
func (e *end) checkEnd() {
	w := e.w
	err := e.ep.Err()
	if len(e.queue) != 0 && !e.dead {
		w.Broken(lab.Liveness, "%v: %d requests still wait; the endpoint says %v, %+v", e, len(e.queue),
			err, e.gauge())
	}
	sound := err == nil && e.connected
	for _, o := range e.ops {
		if g := o.group; g != nil && !g.fired {
			w.Broken(lab.Liveness, "%v does not end; the endpoint says %v, %+v", o, err, e.gauge())
		}
		if sound {
			o.end(nil)
		} else {
			o.end(errPerhaps)
		}
	}
	e.advance()
	switch {
	case e.released || e.aborted:
	case err != nil && e.errors != 1:
		w.Broken(ruleNoticed, "%v has failed (%v), and OnError ran %d times", e, err, e.errors)
	case err == nil && e.errors != 0:
		w.Broken(ruleNoticed, "%v: OnError ran, and it has not failed", e)
	}
	if e.aborted && e.soundAtAbort && e.errors != 0 && !e.released {
		w.Broken(ruleNoticed, "%v: OnError ran after an abort", e)
	}
	if p := e.peer; e.closedWell && e.pair.Blame == "" && !p.ends() && p.ep.Err() == nil {
		w.Broken(ruleNoticed, "%v has closed without an error, and %v does not know", e, p)
	}
	if !sound {
		return
	}
	g, p := e.ep.Stats(), e.peer
	if p.ep.Err() != nil {
		return
	}
	if p.handled != len(e.sent) {
		w.Broken(ruleMessages, "%v has sent %d messages, and %v has handled %d", e, len(e.sent), p, p.handled)
	}
	if g.Outstanding != 0 || g.Pending != 0 {
		w.Broken(lab.Liveness, "%v: %+v when all is over", e, g)
	}
	most := p.site.cfg.AMBuffers
	missing := most - g.Credits - p.ep.Stats().Owed
	if missing < 0 || 8*missing >= most+8 { // some receives wait to be posted together
		w.Broken(ruleCredits, "%v: %d credits of %d, %d are to be given back", e, g.Credits, most,
			p.ep.Stats().Owed)
	}
}

// checkBalance checks that workers have all their resources back.
func (w *transportWorld) checkBalance() {
	for _, g := range w.groups {
		w.Broken(lab.Liveness, "a completion of %v does not fire, %d to come", g.ops, g.left)
	}
	for _, s := range w.sites {
		st := s.worker.Stats()
		open, sent, handled, failures := 0, 0, 0, 0
		for _, e := range s.ends {
			sent, handled, failures = sent+len(e.sent), handled+e.handled, failures+e.errors
			if !e.released {
				open++
			}
			if g := e.ep.Stats(); g.Outstanding == 0 && g.OwnBuffers != 2 {
				w.Broken(ruleBalance, "%v has %d of its 2 bounce buffers when all is over", e, g.OwnBuffers)
			}
		}
		switch {
		case st.BounceFree != st.BounceTotal:
			w.Broken(ruleBalance, "%s has %d of %d bounce buffers when all is over", s.Name, st.BounceFree,
				st.BounceTotal)
		case st.AMKept != 0 || st.PendingNow != 0:
			w.Broken(ruleBalance, "%s: %d messages kept, %d endpoints with requests", s.Name, st.AMKept,
				st.PendingNow)
		case int(st.AMSent) != sent || int(st.AMReceived) != handled:
			w.Broken(ruleBalance, "%s counts %d messages sent and %d received: it was %d and %d", s.Name,
				st.AMSent, st.AMReceived, sent, handled)
		case st.Endpoints != open:
			w.Broken(ruleBalance, "%s counts %d endpoints, and %d are open", s.Name, st.Endpoints, open)
		case int(st.Failures) != failures || st.Violations != 0:
			w.Broken(ruleBalance, "%s counts %d failures and %d violations, and reported %d", s.Name,
				st.Failures, st.Violations, failures)
		}
	}
}
