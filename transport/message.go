package transport

import (
	"fmt"

	"ibverbx"
	"ibverbx/internal/flow"
	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// Message is an active message that has arrived. It lies in a receive buffer of the endpoint, which
// has cost the peer a credit.
//
// It fits half a cache line: with a hundred endpoints of 32 messages each, a larger one costs cache
// misses.
type Message struct {
	_      guard.NoCopy
	peer   *peerState
	slot   uint32 // slot of its buffer
	length uint32 // everything that has arrived, bytes
	header uint8  // length of the sender's header in that
	id     AMID
	state  messageState
	// returnsCredit reports that a credit can be given back once the buffer is posted again.
	returnsCredit bool
}

// messageState is the owner of a message's buffer.
type messageState uint8

const (
	messagePosted  messageState = iota // the NIC, now or next
	messageHandled                     // the handler, which runs or is about to
	messageKept                        // the program, until Release
)

// Endpoint returns the endpoint that the message came from.
func (m *Message) Endpoint() *Endpoint { return &m.peer.views[0] }

// ID returns the handler's id.
func (m *Message) ID() AMID { return m.id }

// Header returns the sender's header.
func (m *Message) Header() []byte {
	end := wireHeader + int(m.header)
	return m.peer.mem.bytes(m.slot)[wireHeader:end:end]
}

// Data returns the payload.
func (m *Message) Data() []byte {
	return m.peer.mem.bytes(m.slot)[wireHeader+int(m.header) : m.length : m.length]
}

// Keep keeps the message valid beyond its handler, until Release. Until then the peer has one
// credit less: while a program keeps all buffers, the peer's active messages meet ErrNoResource.
// Keep must be called by the handler.
func (m *Message) Keep() {
	m.peer.w.mu.Lock()
	if m.state == messageHandled {
		m.state = messageKept
		m.peer.w.stats.kept++
	}
	m.peer.unlock()
}

// Release gives a kept message back; Header and Data are no longer valid. It may be called from any
// goroutine, once.
func (m *Message) Release() {
	p := m.peer
	w := p.w
	w.mu.Lock()
	defer p.unlock()
	if m.state != messageKept {
		panic("transport: release of a message that is not kept")
	}
	w.stats.kept--
	m.returnsCredit = true
	p.repost(m.slot, false)
	w.postReceives()
}

// repost lists a buffer to go back to the NIC, at once or together with others.
func (p *peerState) repost(slot uint32, atOnce bool) {
	r := &p.receiving
	m := &r.messages[slot]
	m.state, m.header, m.length = messagePosted, 0, wireHeader
	r.toRepost = append(r.toRepost, slot)
	if atOnce || 4*len(r.toRepost) >= p.w.cfg.AMBuffers || p.credits.PeerWaits() {
		p.w.chores.repost(p)
	}
}

// postReceives posts the buffers of all endpoints in chores.reposts, and gives back the credits
// that are due for them.
func (w *Worker) postReceives() {
	list := w.chores.reposts
	left := list[:0]
	for _, p := range list {
		p.postReceives()
		if p.receiving.repostListed = len(p.receiving.toRepost) != 0; p.receiving.repostListed {
			left = append(left, p)
		}
	}
	clear(list[len(left):])
	w.chores.reposts = left
}

// postReceives posts the endpoint's buffers that are in toRepost.
func (p *peerState) postReceives() {
	r := &p.receiving
	if !p.ending.stage.serves() {
		r.toRepost = r.toRepost[:0]
		return
	}
	if err := p.postBuffers(); err != nil {
		p.failQP(err)
		return
	}
	p.giveCredits()
}

// postBuffers posts the endpoint's buffers that are in toRepost. It returns an error if the queue
// pair refuses them permanently; what it refuses for now stays in toRepost.
func (p *peerState) postBuffers() error {
	t, r := &p.w.templates, &p.receiving
	for len(r.toRepost) > len(t.recv) {
		t.recv = append(t.recv, ibverbx.RecvWR{})
	}
	batch := t.recv[:len(r.toRepost)]
	for i, slot := range r.toRepost {
		batch[i].ID = p.recvID(slot)
		batch[i].Local = p.mem.receive(slot)
	}
	n, err := p.conn.qp.PostRecv(batch...)
	for _, slot := range r.toRepost[:n] {
		if m := &r.messages[slot]; m.returnsCredit {
			m.returnsCredit = false
			p.credits.Free(1)
		}
	}
	r.toRepost = r.toRepost[:copy(r.toRepost, r.toRepost[n:])]
	switch {
	case err == nil:
	case verbs.IsTransient(err):
		p.w.chores.refused = true
	default:
		r.toRepost = r.toRepost[:0]
		return err
	}
	return nil
}

// receiving is the receive direction of an endpoint: its receive buffers. peerState.credits counts
// how much the peer may send.
//
// Invariant: each buffer is posted, in toRepost, with a handler, or kept by the program. While the
// endpoint serves, the credits that the peer has, those that can be given back, and the active
// messages whose buffer is not posted again add up to Config.AMBuffers.
type receiving struct {
	messages []Message // by the slot of their receive buffer
	toRepost []uint32  // slots of the buffers to post again
	bytes    uint64    // bytes of the active messages that have arrived, without the transport's headers
	// attempt counts the attempts to connect that failed with receives posted. Those were flushed;
	// their completions have another number in their ids and are dropped.
	attempt uint16
	// ready reports that every buffer is posted or in toRepost.
	ready bool
	// repostListed reports that the endpoint is in chores.reposts.
	repostListed bool
	// aliveSinceProbe reports that a completion has come since keepAlive last looked for silent
	// peers, or that the endpoint has been connected since.
	aliveSinceProbe bool
}

// inUse reports whether a handler or the program has a message, and so its buffer.
func (r *receiving) inUse() bool {
	for i := range r.messages {
		if r.messages[i].state != messagePosted {
			return true
		}
	}
	return false
}

// check returns how the invariant is broken; nil while it holds.
func (r *receiving) check(credits *flow.Ledger, buffers int) error {
	taken := 0
	for i := range r.messages {
		if m := &r.messages[i]; m.state != messagePosted || m.returnsCredit {
			taken++
		}
	}
	for _, slot := range r.toRepost {
		if r.messages[slot].state != messagePosted {
			return fmt.Errorf("receive buffer %d is to be posted again, and its message is in use", slot)
		}
	}
	if open := credits.Open(); open+credits.Due()+taken != buffers {
		return fmt.Errorf("the peer has %d credits, %d can be given back, %d messages hold one: %d in all",
			open, credits.Due(), taken, buffers)
	}
	return nil
}

// arrived handles a completed receive of n bytes.
func (p *peerState) arrived(slot uint32, n uint64) {
	w, r := p.w, &p.receiving
	if int(slot) >= len(r.messages) || r.messages[slot].state != messagePosted {
		w.stats.stale++
		return
	}
	m := &r.messages[slot]
	msg := p.mem.bytes(slot)
	msg = msg[:min(n, uint64(len(msg)))]
	var h header
	if err := h.parse(msg); err != nil {
		p.violated(err)
		return
	}
	if !p.credits.Regain(h.credits) {
		p.violated(fmt.Errorf("%d credits for %d buffers", p.credits.Room()+int(h.credits), p.credits.Most()))
		return
	}
	if h.kind != wireAM {
		p.repost(slot, true) // the peer relies on room for these
		switch h.kind {
		case wireBye:
			p.fail(stagePeerClosed, ErrPeerClosed, nil)
		case wireAbort:
			p.fail(stagePeerClosed, ErrPeerFailed, ErrPeerAborted)
		}
		return
	}
	switch {
	case !p.credits.Arrive():
		p.violated(fmt.Errorf("active message %d without a credit", h.id))
		return
	case !w.handlers.has(h.id):
		p.violated(fmt.Errorf("active message %d, which has no handler", h.id))
		return
	}
	if p.credits.PeerWaits() && len(r.toRepost) != 0 {
		w.chores.repost(p)
	}
	w.stats.amReceived++
	r.bytes += uint64(len(msg) - wireHeader)
	m.id, m.state = h.id, messageHandled
	m.header, m.length = h.length, uint32(len(msg))
	w.round.report(event{kind: eventMessage, peer: p, m: m})
}

// violated fails the endpoint because the peer broke the protocol.
func (p *peerState) violated(why error) {
	p.fail(stageViolated, ErrProtocol, why)
}

// giveCredits sends credits in a separate message when no active message carries them: when half of
// the buffers are free again, or when the peer cannot have any credit left (see
// flow.Ledger.MustGrant).
//
// The peer keeps controlSlots receives for such messages and a goodbye. They suffice: a message by
// the first rule carries at least half of all credits, and before one by the second the peer has
// handled every earlier one, so two at most arrive before the peer posts a receive again. Apart
// from that, two at most are unacknowledged: more wait until one of them has ended.
func (p *peerState) giveCredits() {
	s := p.ending.stage
	if !s.serves() || s == stageParting || p.sending.controlOps >= controlSlots-1 || !p.credits.MustGrant() {
		return
	}
	p.sendControl(wireCredits)
}

// creditsGiven counts all credits that are due as given: a message that carries them was posted.
func (p *peerState) creditsGiven() { p.credits.Granted(p.credits.Grant(0)) }

// sendControl sends a message of the transport itself, with all credits that are due. It reports
// whether the message was posted.
func (p *peerState) sendControl(kind wireKind) bool {
	w, t := p.w, &p.w.templates
	wr := t.control[:]
	wr[0].ID = p.sendID()
	buf := t.inline[:wireHeader]
	if n := p.sending.ops.Tail; w.cfg.QP.MaxInline < wireHeader {
		buf = p.mem.cellBytes(n) // registered memory, and as long as a header
		wr[0].Flags, wr[0].Local = verbs.SendSignaled, p.mem.cell(n)
	} else {
		wr[0].Inline = buf
	}
	header{kind: kind, credits: p.credits.Grant(0)}.put(buf)
	if _, err := p.conn.qp.PostSend(wr...); err != nil {
		switch {
		case kind == wireAbort: // this end is about to close anyhow
		case verbs.IsTransient(err):
			w.chores.refused = true
			w.chores.retryCredits(p)
			w.wakeForChores()
		default:
			p.failQP(err)
		}
		return false
	}
	p.sending.pushControl(controlOp(kind))
	p.creditsGiven()
	w.stats.control++
	w.wakeForChores()
	return true
}
