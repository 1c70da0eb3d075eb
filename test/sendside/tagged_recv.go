package sendside

import (
	"errors"

	"ibverbx/tagged"
	"ibverbx/test/internal/lab"
)

// tagRecv is a receive that was posted.
type tagRecv struct {
	o         *tagSite
	seq       int
	tag, mask uint64
	dst       lab.Span
	at        int // the clock when it was posted
	req       *tagged.Request
	done      bool
	cancelled bool // it was cancelled
	awaited   bool // a program waits for it: it must not be freed
	err       error
	match     *tagMsg
	probed    *tagged.Info // the message that it must take, by Probe
}

func (r *tagRecv) String() string {
	return sprintf("receive %d of %s (tag %#x, mask %#x, %d bytes)", r.seq, r.o.Name, r.tag, r.mask, r.dst.N)
}

func (r *tagRecv) takes(tag uint64) bool { return (tag^r.tag)&r.mask == 0 }

// newRecv draws a receive.
func (o *tagSite) newRecv() (*tagRecv, bool) {
	r := &tagRecv{o: o, seq: len(o.recvs), tag: tags[o.Rng.IntN(len(tags))],
		mask: masks[o.Rng.IntN(len(masks))], at: o.w.clock}
	if o.w.ending {
		r.tag, r.mask = 0, tagged.Any
	}
	if o.w.ending {
		r.dst = o.Memory.Reserve(1700)
		return r, true
	}
	var ok bool
	r.dst, ok = o.Memory.Alloc(o.Pick(0, 50, 400, 1700, 1700))
	return r, ok
}

// recv posts a receive.
func (o *tagSite) recv() *tagRecv {
	r, ok := o.newRecv()
	if !ok {
		return nil
	}
	if info, found := o.worker.Probe(r.tag, r.mask); found {
		r.probed = &info
	}
	var err error
	o.recvs = append(o.recvs, r)
	r.req, err = o.worker.Recv(r.tag, r.mask, o.pieces(r.dst)...)
	o.w.Logf("  %v: done %v, %v", r, err == nil && r.req.Done(), err)
	if err != nil {
		o.Broken(lab.Refusal, "%v: %v", r, err)
	}
	return r
}

// end handles a receive that is done.
func (r *tagRecv) end(info tagged.Info, err error) {
	o := r.o
	w := o.w
	r.done, r.err = true, err
	w.Logf("  %v is done: %+v, %v", r, [2]any{info.Tag, info.Length}, err)
	if info.Source == nil {
		if err == nil || !o.Memory.Untouched(r.dst) {
			w.Broken(lab.Content, "%v has ended with %v, no message, and other memory", r, err)
		}
		if r.cancelled != errors.Is(err, tagged.ErrCanceled) {
			w.Broken(ruleNoticed, "%v, cancelled %v, ends with %v", r, r.cancelled, err)
		}
		o.Memory.Settle(r.dst, lab.AsItIs, sprintf("the buffer of %v", r))
		return
	}
	m := r.find(info)
	if r.cancelled {
		w.Broken(ruleOnce, "%v was cancelled and has taken %v", r, m)
	}
	if p := r.probed; p != nil && (p.Tag != info.Tag || p.Length != info.Length || p.Source != info.Source) {
		w.Broken(ruleMessages, "%v takes %v, and Probe reported tag %#x, %d bytes", r, m, p.Tag, p.Length)
	}
	r.match, m.match = m, r
	r.checkContent(m, err)
	r.checkOrder(m)
	if !o.w.ending {
		o.Memory.Settle(r.dst, lab.AsItIs, sprintf("the buffer of %v", r))
	}
}

