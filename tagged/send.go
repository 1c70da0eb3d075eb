package tagged

import (
	"context"
	"errors"

	"ibverbx/internal/errwrap"
	"ibverbx/internal/guard"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Send sends the pieces, one after the other, as one message. A nil request means that the send is
// done and the buffers are free; otherwise do not write to them until the request is done. Either
// way the message goes out after everything sent earlier.
//
// Errors: ErrNotConnected, ErrClosed, or the reason why the endpoint is out of service. After an
// error nothing was sent.
func (e *Endpoint) Send(tag uint64, bufs ...[]byte) (*Request, error) {
	return e.send("send", tag, bufs, false)
}

// SendSync is Send, but done only once a receive of the peer has matched the message.
func (e *Endpoint) SendSync(tag uint64, bufs ...[]byte) (*Request, error) {
	return e.send("send sync", tag, bufs, true)
}

// SendWait sends and waits until the buffers are free. If ctx has ended already it sends nothing.
// If ctx ends during the wait, SendWait cancels the send and returns ctx's error; if part of the
// message has gone out already, the error is an [*InterruptedError].
func (e *Endpoint) SendWait(ctx context.Context, tag uint64, bufs ...[]byte) error {
	if err := e.mayWait(ctx, "send"); err != nil {
		return err
	}
	r, err := e.send("send", tag, bufs, false)
	if r == nil {
		return err
	}
	_, err = r.waitAndFree(ctx)
	return err
}

// SendSyncWait is SendWait for SendSync: it waits for the match, too.
func (e *Endpoint) SendSyncWait(ctx context.Context, tag uint64, bufs ...[]byte) error {
	if err := e.mayWait(ctx, "send sync"); err != nil {
		return err
	}
	r, err := e.send("send sync", tag, bufs, true)
	if r == nil {
		return err
	}
	_, err = r.waitAndFree(ctx)
	return err
}

// mayWait refuses a waiting call whose context is nil or has ended, before it has any effect.
func (e *Endpoint) mayWait(ctx context.Context, op string) error {
	if ctx == nil {
		return e.refuse(op, verbs.ErrInvalid, "no context")
	}
	return errwrap.ContextErr(ctx)
}

func (e *Endpoint) send(op string, tag uint64, bufs [][]byte, sync bool) (*Request, error) {
	w := e.w
	n, ok := size(bufs)
	if !ok {
		return nil, e.refuse(op, verbs.ErrInvalid, "the pieces are longer than an int holds")
	}
	w.mu.Lock()
	if err := e.admit(op, tag); err != nil {
		w.mu.Unlock()
		return nil, err
	}
	long := n > w.cfg.EagerLimit
	if !long && !sync && e.queue.Empty() && !e.scheduled && e.ledger.Room() != 0 &&
		n <= e.limits.AMBcopy-maxHeader {
		w.outgoing.src.set(bufs, n)
		err := e.sendFragment(e.tep, amEager, &header{tag: tag}, &w.outgoing.src, n)
		w.outgoing.src.clear()
		if err == nil {
			e.traffic.sent++
		}
		if err == nil || !errors.Is(err, transport.ErrNoResource) {
			w.mu.Unlock()
			return nil, err
		}
	}
	r := w.newRequest(tag, bufs, n)
	r.ep = e
	if sync {
		r.kind = sendSync
	}
	if long {
		r.kind = sendLong // a long send is done only after the match
		if err := e.pinSource(r, op); err != nil {
			r.discard()
			w.mu.Unlock()
			return nil, err
		}
	}
	return e.enqueue(r)
}

// enqueue sends a request as soon as it can go out, and releases the lock.
func (e *Endpoint) enqueue(r *Request) (*Request, error) {
	w := e.w
	e.queue.PushBack(&r.inQueue, r)
	e.kick()
	if guard.Checked {
		e.check()
	}
	if r.stage == requestDone {
		err := r.comp.Err()
		r.put()
		w.mu.Unlock()
		return nil, err
	}
	w.mu.Unlock()
	w.teams.drive() // a send of a collective call may have gone out before this one
	return r, nil
}

// pinSource registers the memory of a long send with the NICs, unless it is in regions. It releases
// the lock while it registers.
func (e *Endpoint) pinSource(r *Request, op string) error {
	w := e.w
	if err := r.pins.pin(w, &r.data, r.data.length, ForSends); err != nil {
		r.pins.release(w)
		return e.refuse(op, err, "the memory to send from cannot be registered")
	}
	if r.pins.describedSize() > e.limits.AMBcopy-maxHeader {
		r.pins.release(w)
		if err := r.pins.stage(w, &r.data, r.data.length, ForSends); err != nil {
			return e.refuse(op, err, "the memory to send from cannot be registered")
		}
	}
	if err := e.admit(op, r.info.Tag); err != nil { // it may have ended while the lock was released
		r.pins.release(w)
		return err
	}
	return nil
}

// pushSend sends as much of the first send of the queue as window and resources allow. It reports
// whether all of it has gone out.
func (e *Endpoint) pushSend(view *transport.Endpoint, r *Request) (gone bool, err error) {
	h := header{tag: r.info.Tag, length: uint64(r.data.length)}
	if r.stage == requestQueued && r.kind != sendEager {
		e.waiting.add(r) // no effect if an earlier attempt added it
		h.id = r.id
	}
	if r.kind == sendLong {
		h.flag = uint8(r.pins.count)
		o := &e.w.outgoing
		o.scratch = r.pins.describe(o.scratch[:0])
		o.src.set([][]byte{o.scratch}, len(o.scratch))
		err := e.sendFragment(view, amAnnounce, &h, &o.src, len(o.scratch))
		o.src.clear()
		if err == nil {
			r.stage = requestActive
		}
		return err == nil, err
	}
	if r.kind == sendSync {
		h.flag = flagSync
	}
	for e.ledger.Room() != 0 {
		room := e.limits.AMBcopy - maxHeader
		kind, n := amEager, r.data.length
		switch {
		case r.stage == requestActive:
			h.flag, h.id = 0, 0
			kind, n, h.tag = amMore, min(room, r.data.length-r.sent), uint64(r.sent)
		case n > room:
			kind, n = amFirst, room
		}
		piece, offset := r.data.piece, r.data.offset
		if err := e.sendFragment(view, kind, &h, &r.data, n); err != nil {
			r.data.piece, r.data.offset = piece, offset
			return false, err
		}
		r.stage = requestActive
		if r.sent += n; r.sent == r.data.length {
			e.traffic.sent++
			return true, nil
		}
	}
	return false, nil
}

// sendFragment sends the next n bytes of the pieces as an active message that takes a place of the
// window. It carries the grant that is due to the peer.
func (e *Endpoint) sendFragment(view *transport.Endpoint, kind transport.AMID, h *header, p *pieces,
	n int) error {
	o := &e.w.outgoing
	h.window = e.ledger.Grant(0)
	hdr := h.put(&o.hdr, kind)
	var err error
	if len(hdr)+n <= e.limits.AMShort && n <= len(o.short) {
		p.gather(o.short[:n])
		err = view.AMShort(kind, hdr, o.short[:n])
	} else {
		o.from, o.left = p, n
		_, err = view.AMBcopy(kind, hdr, o.pack)
		o.from = nil
	}
	if err == nil {
		e.ledger.Sent(1)
		if kind != amAnnounce {
			e.traffic.sentBytes += uint64(n)
		}
		e.ledger.Granted(h.window)
	}
	return err
}

// sendTable holds the sends of an endpoint that wait for a notice of the peer, by number. A number
// is a slot's index plus one; zero means none.
//
// Invariant: slots[i] is nil if and only if i is in free; otherwise slots[i].id is i+1.
type sendTable struct {
	slots []*Request
	free  []uint32
}

// count returns the number of sends that wait.
func (t *sendTable) count() int { return len(t.slots) - len(t.free) }

// add gives a send a number, unless it has one.
func (t *sendTable) add(r *Request) {
	if r.id != 0 {
		return
	}
	if n := len(t.free); n != 0 {
		r.id = t.free[n-1] + 1
		t.free = t.free[:n-1]
		t.slots[r.id-1] = r
		return
	}
	t.slots = append(t.slots, r)
	r.id = uint32(len(t.slots))
}

// get returns the send with a number; nil if there is none.
func (t *sendTable) get(id uint32) *Request {
	if id == 0 || id > uint32(len(t.slots)) {
		return nil
	}
	return t.slots[id-1]
}

// remove frees the number of a send, if it has one.
func (t *sendTable) remove(r *Request) {
	if r.id == 0 {
		return
	}
	t.slots[r.id-1] = nil
	t.free = append(t.free, r.id-1)
	r.id = 0
}

// outgoing is the memory that a send needs while it goes out. There is one for all endpoints of a
// worker, because Worker.mu is held from packing to posting.
//
// Invariant: between posts src is clear, and from and batch.first are nil: nothing refers to the
// program's memory.
type outgoing struct {
	hdr     [maxHeader]byte // the active message's header
	short   [256]byte       // payload of an active message that is sent inline
	scratch []byte          // payload of an announcement
	src     pieces          // what goes out, if not a request's own pieces
	from    *pieces         // what pack copies from
	left    int             // bytes that pack copies
	batch   batch
	// pack is the method value gather, made once so that no send makes a closure.
	pack func(dst []byte) int
}

// init allocates the memory; size is that of the longest announcement in bytes.
func (o *outgoing) init(size int) {
	o.scratch = make([]byte, 0, size)
	o.pack, o.batch.pack = o.gather, o.batch.fill
}

// gather is the pack function of a fragment.
func (o *outgoing) gather(dst []byte) int { return o.from.gather(dst[:o.left]) }
