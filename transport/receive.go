package transport

import (
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
)

// Message is an active message that has arrived. It lies in a receive buffer of the endpoint, for
// which the peer has paid a credit.
//
// Half a cache line each: with a hundred endpoints, of 32 messages each, more would be felt.
type Message struct {
	_      noCopy
	c      *core
	slot   uint32 // of its buffer
	length uint32 // of all that has arrived, bytes
	header uint8  // of that, the sender's header
	id     AMID
	state  messageState
	owes   bool // its credit goes back when the buffer is posted again
}

// messageState is whose the buffer is.
type messageState uint8

const (
	messagePosted  messageState = iota // the NIC's, or about to be
	messageHandled                     // the handler's
	messageKept                        // the program's
)

// Endpoint is where the message came from.
func (m *Message) Endpoint() *Endpoint { return &m.c.faces[0] }

// ID is the handler's id.
func (m *Message) ID() AMID { return m.id }

// Header is the sender's header.
func (m *Message) Header() []byte {
	end := wireHeader + int(m.header)
	return m.c.buffer(m.slot)[wireHeader:end:end]
}

// Data is the payload.
func (m *Message) Data() []byte {
	return m.c.buffer(m.slot)[wireHeader+int(m.header) : m.length : m.length]
}

// Keep lets the message outlive its handler, until Release. The buffer is missing to the peer as
// long: who keeps all of them has the peer's active messages meet ErrNoResource. It must be called
// by the handler.
func (m *Message) Keep() {
	m.c.w.mu.Lock()
	if m.state == messageHandled {
		m.state = messageKept
		m.c.w.stats.kept++
	}
	m.c.w.mu.Unlock()
}

// Release gives a kept message back. Header and Data must not be used any more. It may be called
// from any goroutine, once.
func (m *Message) Release() {
	c := m.c
	w := c.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.state != messageKept {
		panic("transport: release of a message that is not kept")
	}
	w.stats.kept--
	m.owes = true
	c.repost(m.slot, false)
	w.postReceives()
}

// buffer is the memory of a receive buffer.
func (c *core) buffer(slot uint32) []byte {
	return c.slabMem[uint64(slot)*c.stride:][:c.w.cfg.BufferSize]
}

// repost notes that a buffer goes back to the NIC: at once, or with others together.
func (c *core) repost(slot uint32, atOnce bool) {
	m := &c.messages[slot]
	m.state, m.header, m.length = messagePosted, 0, wireHeader
	c.again = append(c.again, slot)
	if atOnce || 4*len(c.again) >= c.w.cfg.AMBuffers || c.granted == c.received {
		c.listReposts()
	}
}

// listReposts has the endpoint's buffers posted before this round of progress ends.
func (c *core) listReposts() {
	if !c.listed {
		c.listed = true
		c.w.reposts = append(c.w.reposts, c)
	}
}

// postReceives hands the buffers to the NICs, and then gives credits back for them where that is
// due.
func (w *Worker) postReceives() {
	list := w.reposts
	w.reposts = w.reposts[:0]
	for _, c := range list {
		c.postReceives()
		if c.listed = len(c.again) != 0; c.listed {
			w.reposts = append(w.reposts, c) // never beyond where list is read
		}
	}
	clear(list[len(w.reposts):])
}

func (c *core) postReceives() {
	w := c.w
	if c.stage == stageAborted || c.err != nil {
		c.again = c.again[:0]
		return
	}
	for len(c.again) > len(w.recv) {
		w.recv = append(w.recv, ibverbx.RecvWR{})
	}
	batch := w.recv[:len(c.again)]
	for i, slot := range c.again {
		batch[i].ID = recvID | uint64(c.id)<<32 | uint64(slot)
		batch[i].Local = c.slab.Slice(uint64(slot)*c.stride, uint64(w.cfg.BufferSize))
	}
	n, err := c.qp.PostRecv(batch...)
	for _, slot := range c.again[:n] {
		if m := &c.messages[slot]; m.owes {
			m.owes = false
			c.owed++
		}
	}
	c.again = c.again[:copy(c.again, c.again[n:])]
	switch {
	case err == nil:
	case verbs.IsTransient(err):
		w.retrying = true // the next round of progress tries again
	default:
		c.again = c.again[:0]
		c.failQP(err)
		return
	}
	c.giveCredits()
}

