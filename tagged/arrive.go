package tagged

import (
	"fmt"

	"ibverbx/internal/guard"
	"ibverbx/transport"
)

// assembly is a message of several fragments that is arriving on an endpoint. There is one at a
// time: a sender sends the fragments of a message in a row, with nothing but notices and grants of
// window between them.
//
// Invariant: 0 < got < length, or all fields are zero; at most one of req and in is set. If neither
// is, the bytes are dropped: the receive was too short or has ended.
type assembly struct {
	length int      // bytes in the message; 0 when none is arriving
	got    int      // bytes that have arrived
	req    *Request // the matching receive; the bytes go into its buffers
	in     *inbound // the message kept until a receive matches
}

// arrived handles this package's active messages.
func (w *Worker) arrived(m *transport.Message) {
	tep := m.Endpoint()
	e, ok := tep.Value().(*Endpoint)
	if !ok || e == nil || e.tep != tep && e.loop != tep {
		w.unexpectedSender(tep)
		return
	}
	w.mu.Lock()
	if e.err == nil {
		if err := e.arrived(m.ID(), m.Header(), m.Data()); err != nil {
			e.violated(err)
		} else if e.canPush() {
			e.kick()
		}
	}
	if guard.Checked {
		e.check()
	}
	w.unlockAndReport()
}

// unexpectedSender aborts an endpoint that the program made through Worker.Transport: its peer has
// sent a message of this package.
func (w *Worker) unexpectedSender(tep *transport.Endpoint) {
	w.mu.Lock()
	w.stats.violations++
	w.mu.Unlock()
	_ = tep.Abort(nil) // refused if the program has closed it already
}

