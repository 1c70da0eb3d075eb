package sendside

import (
	"context"
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
	call
	doneAt int
	match  *tagRecv // the receive that has taken it
}

func (m *tagMsg) String() string {
	return sprintf("message %d of %v (tag %#x, %d bytes, sync %v)", m.seq, m.e, m.tag, m.n, m.sync)
}

// tags are the tags of messages. There are few, so that many messages have the same.
var tags = [...]uint64{0, 1, 2, 3, 0x100, 1 << 63, tagged.MaxTag}

var masks = [...]uint64{tagged.Exact, tagged.Exact, tagged.Exact, tagged.Any, 1, 3, 1 << 63}

// pieces cuts memory into pieces, some of them empty, or leaves it in one.
func (o *tagSite) pieces(s lab.Span) (bufs [][]byte) {
	if o.OneIn(2) {
		return [][]byte{o.Memory.Bytes(s)}
	}
	for _, piece := range cut(o.Testbed, s, o.Pick(2, 3, 7)) {
		bufs = append(bufs, o.Memory.Bytes(piece))
	}
	return bufs
}

// newMsg draws a message. No two of an endpoint have the same tag and length, so an arrival
// identifies its message.
func (e *tagEnd) newMsg() (*tagMsg, bool) {
	w := e.w
	m := &tagMsg{e: e, seq: len(e.msgs), tag: tags[w.Rng.IntN(len(tags))], sync: w.OneIn(4)}
	limit := w.Pick(8, 100, 300, 1500)
	for m.n = w.Rng.IntN(limit + 1); e.lengths[[2]uint64{m.tag, uint64(m.n)}]; m.n++ {
	}
	var ok bool
	if m.src, ok = e.site.Memory.Alloc(m.n, m); !ok {
		return nil, false
	}
	e.lengths[[2]uint64{m.tag, uint64(m.n)}] = true
	m.key = w.Rng.IntN(lab.Keys)
	copy(e.site.Memory.Bytes(m.src), lab.Noise(m.key, m.n))
	m.long = m.n > max(w.plan.configs[e.site.Index].EagerLimit, 0)
	return m, true
}

// send sends a message without waiting.
func (e *tagEnd) send() {
	w := e.w
	m, ok := e.newMsg()
	if !ok {
		return
	}
	var err error
	if m.sync {
		m.req, err = e.ep.SendSync(m.tag, e.site.pieces(m.src)...)
	} else {
		m.req, err = e.ep.Send(m.tag, e.site.pieces(m.src)...)
	}
	w.Logf("  %v: at once %v, %v", m, m.req == nil, err)
	e.took(m, err)
	if err == nil && m.req == nil {
		m.end(nil)
	}
}

// sendWait is a program in SendWait.
func (e *tagEnd) sendWait(ctx context.Context, m *tagMsg) {
	m.seq = len(e.msgs)
	e.msgs = append(e.msgs, m) // it may arrive before the call returns
	ended := e.ends()
	var err error
	if m.sync {
		err = e.ep.SendSyncWait(ctx, m.tag, e.site.pieces(m.src)...)
	} else {
		err = e.ep.SendWait(ctx, m.tag, e.site.pieces(m.src)...)
	}
	e.w.Logf("  %v: waited: %v", m, err)
	switch {
	case m.interrupted(err):
		return
	case ended && err == nil && m.match == nil:
		e.w.Broken(lab.Refusal, "%v was accepted, and the endpoint has ended", m)
	case err != nil && errors.Is(err, context.Canceled):
		m.cancelled = true
		err = tagged.ErrCanceled
	}
	m.end(err)
}

// took handles the result of sending a message.
func (e *tagEnd) took(m *tagMsg, err error) {
	w := e.w
	if err == nil {
		e.msgs = append(e.msgs, m)
		if e.ends() {
			w.Broken(lab.Refusal, "%v was accepted, and the endpoint has ended", m)
		}
		return
	}
	if e.mayFail() == "" && !e.closing {
		w.Broken(lab.Isolation, "%v: %v", m, err)
	}
	e.site.Memory.Reuse(m.src)
}