// find finds the message that a receive has taken.
func (r *tagRecv) find(info tagged.Info) *tagMsg {
	w := r.o.w
	for _, e := range w.ends {
		if e.ep != info.Source {
			continue
		}
		if e.site != r.o {
			w.Broken(ruleMessages, "%v takes a message of another worker's endpoint", r)
		}
		for _, m := range e.peer.msgs {
			if m.tag != info.Tag || m.n != info.Length {
				continue
			}
			if m.match != nil || m.cancelled || !r.takes(m.tag) {
				w.Broken(ruleMessages, "%v takes %v, which was cancelled (%v), or taken by %v, or has "+
					"another tag", r, m, m.cancelled, m.match)
			}
			return m
		}
	}
	w.Broken(ruleMessages, "%v takes a message that was never sent: tag %#x, %d bytes", r, info.Tag,
		info.Length)
	return nil
}

// checkContent checks what the message has left in the buffer.
func (r *tagRecv) checkContent(m *tagMsg, err error) {
	w, mem := r.o.w, r.o.Memory
	short := m.n > r.dst.N
	switch {
	case short:
		if err == nil || !errors.Is(err, tagged.ErrTruncated) && m.e.peer.mayFail() == "" {
			w.Broken(lab.Content, "%v takes %v: %v", r, m, err)
		}
		if !mem.Untouched(r.dst) {
			w.Broken(lab.Content, "%v is too short for %v, and was written to", r, m)
		}
	case err != nil:
		if errors.Is(err, tagged.ErrTruncated) || m.e.peer.mayFail() == "" && !m.e.peer.closing {
			w.Broken(lab.Isolation, "%v takes %v: %v", r, m, err)
		}
	default:
		head, tail := r.dst.Split(m.n)
		if !mem.Holds(head, m.key) || !mem.Untouched(tail) {
			w.Broken(lab.Content, "%v takes %v, and holds something else", r, m)
		}
	}
	if (m.sync || m.long) && m.done && m.err == nil && r.at > m.doneAt {
		w.Broken(ruleOrder, "%v was done before %v was posted, which has taken it", m, r)
	}
}

// checkOrder checks that no message of the same peer, and no receive, was overtaken by a later one.
func (r *tagRecv) checkOrder(m *tagMsg) {
	w := r.o.w
	for _, before := range m.e.msgs[:m.seq] {
		if r.takes(before.tag) && !before.cancelled && before.match != nil && before.match.seq > r.seq {
			w.Broken(ruleMessages, "%v takes %v, and %v was taken by the later %v", r, m, before,
				before.match)
		}
	}
	for _, after := range m.e.msgs[m.seq+1:] {
		if after.match != nil && after.match.takes(m.tag) && after.match.seq < r.seq {
			w.Broken(ruleMessages, "%v is taken by %v, and %v, sent later, by the earlier %v", m, r, after,
				after.match)
		}
	}
	for _, other := range r.o.recvs {
		o := other.match
		if o == nil || other == r || o.e != m.e {
			continue
		}
		if other.seq < r.seq && other.takes(m.tag) && o.seq > m.seq || other.seq > r.seq && r.takes(o.tag) &&
			o.seq < m.seq {
			w.Broken(ruleQueue, "%v has taken %v, and %v has taken %v", r, m, other, o)
		}
	}
}

// checkUnmatched checks, at rest, that no message waits which the receive matches.
func (r *tagRecv) checkUnmatched() {
	if r.done {
		return
	}
	for _, e := range r.o.w.ends {
		if e.site == r.o && e.mayFail() != "" {
			return // it may have matched a message that never arrives whole
		}
	}
	for _, e := range r.o.w.ends {
		if e.site != r.o {
			continue
		}
		for _, m := range e.peer.msgs {
			if m.match == nil && !m.cancelled && r.takes(m.tag) && !m.held() {
				r.o.w.Broken(lab.Liveness, "%v waits, and so does %v; %+v, %+v", r, m, m.e.ep.Stats(),
					e.ep.Stats())
			}
			if m.match != nil && r.takes(m.tag) && m.match.seq > r.seq {
				r.o.w.Broken(ruleQueue, "%v waits, and the later %v has taken %v", r, m.match, m)
			}
		}
	}
}