// failQP fails the endpoint because its virtual queue pair refused what it should take.
func (c *core) failQP(err error) {
	cause := c.qp.Err()
	if cause == nil {
		cause = reason(err)
	}
	c.fail(ErrPeerFailed, cause)
}

// giveCredits sends credits by themselves where no message of this end carries them: when half of
// the buffers are free again, or when the peer cannot have any credit left. A message by the first
// rule carries half of all, and before one by the second the peer has taken in every other, so it
// never has to receive more than two at a time: it keeps controlSlots receives for them and a
// goodbye. How many are unacknowledged is another matter: two at most, and the rest waits for a
// slot.
func (c *core) giveCredits() {
	if c.owed == 0 || c.inControl >= controlSlots-1 || c.stage == stageAborted || c.peerBye || c.parting {
		return
	}
	if 2*c.owed >= c.w.cfg.AMBuffers || c.granted == c.received {
		c.sendControl(wireCredits)
	}
}

// gave notes that a message with all the credits that were owed has gone out.
func (c *core) gave() {
	c.granted += uint64(c.owed)
	c.owed = 0
}

// sendControl sends a message of the transport itself.
func (c *core) sendControl(kind wireKind) bool {
	w := c.w
	wr := w.control[:]
	wr[0].ID = c.sendID()
	buf := w.inline[:wireHeader]
	if w.cfg.QP.MaxInline < wireHeader { // the slot's cell is registered, and as long as a header
		off := c.cellOffset(c.ops.tail)
		buf = c.slabMem[off : off+wireHeader]
		wr[0].Flags, wr[0].Local = verbs.SendSignaled, c.cell(c.ops.tail)
	} else {
		wr[0].Inline = buf
	}
	header{kind: kind, credits: uint16(c.owed)}.put(buf)
	if _, err := c.qp.PostSend(wr...); err != nil {
		if verbs.IsTransient(err) {
			w.retrying = true // the next round of progress tries again
			w.again = append(w.again, c)
			w.posted()
		} else {
			c.failQP(err)
		}
		return false
	}
	o := c.ops.push()
	*o = op{kind: opControl, buf: noBuffer}
	c.inControl++
	c.gave()
	w.stats.control++
	w.posted()
	return true
}

// arrived takes in a completed receive.
func (c *core) arrived(slot uint32, n uint64) {
	w := c.w
	if int(slot) >= len(c.messages) || c.messages[slot].state != messagePosted {
		w.stats.stale++
		return
	}
	m := &c.messages[slot]
	msg := c.buffer(slot)
	msg = msg[:min(n, uint64(len(msg)))]
	var h header
	if err := h.parse(msg); err != nil {
		c.violated(err)
		return
	}
	if c.credits += int(h.credits); c.credits > c.peer.AMBuffers {
		c.violated(fmt.Errorf("%d credits for %d buffers", c.credits, c.peer.AMBuffers))
		return
	}
	if h.kind != wireAM {
		c.repost(slot, true) // the peer counts on room for these
		if h.kind == wireBye {
			c.peerBye = true
			c.fail(ErrPeerClosed, nil)
		}
		return
	}
	switch {
	case c.received == c.granted:
		c.violated(fmt.Errorf("active message %d without a credit", h.id))
		return
	case w.handlers[h.id] == nil:
		c.violated(fmt.Errorf("active message %d, which has no handler", h.id))
		return
	}
	if c.received++; c.received == c.granted && len(c.again) != 0 {
		c.listReposts() // the peer has no credit left
	}
	w.stats.amReceived++
	m.id, m.state = h.id, messageHandled
	m.header, m.length = h.length, uint32(len(msg))
	w.tell(event{kind: eventMessage, c: c, m: m})
}

// violated fails the endpoint because of what the peer has sent.
func (c *core) violated(why error) {
	c.w.stats.violations++
	c.fail(ErrProtocol, why)
}
