package sendside

import (
	"context"
	"errors"
	"slices"
	"strings"

	"ibverbx/tagged"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// tagRecv is a receive that was posted.
type tagRecv struct {
	o         *tagSite
	from      *tagEnd // the end whose peer it is for; nil for any peer of the site
	seq       int
	tag, mask uint64
	dst       lab.Span
	at        int // the clock when it was posted
	call
	inCall bool // a program is in RecvWait
	match  *tagMsg
	probed *tagged.Info // the message that it must take, because Probe has reported it
}

func (r *tagRecv) String() string {
	who := r.o.Name
	if r.from != nil {
		who += " for " + r.from.name
	}
	return sprintf("receive %d of %s (tag %#x, mask %#x, %d bytes)", r.seq, who, r.tag, r.mask, r.dst.N)
}

// takes reports whether the receive takes a message.
func (r *tagRecv) takes(m *tagMsg) bool {
	return (m.tag^r.tag)&r.mask == 0 && (r.from == nil || r.from == m.e.peer)
}

// newRecv draws a receive, for any peer, or for that of an end of the site.
func (o *tagSite) newRecv(from *tagEnd) (*tagRecv, bool) {
	r := &tagRecv{o: o, from: from, seq: len(o.recvs), tag: tags[o.Rng.IntN(len(tags))],
		mask: masks[o.Rng.IntN(len(masks))], at: o.w.clock}
	if o.w.ending {
		r.tag, r.mask = 0, tagged.Any
	}
	if o.w.ending {
		r.dst = o.Memory.Reserve(1700)
		return r, true
	}
	var ok bool
	r.dst, ok = o.Memory.Alloc(o.Pick(0, 50, 400, 1700, 1700), r)
	return r, ok
}

// recv posts a receive for any peer.
func (o *tagSite) recv() *tagRecv { return o.post(nil) }

// recv posts a receive for the end's peer, or for any.
func (e *tagEnd) recv() {
	if e.w.OneIn(3) {
		e.site.post(e)
	} else {
		e.site.post(nil)
	}
}

// post posts a receive.
func (o *tagSite) post(from *tagEnd) *tagRecv {
	r, ok := o.newRecv(from)
	if !ok {
		return nil
	}
	var err error
	o.recvs = append(o.recvs, r)
	probe, recv := o.worker.Probe, o.worker.Recv
	if from != nil {
		probe, recv = from.ep.Probe, from.ep.Recv
	}
	if info, found := probe(r.tag, r.mask); found {
		r.probed = &info
	}
	r.req, err = recv(r.tag, r.mask, o.pieces(r.dst)...)
	o.w.Logf("  %v: done %v, %v", r, err == nil && r.req.Done(), err)
	if err != nil {
		r.refused(err)
	}
	return r
}

// recvWait is a program in RecvWait.
func (e *tagEnd) recvWait(ctx context.Context) {
	o := e.site
	from, wait := e, e.ep.RecvWait
	if o.OneIn(2) {
		from, wait = nil, o.worker.RecvWait
	}
	r, ok := o.newRecv(from)
	if !ok {
		return
	}
	r.inCall = true
	o.recvs = append(o.recvs, r)
	info, err := wait(ctx, r.tag, r.mask, o.pieces(r.dst)...)
	o.w.Logf("  %v: waited: %v", r, err)
	switch {
	case r.interrupted(err):
		return
	case info.Source == nil && errors.Is(err, context.Canceled):
		r.cancelled = true
		err = tagged.ErrCanceled
	}
	r.end(info, err)
}

// refused handles a receive that was refused because its endpoint has ended.
func (r *tagRecv) refused(err error) {
	if r.from == nil || r.from.ep.Err() == nil || r.probed != nil {
		r.o.Broken(lab.Refusal, "%v: %v", r, err)
	}
	r.end(tagged.Info{}, err)
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
		r.checkEnd(err)
		o.Memory.Settle(r.dst, lab.AsItIs)
		return
	}
	m := o.sent(info)
	if m.match != nil || m.cancelled || !r.takes(m) {
		w.Broken(ruleMessages, "%v takes %v, which was cancelled (%v), or taken by %v, or has another tag",
			r, m, m.cancelled, m.match)
	}
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
		o.Memory.Settle(r.dst, lab.AsItIs)
	}
}