// arrived handles an active message. It returns an error if the message is wrong.
func (e *Endpoint) arrived(kind transport.AMID, hdr, data []byte) error {
	var h header
	if err := h.parse(kind, hdr, data); err != nil {
		return err
	}
	if e.dial == dialAnswered { // the peer sends, so it is connected
		e.connected()
	}
	if !e.ledger.Regain(h.window) {
		return fmt.Errorf("a window of %d messages: %d were announced",
			e.ledger.Room()+int(h.window), e.ledger.Most())
	}
	switch kind {
	case amDone:
		return e.arrivedDone(h.id)
	case amWindow:
		return nil
	case amRoute:
		return e.w.ranks.arrived(e, &h, data)
	}
	if h.tag > MaxTag && kind != amMore {
		if err := e.w.teams.admits(e, h.tag); err != nil {
			return err
		}
	}
	if (kind == amMore) != (e.partial.length != 0) {
		return fmt.Errorf("message %d with %d bytes missing of the message before", kind,
			e.partial.length-e.partial.got)
	}
	if kind == amBatch {
		return e.arrivedBatch(data)
	}
	if !e.ledger.Arrive() {
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

// match binds a message to the first receive that takes it and returns the receive, or nil if there
// is none.
func (e *Endpoint) match(h *header) *Request {
	if h.tag > MaxTag && !e.w.teams.has(e, h.tag) {
		return nil
	}
	queue := &e.w.matching.posted
	first := queue.find(h.tag)
	if e.posted.count != 0 {
		if own := e.posted.find(h.tag); own != nil && (first == nil || own.seq < first.seq) {
			queue, first = &e.posted, own
		}
	}
	if first == nil {
		return nil
	}
	queue.remove(first)
	r := first.req
	r.bind(Info{Tag: h.tag, Length: int(h.length), Source: e})
	return r
}

// bind assigns a message to the receive.
func (r *Request) bind(info Info) { r.stage, r.info = requestActive, info }

// queueNotice notifies the sender of a message that it was matched. The message's place goes back
// with the notice and not earlier: a peer that accepts no notices runs out of places, so no more
// notices wait than messages are kept.
func (e *Endpoint) queueNotice(id uint32) { e.notices.Push(id) }

// matchedOnArrival records that an eager message, or its first fragment, needs no memory because a
// receive was waiting for it.
func (e *Endpoint) matchedOnArrival(h *header) {
	if h.flag == flagSync {
		e.queueNotice(h.id)
	} else {
		e.ledger.Free(1)
	}
}

// arrivedEager handles a message that has arrived whole.
func (e *Endpoint) arrivedEager(h *header, data []byte) {
	e.traffic.received++
	e.traffic.receivedBytes += uint64(len(data))
	r := e.match(h)
	if r == nil {
		if e.unwanted(h, false) {
			return
		}
		in := e.newInbound(h.tag, len(data))
		in.id, in.notify = h.id, h.flag == flagSync
		in.keep(&e.w.spares.blocks, data)
		return
	}
	e.matchedOnArrival(h)
	r.take(data)
}

// unwanted reports whether a message is of a team that is closed or that its sender is not in, or
// of collective calls after one has failed: nothing receives it. Then its sender is done with it,
// and its place is free.
func (e *Endpoint) unwanted(h *header, announced bool) bool {
	if h.tag <= MaxTag || e.w.teams.wanted(h.tag) && e.w.teams.has(e, h.tag) {
		return false
	}
	if announced {
		e.queueNotice(h.id)
	} else {
		e.matchedOnArrival(h)
	}
	return true
}

// take completes a receive with its message, all of which has arrived.
func (r *Request) take(data []byte) {
	if err := r.cannotCopy(len(data)); err != nil {
		r.complete(err)
		return
	}
	r.data.scatter(data)
	r.complete(nil)
}

// arrivedFirst handles the first fragment of a message.
func (e *Endpoint) arrivedFirst(h *header, data []byte) {
	a := &e.partial
	*a = assembly{length: int(h.length), got: len(data)}
	e.traffic.receivedBytes += uint64(len(data))
	r := e.match(h)
	if r == nil {
		if e.unwanted(h, false) {
			return
		}
		a.in = e.newInbound(h.tag, int(h.length))
		a.in.id, a.in.notify = h.id, h.flag == flagSync
		a.in.keep(&e.w.spares.blocks, data)
		return
	}
	e.matchedOnArrival(h)
	if err := r.cannotCopy(a.length); err != nil {
		r.complete(err)
		return
	}
	a.req = r
	r.data.scatter(data)
}

// arrivedMore handles a further fragment of the message that is arriving.
func (e *Endpoint) arrivedMore(h *header, data []byte) error {
	a := &e.partial
	if h.tag != uint64(a.got) || len(data) > a.length-a.got {
		return fmt.Errorf("fragment of %d bytes at %d: %d of %d bytes had arrived", len(data), h.tag, a.got,
			a.length)
	}
	a.got += len(data)
	e.traffic.receivedBytes += uint64(len(data))
	switch {
	case a.in != nil:
		a.in.keep(&e.w.spares.blocks, data)
	case a.req != nil:
		a.req.data.scatter(data)
		fallthrough
	default:
		e.ledger.Free(1)
	}
	if a.got == a.length {
		r := a.req
		*a = assembly{}
		e.traffic.received++
		if r != nil {
			r.complete(nil)
		}
	}
	return nil
}

// arrivedAnnounced handles the announcement of a long message.
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
	if e.unwanted(h, true) {
		return nil
	}
	in := e.newInbound(h.tag, int(h.length))
	in.announced, in.id, in.count = true, h.id, int(h.flag)
	in.keep(&e.w.spares.blocks, data)
	return nil
}

// arrivedDone handles the notice that the peer has matched a message, and read it if it was
// announced.
func (e *Endpoint) arrivedDone(id uint32) error {
	r := e.waiting.get(id)
	if r == nil || r.stage != requestActive || r.matched {
		return fmt.Errorf("notice of message %d, which waits for none", id)
	}
	r.matched = true
	e.waiting.remove(r)
	if r.kind == sendLong {
		e.traffic.sent++
		e.traffic.sentBytes += uint64(r.data.length)
	}
	if !r.inQueue.Listed() { // otherwise it still has fragments to send: see sendGone
		r.complete(nil)
	}
	return nil
}

// inbound is a message that waits for a receive: eager, in blocks, or announced, with the
// description of its memory in a block.
type inbound struct {
	ep        *Endpoint // the sender
	match     entry     // in matching.unexpected
	own       entry     // in Endpoint.kept
	length    int       // of the message, bytes
	id        uint32    // the sender's number for the message, if it waits for the notice of the match
	notify    bool      // an eager message whose sender waits for that notice
	claimed   bool      // match is in matching.claimed, and own nowhere
	announced bool      // the data is still in the sender's memory
	count     int       // pieces of memory of an announced message
	got       int       // bytes of an eager message that have arrived
	fragments int       // fragments of an eager message that have arrived; each holds a place
	head      *block
	tail      *block
	next      *inbound // in inboundPool
}

// info describes the message.
func (in *inbound) info() Info { return Info{Tag: in.match.tag, Length: in.length, Source: in.ep} }

// whole reports whether the message is here with all its bytes.
func (in *inbound) whole() bool { return !in.announced && in.got == in.length }

// keep copies a fragment into a block.
func (in *inbound) keep(p *blockPool, data []byte) {
	b := p.get(len(data))
	copy(b.data, data)
	if in.tail == nil {
		in.head = b
	} else {
		in.tail.next = b
	}
	in.tail = b
	in.got += len(data)
	in.fragments++
}

// inboundPool keeps inbounds for use again.
type inboundPool struct {
	free  *inbound
	count int // inbounds that are free
	most  int // the most that are kept: Config.MaxUnexpected
}

// get returns a free inbound, or a new one.
func (p *inboundPool) get() *inbound {
	in := p.free
	if in == nil {
		return &inbound{}
	}
	p.free, in.next = in.next, nil
	p.count--
	return in
}

// newInbound returns an inbound for a message that no receive has matched. The caller stores the
// bytes.
func (e *Endpoint) newInbound(tag uint64, length int) *inbound {
	w := e.w
	in := w.spares.inbounds.get()
	in.ep, in.length = e, length
	in.match.tag, in.match.mask, in.match.in = tag, Exact, in
	w.matching.unexpected.push(&in.match)
	in.own.tag, in.own.mask, in.own.in = tag, Exact, in
	e.kept.push(&in.own)
	w.stats.unexpected++
	return in
}

// unlist takes a waiting message out of matching.
func (w *Worker) unlist(in *inbound) {
	w.matching.unexpected.remove(&in.match)
	in.ep.kept.remove(&in.own)
	w.leftovers.removed(in.ep, in)
}

// drop removes a waiting message and frees its memory.
func (w *Worker) drop(in *inbound) {
	e := in.ep
	if in.claimed {
		w.matching.claimed.Remove(&in.match.inList)
	} else {
		w.unlist(in)
	}
	if a := &e.partial; a.in == in {
		a.in = nil
	}
	for b := in.head; b != nil; {
		next := b.next
		w.spares.blocks.put(b)
		b = next
	}
	*in = inbound{}
	if p := &w.spares.inbounds; p.count < p.most {
		in.next, p.free = p.free, in
		p.count++
	}
}

// sweep drops messages that nothing receives any more, so that they take no place from others.
func (w *Worker) sweep(unwanted func(e *Endpoint, tag uint64) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := w.matching.unexpected.all.Front(); l != nil; {
		in := l.Owner().in
		l = l.Next()
		if !unwanted(in.ep, in.match.tag) {
			continue
		}
		e, places := in.ep, in.fragments
		if e.err == nil && (in.announced || in.notify) {
			e.queueNotice(in.id) // its place goes back with the notice: the sender is done
			places--
		}
		e.ledger.Free(places)
		w.drop(in)
		if e.canPush() {
			e.kick()
		}
	}
}
