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
				o.waitingFlushes-- // a cancelled one goes on, perhaps in the queue
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
