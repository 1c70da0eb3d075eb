package sendside

import (
	"errors"
	"slices"

	"ibverbx/tagged"
	"ibverbx/test/internal/lab"
)

// tagMsg is a message that was sent.
type tagMsg struct {
	e      *tagEnd
	seq    int
	tag    uint64
	key, n int
	src    lab.Span
	sync   bool
	long   bool
	req    *tagged.Request // nil: it was done at once, or is given back
	done   bool
	doneAt int
	err    error
	gone   bool     // it was cancelled, and never goes out
	match  *tagRecv // what has taken it
}

func (m *tagMsg) String() string {
	return sprintf("message %d of %v (tag %#x, %d bytes, sync %v)", m.seq, m.e, m.tag, m.n, m.sync)
}

// tags are the tags of messages: few, so that many meet.
var tags = [...]uint64{0, 1, 2, 3, 0x100, 1 << 63, ^uint64(0)}

var masks = [...]uint64{tagged.Exact, tagged.Exact, tagged.Exact, tagged.Any, 1, 3, 1 << 63}

// pieces cuts memory into pieces, some of them empty, and often into one.
func (o *office) pieces(s lab.Span) (bufs [][]byte) {
	if o.OneIn(2) {
		return [][]byte{o.Memory.Bytes(s)}
	}
	for _, piece := range cut(o.Testbed, s, o.Pick(2, 3, 7)) {
		bufs = append(bufs, o.Memory.Bytes(piece))
	}
	return bufs
}

// newMsg draws a message. Of one endpoint and tag no two are equally long: that is how it is known
// what has come.
func (e *tagEnd) newMsg() (*tagMsg, bool) {
	w := e.p
	m := &tagMsg{e: e, seq: len(e.msgs), tag: tags[w.Rng.IntN(len(tags))], sync: w.OneIn(4)}
	limit := w.Pick(8, 100, 300, 1500)
	for m.n = w.Rng.IntN(limit + 1); e.lengths[[2]uint64{m.tag, uint64(m.n)}]; m.n++ {
	}
	var ok bool
	if m.src, ok = e.office.Memory.Alloc(m.n); !ok {
		return nil, false
	}
	e.lengths[[2]uint64{m.tag, uint64(m.n)}] = true
	m.key = w.Rng.IntN(lab.Keys)
	copy(e.office.Memory.Bytes(m.src), lab.Noise(m.key, m.n))
	m.long = m.n > max(w.plan.configs[e.office.Index].EagerLimit, 0)
	return m, true
}

// send sends a message without waiting.
func (e *tagEnd) send() {
	w := e.p
	m, ok := e.newMsg()
	if !ok {
		return
	}
	var err error
	if m.sync {
		m.req, err = e.ep.SendSync(m.tag, e.office.pieces(m.src)...)
	} else {
		m.req, err = e.ep.Send(m.tag, e.office.pieces(m.src)...)
	}
	w.Logf("  %v: at once %v, %v", m, m.req == nil, err)
	e.took(m, err)
	if err == nil && m.req == nil {
		m.end(nil)
	}
}

// took takes in that a message was accepted, or why not.
func (e *tagEnd) took(m *tagMsg, err error) {
	w := e.p
	if err == nil {
		e.msgs = append(e.msgs, m)
		if e.ended || e.closing {
			w.Broken(lab.Refusal, "%v was accepted, and the endpoint has ended", m)
		}
		return
	}
	if e.mayFail() == "" && !e.closing {
		w.Broken(lab.Isolation, "%v: %v", m, err)
	}
	e.office.Memory.Reuse(m.src, "a source that nobody took")
}

