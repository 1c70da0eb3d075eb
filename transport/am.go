package transport

import (
	"fmt"
	"strconv"
	"strings"

	"ibverbx"
	"ibverbx/verbs"
)

// AMShort sends an active message: handler id of the peer runs with header and payload. Both are
// copied. header may be nil; it has MaxHeader bytes at most, and both together Limits.AMShort.
func (e *Endpoint) AMShort(id AMID, header, payload []byte) error {
	e.peer.w.mu.Lock()
	err := e.amShort(id, header, payload)
	e.peer.unlock()
	return err
}

func (e *Endpoint) amShort(id AMID, hdr, payload []byte) error {
	const name = "am short"
	p, w := e.peer, e.peer.w
	if err := e.usableAM(name, id, hdr); err != nil {
		return err
	}
	n := wireHeader + len(hdr) + len(payload)
	if n > w.cfg.QP.MaxInline || n > p.conn.maxAM {
		return e.amShortBuffered(name, id, hdr, payload)
	}
	if err := e.tryAdmit(true, false); err != nil {
		return err
	}
	buf := w.templates.inline[:n]
	p.fillHeader(buf, id, hdr)
	copy(buf[wireHeader+len(hdr):], payload)
	wr := &w.templates.send
	wr[0].Flags = verbs.SendSignaled | verbs.SendInline
	wr[0].Inline, wr[0].Local = buf, ibverbx.Segment{}
	_, err := e.post(name, wr, opAM, noBuffer, nil)
	wr[0].Inline = nil
	if err == nil {
		p.sentAM(n)
	}
	return err
}

// amShortBuffered is AMShort for messages that do not fit inline, because the NIC takes less inline
// than a short may have: they go through a bounce buffer.
func (e *Endpoint) amShortBuffered(name string, id AMID, hdr, payload []byte) error {
	p := e.peer
	if limit := p.limits().AMShort; len(hdr)+len(payload) > limit {
		return p.refuse(name, ErrTooLong, "%d bytes of header and payload: at most %d; use bcopy",
			len(hdr)+len(payload), limit)
	}
	_, err := e.amBcopy(name, id, hdr, func(dst []byte) int { return copy(dst, payload) })
	return err
}

// AMBcopy sends an active message whose payload pack writes into the buffer that it gets; pack
// returns how many bytes it wrote. The buffer has Limits.AMBcopy bytes less the header. pack runs
// at most once, during the call, with the worker locked: it must not call anything of this package.
// If it panics, the call has no effect. The result is what pack returned.
func (e *Endpoint) AMBcopy(id AMID, header []byte, pack func(dst []byte) int) (int, error) {
	e.peer.w.mu.Lock()
	n, err := e.amBcopy("am bcopy", id, header, pack)
	e.peer.unlock()
	return n, err
}

func (e *Endpoint) amBcopy(name string, id AMID, hdr []byte, pack func(dst []byte) int) (int, error) {
	p, w := e.peer, e.peer.w
	if err := e.usableAM(name, id, hdr); err != nil {
		return 0, err
	}
	if pack == nil {
		return 0, p.refuse(name, verbs.ErrInvalid, "no pack function")
	}
	if err := e.tryAdmit(true, true); err != nil {
		return 0, err
	}
	buf := p.takeBuffer()
	room := p.bufferBytes(buf)
	room = room[:min(len(room), p.conn.maxAM)]
	start := wireHeader + len(hdr)
	n := p.pack(pack, room[start:], buf)
	if n < 0 || n > len(room)-start {
		p.putBuffer(buf)
		return 0, p.refusePacked(name, n, len(room)-start)
	}
	p.fillHeader(room, id, hdr)
	wr := &w.templates.send
	wr[0].Flags = verbs.SendSignaled
	wr[0].Local = p.bufferSegment(buf, start+n)
	if _, err := e.post(name, wr, opAM, buf, nil); err != nil {
		return 0, err
	}
	p.sentAM(start + n)
	return n, nil
}

// AMZcopy sends an active message whose payload is gathered from registered memory, Limits.Pieces
// pieces at most. The header is copied. The memory must not be written to until comp, which may be
// nil, has fired.
func (e *Endpoint) AMZcopy(comp *Completion, id AMID, header []byte, payload ...ibverbx.Segment) error {
	e.peer.w.mu.Lock()
	err := e.amZcopy(comp, id, header, payload)
	e.peer.unlock()
	return err
}

