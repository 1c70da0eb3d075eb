package tagged

// inbound is a message that waits for a receive: eager, in blocks, or announced, with the
// description of its memory in a block.
type inbound struct {
	ep        *Endpoint // where it came from
	match     entry     // in matching.unexpected
	own       entry     // in Endpoint.kept
	length    int       // of the message, bytes
	id        uint32    // the sender's number for the message, if it waits for the notice of the match
	notify    bool      // an eager message whose sender waits for that notice
	announced bool      // the message lies at the sender
	count     int       // pieces of memory of an announced message
	got       int       // bytes of an eager message that have arrived
	fragments int       // of an eager message that have arrived, each of which holds a place
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
	count int // of free ones
	most  int // that are kept: Config.MaxUnexpected
}

// get is an inbound that is not used, or a new one.
func (p *inboundPool) get() *inbound {
	in := p.free
	if in == nil {
		return &inbound{}
	}
	p.free, in.next = in.next, nil
	p.count--
	return in
}

// newInbound is a message that no receive has matched; its bytes are the caller's to keep.
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

// drop removes a message from those that wait, and frees its memory.
func (w *Worker) drop(in *inbound) {
	e := in.ep
	w.matching.unexpected.remove(&in.match)
	e.kept.remove(&in.own)
	w.leftovers.removed(e, in)
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
