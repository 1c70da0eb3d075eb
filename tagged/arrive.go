package tagged

import (
	"fmt"

	"ibverbx/transport"
)

// assembly is the message of several fragments that is arriving on an endpoint. There is one at a
// time: a sender sends the fragments of a message in a row, with nothing but notices and window
// between them.
type assembly struct {
	length int // 0 for none
	got    int
	req    *Request // where it goes
	in     *inbound // where it is kept; nil together with req when it is thrown away
}

// arrived is the handler of this package's active messages.
func (w *Worker) arrived(m *transport.Message) {
	tep := m.Endpoint()
	e, ok := tep.Value().(*Endpoint)
	if !ok || e == nil || e.tep != tep {
		w.strayed(tep)
		return
	}
	w.mu.Lock()
	if e.err == nil {
		if err := e.arrived(m.ID(), m.Header(), m.Data()); err != nil {
			e.violated(err)
		} else if e.due() {
			e.kick()
		}
	}
	w.unlockInProgress()
}

// strayed ends an endpoint of the program's own, see Worker.Transport, whose peer has sent a
// message of this package to it.
func (w *Worker) strayed(tep *transport.Endpoint) {
	w.mu.Lock()
	w.stats.violations++
	w.mu.Unlock()
	_ = tep.Abort(nil) // refused if the program was faster
}

// arrived takes in an active message, and says what is wrong with it.
func (e *Endpoint) arrived(kind transport.AMID, hdr, data []byte) error {
	var h header
	if err := h.parse(kind, hdr, data); err != nil {
		return err
	}
	if err := e.ledger.returned(h.window); err != nil {
		return err
	}
	switch kind {
	case amDone:
		return e.arrivedDone(h.id)
	case amWindow:
		return nil
	}
	if (kind == amMore) != (e.partial.length != 0) {
		return fmt.Errorf("message %d with %d bytes missing of the message before", kind,
			e.partial.length-e.partial.got)
	}
	if kind == amBatch {
		return e.arrivedBatch(data)
	}
	if !e.ledger.arrived() {
		return beyondWindow(kind)
	}
	switch kind {
	case amEager:
		e.arrivedEager(&h, data)
	case amFirst:
		e.arrivedFirst(&h, data)
	case amMore:
		return e.arrivedMore(&h, data)
	case amAnnounce:
		return e.arrivedAnnounced(&h, data)
	}
	return nil
}

func beyondWindow(kind transport.AMID) error { return fmt.Errorf("message %d beyond the window", kind) }

// match ties a message to the first receive that takes it, or returns nil.
func (e *Endpoint) match(h *header) *Request {
	r := e.w.posted.take(h.tag)
	if r != nil {
		r.matchedBy(Info{Tag: h.tag, Length: int(h.length), Source: e})
	}
	return r
}

// matchedBy ties a receive to a message.
func (r *Request) matchedBy(info Info) { r.stage, r.info = requestActive, info }

// tellMatched has a sender that waits for the match hear of it. The message's place goes back with
// that, and not before: a peer whose notices cannot go out runs out of places, so that no more
// notices wait than this end keeps messages.
func (e *Endpoint) tellMatched(id uint32) { e.notices.push(id) }

// needless takes in that an eager message, or its first fragment, was matched as it came and takes
// no memory.
func (e *Endpoint) needless(h *header) {
	if h.flag == flagSync {
		e.tellMatched(h.id)
	} else {
		e.ledger.consumed(1)
	}
}

func (e *Endpoint) arrivedEager(h *header, data []byte) {
	r := e.match(h)
	if r == nil {
		in := e.newInbound(h.tag, len(data))
		in.id, in.notify = h.id, h.flag == flagSync
		in.keep(&e.w.blocks, data)
		return
	}
	e.needless(h)
	r.take(data)
}

// take completes a receive with the whole message.
func (r *Request) take(data []byte) {
	if len(data) > r.data.length {
		r.complete(ErrTruncated)
		return
	}
	r.data.scatter(data)
	r.complete(nil)
}

func (e *Endpoint) arrivedFirst(h *header, data []byte) {
	a := &e.partial
	*a = assembly{length: int(h.length), got: len(data)}
	r := e.match(h)
	if r == nil {
		a.in = e.newInbound(h.tag, int(h.length))
		a.in.id, a.in.notify = h.id, h.flag == flagSync
		a.in.keep(&e.w.blocks, data)
		return
	}
	e.needless(h)
	if a.length > r.data.length {
		r.complete(ErrTruncated)
		return
	}
	a.req = r
	r.data.scatter(data)
}

func (e *Endpoint) arrivedMore(h *header, data []byte) error {
	a := &e.partial
	if h.tag != uint64(a.got) || len(data) > a.length-a.got {
		return fmt.Errorf("fragment of %d bytes at %d: %d of %d bytes had come", len(data), h.tag, a.got,
			a.length)
	}
	a.got += len(data)
	switch {
	case a.in != nil:
		a.in.keep(&e.w.blocks, data)
	case a.req != nil:
		a.req.data.scatter(data)
		fallthrough
	default:
		e.ledger.consumed(1)
	}
	if a.got == a.length {
		r := a.req
		*a = assembly{}
		if r != nil {
			r.complete(nil)
		}
	}
	return nil
}

func (e *Endpoint) arrivedAnnounced(h *header, data []byte) error {
	rd := e.w.newReading()
	if err := rd.memory.parse(int(h.flag), h.length, data); err != nil {
		rd.put(e.w)
		return err
	}
	r := e.match(h)
	if r != nil {
		e.startReading(rd, r, h.id)
		return nil
	}
	rd.put(e.w)
	in := e.newInbound(h.tag, int(h.length))
	in.announced, in.id, in.count = true, h.id, int(h.flag)
	in.keep(&e.w.blocks, data)
	return nil
}

// arrivedDone takes in that the peer has matched a message, and read it if it was announced.
func (e *Endpoint) arrivedDone(id uint32) error {
	r := e.waiting.get(id)
	if r == nil || r.stage != requestActive || r.matched {
		return fmt.Errorf("notice of message %d, of which none is due", id)
	}
	r.matched = true
	e.waiting.remove(r)
	if r.long || r != e.queue.head {
		r.complete(nil)
	}
	return nil
}