func (e *Endpoint) amZcopy(comp *Completion, id AMID, hdr []byte, payload []ibverbx.Segment) error {
	const name = "am zcopy"
	p, w := e.peer, e.peer.w
	if err := e.usableAM(name, id, hdr); err != nil {
		return err
	}
	total := uint64(wireHeader + len(hdr))
	for _, s := range payload {
		if total += s.Length; s.Length > uint64(p.conn.maxAM) || total > uint64(p.conn.maxAM) {
			return p.refuse(name, ErrTooLong, "header and payload have more than the %d bytes that the "+
				"peer's buffers hold", p.conn.maxAM-wireHeader)
		}
	}
	if limit := w.cfg.QP.MaxSGE - 1; len(payload) > limit {
		return p.refuse(name, verbs.ErrInvalid, "%d pieces: at most %d", len(payload), limit)
	}
	if err := e.tryAdmit(true, true); err != nil {
		return err
	}
	buf := p.takeBuffer()
	start := wireHeader + len(hdr)
	p.fillHeader(p.bufferBytes(buf), id, hdr)
	wr := &w.templates.send
	wr[0].Flags = verbs.SendSignaled
	wr[0].Local = ibverbx.Segment{}
	w.templates.sgl = append(append(w.templates.sgl[:0], p.bufferSegment(buf, start)), payload...)
	wr[0].SGL = w.templates.sgl
	_, err := e.post(name, wr, opAM, buf, comp)
	wr[0].SGL = nil
	if err == nil {
		p.sentAM(int(total))
	}
	return err
}

// usableAM returns why the endpoint refuses an active message with this id and header; nil if it
// does not.
func (e *Endpoint) usableAM(name string, id AMID, hdr []byte) error {
	p := e.peer
	if err := e.usable(name); err != nil {
		return err
	}
	if p.conn.handlers&(1<<id) == 0 { // nor has it one beyond MaxAMID
		return p.refuse(name, ErrNoHandler, "id %d: the peer has %s", id, handlerList(p.conn.handlers))
	}
	if len(hdr) > MaxHeader {
		return p.refuse(name, ErrTooLong, "header of %d bytes: at most %d", len(hdr), MaxHeader)
	}
	return nil
}

// pack calls a pack function, which writes into dst, a part of a bounce buffer, and returns how
// many bytes it wrote. The caller checks that number.
func (p *peerState) pack(pack func([]byte) int, dst []byte, buf int32) int {
	returned := false
	defer func() {
		if !returned { // it has panicked or called runtime.Goexit: the call has no effect
			p.putBuffer(buf)
			p.unlock()
		}
	}()
	n := pack(dst)
	returned = true
	return n
}

// refusePacked returns the error for a pack function that returned n, but had less room.
func (p *peerState) refusePacked(name string, n, room int) error {
	return p.refuse(name, ErrTooLong, "pack says %d bytes: its buffer has %d", n, room)
}

// fillHeader writes the headers of an active message, with all credits that can be given back.
func (p *peerState) fillHeader(buf []byte, id AMID, hdr []byte) {
	header{kind: wireAM, id: id, length: uint8(len(hdr)), credits: p.credits.Grant(0)}.put(buf)
	copy(buf[wireHeader:], hdr)
}

// sentAM counts an active message that was posted.
func (p *peerState) sentAM(n int) {
	p.credits.Sent(1)
	p.creditsGiven()
	p.w.stats.amSent++
	p.w.stats.amBytes += uint64(n)
	p.sending.traffic.sent += uint64(n - wireHeader)
}

// AMID names a handler of active messages: 0 to MaxAMID.
type AMID uint8

// MaxAMID is the largest id of an active message.
const MaxAMID AMID = 63

// Handler handles an active message. It runs inside progress; see the package's rules for
// callbacks.
type Handler func(m *Message)

// handlerTable is the handlers of active messages by id. Worker.mu guards it.
//
// Invariant: set has the ids whose handler is not nil; a handler that is set stays; once announced,
// the table does not change. So callbacks read handlers without the lock: a message arrives only
// after its id was announced.
type handlerTable struct {
	list      [MaxAMID + 1]Handler
	set       uint64
	announced bool // a card was given out, which lists the ids
}

// add sets the handler of an id, which must have none.
func (t *handlerTable) add(id AMID, h Handler) {
	t.list[id] = h
	t.set |= 1 << id
}

// has reports whether an id has a handler.
func (t *handlerTable) has(id AMID) bool { return t.list[id] != nil }

// announce returns the set of the ids for a card. The table takes no more.
func (t *handlerTable) announce() uint64 {
	t.announced = true
	return t.set
}

// Handle sets the handler for active messages with an id. It is refused for an id that has one, and
// once an endpoint has given out its card, which lists the ids.
func (w *Worker) Handle(id AMID, h Handler) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := &w.handlers
	switch {
	case w.life.closed():
		return fmt.Errorf("transport: handle: %w", ErrClosed)
	case w.life.dead():
		return w.life.deadError("handle")
	case id > MaxAMID || h == nil:
		return fmt.Errorf("transport: handle: %w: id %d must be 0 to %d, and the handler not nil",
			verbs.ErrInvalid, id, MaxAMID)
	case t.has(id):
		return fmt.Errorf("transport: handle: %w: id %d has a handler", verbs.ErrInvalid, id)
	case t.announced:
		return fmt.Errorf("transport: handle: %w: id %d: an endpoint has given out its card, which lists "+
			"the handlers: set them before", verbs.ErrInvalid, id)
	}
	t.add(id, h)
	return nil
}

// handlerList writes a set of ids as "1, 2, 7".
func handlerList(set uint64) string {
	var ids []string
	for id := AMID(0); id <= MaxAMID; id++ {
		if set&(1<<id) != 0 {
			ids = append(ids, strconv.Itoa(int(id)))
		}
	}
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, ", ")
}