// end handles a send that is done.
func (m *tagMsg) end(err error) {
	w := m.e.w
	m.done, m.doneAt, m.err = true, w.clock, err
	m.e.site.Memory.Reuse(m.src)
	switch {
	case err == nil:
	case m.cancelled:
		if !errors.Is(err, tagged.ErrCanceled) {
			w.Broken(ruleNoticed, "%v was cancelled: %v", m, err)
		}
	case m.e.mayFail() == "" && !m.e.closing:
		w.Broken(lab.Isolation, "%v ends with %v", m, err)
	}
	if (m.sync || m.long) && err == nil && m.match == nil {
		fits := func(r *tagRecv) bool { return r.match == nil && !r.cancelled && r.takes(m) }
		if !slices.ContainsFunc(m.e.peer.site.recvs, fits) {
			w.Broken(ruleOrder, "%v is done, and no receive can have matched it", m)
		}
	}
}

// held reports whether a message may be held back at rest, because its receiver keeps the most
// unexpected ones that it can.
func (m *tagMsg) held() bool {
	if m.e.ep.Stats().Queued == 0 {
		return false
	}
	places := 0
	for _, o := range m.e.msgs[:m.seq+1] {
		if o.match == nil && !o.cancelled {
			places += o.fragments()
		}
	}
	return places > m.e.w.plan.configs[m.e.peer.site.Index].MaxUnexpected
}

// fragments returns the largest number of fragments of a message.
func (m *tagMsg) fragments() int {
	if m.long {
		return 1
	}
	room := 1 << 20
	for _, e := range []*tagEnd{m.e, m.e.peer} {
		room = min(room, m.e.w.plan.configs[e.site.Index].Transport.BufferSize-64)
	}
	return max(1, (m.n+room-1)/room)
}

// look handles the requests that are done since its last call.
func (w *tagWorld) look() {
	w.clock++
	for _, o := range w.sites {
		for _, r := range o.recvs[o.open:] {
			if r.ready() {
				r.end(r.req.Info(), r.req.Err())
				r.free(w)
			}
		}
		for o.open < len(o.recvs) && o.recvs[o.open].done {
			o.open++
		}
	}
	for _, e := range w.ends {
		for _, m := range e.msgs[e.open:] {
			if m.ready() {
				m.end(m.req.Err())
				m.free(w)
			}
		}
		for e.open < len(e.msgs) && e.msgs[e.open].done {
			e.open++
		}
	}
}

// probe checks that a message that Probe reports is there.
func (o *tagSite) probe() {
	info, found := o.worker.Probe(tags[o.Rng.IntN(len(tags))], masks[o.Rng.IntN(len(masks))])
	if !found {
		return
	}
	if m := o.sent(info); m.match != nil || m.cancelled {
		o.Broken(ruleMessages, "Probe of %s reports %v, cancelled, or taken by %v", o.Name, m, m.match)
	}
}

// cancel cancels a request.
func (e *tagEnd) cancel() {
	w := e.w
	if w.OneIn(2) {
		if open := e.site.recvs[e.site.open:]; len(open) != 0 {
			r := open[w.Rng.IntN(len(open))]
			r.cancel(w, r)
		}
	} else if open := e.msgs[e.open:]; len(open) != 0 {
		m := open[w.Rng.IntN(len(open))]
		m.cancel(w, m)
	}
}

// call is a request, as long as it is known.
type call struct {
	req       *tagged.Request // nil if it was done at once, or is free again
	done      bool
	cancelled bool
	awaited   bool // a program waits for it: it must not be freed
	err       error
}

// interrupted reports whether a waiting call has left the request to the program.
func (c *call) interrupted(err error) bool {
	var left *tagged.InterruptedError
	if errors.As(err, &left) {
		c.req = left.Req
	}
	return left != nil
}

// cancel cancels the request if it is not done.
func (c *call) cancel(w *tagWorld, what any) {
	if c.req != nil && !c.done {
		c.cancelled = c.req.Cancel()
		w.Logf("  %v: cancelled %v", what, c.cancelled)
	}
}

// ready reports whether the request is done, and was not before.
func (c *call) ready() bool { return !c.done && c.req != nil && c.req.Done() }

// free frees the request, or leaves it to the library.
func (c *call) free(w *tagWorld) {
	if w.OneIn(2) && !c.awaited {
		c.req.Free()
	}
	c.req = nil
}
