package transport

import (
	"ibverbx"
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
	slot   uint32 // of its buffer
	length uint32 // of all that has arrived, bytes
	header uint8  // length of the sender's header in that
	id     AMID
	state  messageState
	// returnsCredit reports that a credit can be given back once the buffer is posted again.
	returnsCredit bool
}

// messageState is who has the buffer of a message.
type messageState uint8

const (
	messagePosted  messageState = iota // the NIC, or it gets it next
	messageHandled                     // the handler, or it is about to run
	messageKept                        // the program, until Release
)

// Endpoint is where the message came from.
func (m *Message) Endpoint() *Endpoint { return &m.peer.views[0] }

// ID is the handler's id.
func (m *Message) ID() AMID { return m.id }

// Header is the sender's header.
func (m *Message) Header() []byte {
	end := wireHeader + int(m.header)
	return m.peer.mem.bytes(m.slot)[wireHeader:end:end]
}

// Data is the payload.
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

// repost notes that a buffer goes back to the NIC: at once, or with others together.
func (p *peerState) repost(slot uint32, atOnce bool) {
	r := &p.receiving
	m := &r.messages[slot]
	m.state, m.header, m.length = messagePosted, 0, wireHeader
	r.toRepost = append(r.toRepost, slot)
	if atOnce || 4*len(r.toRepost) >= p.w.cfg.AMBuffers || p.credits.PeerWaits() {
		p.w.chores.repost(p)
	}
}

// postReceives posts the buffers of all endpoints that are in chores.reposts, and gives credits
// back for them where they are due.
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
