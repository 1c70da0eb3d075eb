package tagged

import (
	"encoding/binary"

	"ibverbx/internal/list"
	"ibverbx/transport"
)

// batch is several short sends that wait in a row, and go out as one active message. A sender that
// is faster than its resources often has such rows; in a batch each message costs a fraction.
type batch struct {
	first *list.Link[Request] // in Endpoint.queue
	most  int                 // messages that may go into it: what the window has room for
	count int                 // messages that fill has put into it
	pack  func([]byte) int    // fill: made once, so that no send makes a closure
}

// batchLongest is the longest message that goes into a batch: with longer ones there is little to
// save.
const batchLongest = 512

// batchable reports whether a send may go into a batch.
func (r *Request) batchable() bool {
	return r.stage == requestQueued && r.kind == sendEager && r.data.length <= batchLongest
}

// batches reports whether the first send of the queue, r, goes out together with others.
func (e *Endpoint) batches(r *Request) bool {
	if e.ledger.Room() < 2 || !r.batchable() {
		return false
	}
	next := r.inQueue.Next()
	if next == nil {
		return false
	}
	second := next.Owner()
	return second.batchable() &&
		2*batchEntry+r.data.length+second.data.length <= e.limits.AMBcopy-maxHeader
}

// fill writes the messages that fit, and is the pack function of a batch.
func (b *batch) fill(dst []byte) int {
	n := 0
	b.count = 0
	for l := b.first; l != nil && b.count < b.most; l = l.Next() {
		r := l.Owner()
		if !r.batchable() || len(dst)-n < batchEntry+r.data.length {
			break
		}
		binary.LittleEndian.PutUint64(dst[n:], r.info.Tag)
		binary.LittleEndian.PutUint16(dst[n+8:], uint16(r.data.length))
		n += batchEntry
		n += r.data.gather(dst[n : n+r.data.length])
		r.data.rewind() // the batch may be refused, and the message sent alone
		b.count++
	}
	return n
}

// pushBatch sends the first messages of the queue in one active message.
func (e *Endpoint) pushBatch(view *transport.Endpoint) error {
	w := e.w
	b := &w.outgoing.batch
	b.first, b.most = e.queue.Front(), e.ledger.Room()
	h := header{window: e.ledger.Grant(0)}
	_, err := view.AMBcopy(amBatch, h.put(&w.outgoing.hdr, amBatch), b.pack)
	b.first = nil
	if err != nil {
		return err
	}
	e.ledger.Sent(b.count)
	e.ledger.Granted(h.window)
	w.stats.batches++
	e.traffic.sent += uint64(b.count)
	for range b.count {
		r := e.queue.PopFront()
		e.traffic.sentBytes += uint64(r.data.length)
		r.complete(nil)
	}
	return nil
}

// arrivedBatch handles the messages of a batch, each of which takes a place of the window.
func (e *Endpoint) arrivedBatch(b []byte) error {
	for {
		tag, data, rest, err := nextInBatch(b)
		if err != nil {
			return err
		}
		if !e.ledger.Arrive() {
			return beyondWindow(amBatch)
		}
		e.arrivedEager(&header{tag: tag, length: uint64(len(data))}, data)
		if len(rest) == 0 {
			return nil
		}
		b = rest
	}
}