// end takes in that a send is done.
func (m *tagMsg) end(err error) {
	w := m.e.p
	m.done, m.doneAt, m.err = true, w.clock, err
	m.e.office.Memory.Reuse(m.src, sprintf("the source of %v", m))
	switch {
	case err == nil:
	case m.gone:
		if !errors.Is(err, tagged.ErrCanceled) {
			w.Broken(ruleNoticed, "%v was cancelled: %v", m, err)
		}
	case m.e.mayFail() == "" && !m.e.closing:
		w.Broken(lab.Isolation, "%v ends with %v", m, err)
	}
	if (m.sync || m.long) && err == nil && m.match == nil {
		fits := func(r *tagRecv) bool { return r.match == nil && !r.gone && r.takes(m.tag) }
		if !slices.ContainsFunc(m.e.peer.office.recvs, fits) {
			w.Broken(ruleOrder, "%v is done, and no receive can have matched it", m)
		}
	}
}

// held says whether a message may be held back, when nothing moves any more, because its receiver
// keeps others that nobody has received.
func (m *tagMsg) held() bool {
	if m.e.ep.Stats().Queued == 0 {
		return false
	}
	places := 0
	for _, o := range m.e.msgs[:m.seq+1] {
		if o.match == nil && !o.gone {
			places += o.fragments()
		}
	}
	return places > m.e.p.plan.configs[m.e.peer.office.Index].MaxUnexpected
}

// fragments is in how many pieces a message goes out, at most.
func (m *tagMsg) fragments() int {
	if m.long {
		return 1
	}
	room := 1 << 20
	for _, e := range []*tagEnd{m.e, m.e.peer} {
		room = min(room, m.e.p.plan.configs[e.office.Index].Transport.BufferSize-64)
	}
	return max(1, (m.n+room-1)/room)
}

// sweep takes in which requests have been done since it last looked.
func (w *post) sweep() {
	w.clock++
	for _, o := range w.offices {
		for _, r := range o.recvs[o.open:] {
			if !r.done && r.req != nil && r.req.Done() {
				r.end(r.req.Info(), r.req.Err())
				if w.OneIn(2) && !r.awaited {
					r.req.Free()
				}
				r.req = nil
			}
		}
		for o.open < len(o.recvs) && o.recvs[o.open].done {
			o.open++
		}
	}
	for _, e := range w.ends {
		for _, m := range e.msgs[e.open:] {
			if !m.done && m.req != nil && m.req.Done() {
				m.end(m.req.Err())
				if w.OneIn(2) {
					m.req.Free()
				}
				m.req = nil
			}
		}
		for e.open < len(e.msgs) && e.msgs[e.open].done {
			e.open++
		}
	}
}

// probe asks for a message, and receives it.
func (o *office) probe() {
	info, found := o.worker.Probe(tags[o.Rng.IntN(len(tags))], masks[o.Rng.IntN(len(masks))])
	if !found {
		return
	}
	for _, e := range o.p.ends {
		if e.ep == info.Source {
			for _, m := range e.peer.msgs {
				if m.tag == info.Tag && m.n == info.Length {
					if m.match != nil || m.gone {
						o.Broken(ruleMessages, "%s: Probe tells of %v, which was cancelled, or taken by %v",
							o.Name, m, m.match)
					}
					return
				}
			}
		}
	}
	o.Broken(ruleMessages, "%s: Probe tells of a message that nobody sent: tag %#x, %d bytes", o.Name,
		info.Tag, info.Length)
}

// cancel cancels a request.
func (e *tagEnd) cancel() {
	w := e.p
	if w.OneIn(2) {
		if open := e.office.recvs[e.office.open:]; len(open) != 0 {
			if r := open[w.Rng.IntN(len(open))]; r.req != nil && !r.done {
				r.gone = r.req.Cancel()
				w.Logf("  %v: cancelled %v", r, r.gone)
			}
		}
		return
	}
	if open := e.msgs[e.open:]; len(open) != 0 {
		if m := open[w.Rng.IntN(len(open))]; m.req != nil && !m.done {
			m.gone = m.req.Cancel()
			w.Logf("  %v: cancelled %v", m, m.gone)
		}
	}
}