// checkEnd checks the error of a receive that has taken no message.
func (r *tagRecv) checkEnd(err error) {
	w := r.o.w
	switch {
	case r.cancelled:
		if !errors.Is(err, tagged.ErrCanceled) {
			w.Broken(ruleNoticed, "%v was cancelled, and ends with %v", r, err)
		}
	case r.from != nil:
		if r.from.ep.Err() == nil || r.from.mayFail() == "" && !r.from.closing {
			w.Broken(lab.Isolation, "%v ends with %v", r, err)
		}
		if !r.from.endedBy(err) {
			w.Broken(ruleNoticed, "%v ends with %v, and %v with %v", r, err, r.from, r.from.ep.Err())
		}
	case !r.inCall || !errors.Is(err, tagged.ErrNoPeer) || r.o.served() ||
		!slices.ContainsFunc(r.o.ends, func(e *tagEnd) bool { return e.endedBy(err) }):
		w.Broken(ruleNoticed, "%v ends with %v", r, err)
	}
}

// endedBy reports whether an end has ended, and err says why, or is of the same kind.
func (e *tagEnd) endedBy(err error) bool {
	end := e.ep.Err()
	same := func(k error) bool { return errors.Is(err, k) && errors.Is(end, k) }
	return end != nil && (strings.Contains(err.Error(), strings.TrimPrefix(end.Error(), "tagged: ")) ||
		slices.ContainsFunc([]error{tagged.ErrPeerFailed, tagged.ErrPeerClosed, tagged.ErrCanceled,
			tagged.ErrClosed}, same))
}

// served reports whether any endpoint of a site works.
func (o *tagSite) served() bool {
	return slices.ContainsFunc(o.ends, func(e *tagEnd) bool { return e.ep.Err() == nil })
}

// sent finds the message that a worker reports, in a probe or for a receive.
func (o *tagSite) sent(info tagged.Info) *tagMsg {
	for _, e := range o.ends {
		for _, m := range e.peer.msgs {
			if e.ep == info.Source && m.tag == info.Tag && m.n == info.Length {
				return m
			}
		}
	}
	o.Broken(ruleMessages, "%s reports a message that no peer has sent: tag %#x, %d bytes", o.Name, info.Tag,
		info.Length)
	return nil
}

// checkContent checks the contents of the buffer after the message.
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
		if errors.Is(err, tagged.ErrTruncated) || m.e.peer.mayFail() == "" && !m.e.peer.closing ||
			!m.e.peer.endedBy(err) && !errors.Is(err, verbs.ErrDeviceGone) { // it registers no memory
			w.Broken(lab.Isolation, "%v takes %v: %v, and %v ends with %v", r, m, err, m.e.peer,
				m.e.peer.ep.Err())
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
		if r.takes(before) && !before.cancelled && before.match != nil && before.match.seq > r.seq {
			w.Broken(ruleMessages, "%v takes %v, and %v was taken by the later %v", r, m, before,
				before.match)
		}
	}
	for _, after := range m.e.msgs[m.seq+1:] {
		if after.match != nil && after.match.takes(m) && after.match.seq < r.seq {
			w.Broken(ruleMessages, "%v is taken by %v, and %v, sent later, by the earlier %v", m, r, after,
				after.match)
		}
	}
	for _, other := range r.o.recvs {
		o := other.match
		if o == nil || other == r || o.e != m.e {
			continue
		}
		if other.seq < r.seq && other.takes(m) && o.seq > m.seq || other.seq > r.seq && r.takes(o) &&
			o.seq < m.seq {
			w.Broken(ruleQueue, "%v has taken %v, and %v has taken %v", r, m, other, o)
		}
	}
}

// checkUnmatched checks, at rest, that no message waits that the receive matches.
func (r *tagRecv) checkUnmatched() {
	if r.done {
		return
	}
	if r.from != nil && r.from.ep.Err() != nil || r.inCall && r.req == nil && !r.o.served() {
		r.o.w.Broken(ruleNoticed, "%v waits, and nobody is left that could send", r)
	}
	for _, e := range r.o.ends {
		if (r.from == nil || r.from == e) && e.mayFail() != "" {
			return // it may have matched a message that never arrives whole
		}
	}
	for _, e := range r.o.ends {
		for _, m := range e.peer.msgs {
			if m.match == nil && !m.cancelled && r.takes(m) && !m.held() {
				r.o.w.Broken(lab.Liveness, "%v waits, and so does %v; %+v, %+v", r, m, m.e.ep.Stats(),
					e.ep.Stats())
			}
			if m.match != nil && r.takes(m) && m.match.seq > r.seq {
				r.o.w.Broken(ruleQueue, "%v waits, and the later %v has taken %v", r, m.match, m)
			}
		}
	}
}
