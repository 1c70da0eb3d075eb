package tagged

import (
	"encoding/binary"

	"ibverbx/transport"
)

// batch is several short sends that wait in a row, and go out as one active message. A sender that
// is faster than its resources has such rows all the time; in batches each message costs a
// fraction.
type batch struct {
	first *Request // in the queue
	most  int      // messages
	count int
	pack  func([]byte) int // fill: made once, so that no send makes a closure
}

// batchLongest is the longest message that goes into a batch: with longer ones there is little to
// save.
const batchLongest = 512

func (r *Request) batchable() bool {
	return r != nil && r.stage == requestQueued && !r.sync && !r.long && r.data.length <= batchLongest
}

// batches reports whether the first send of the queue, r, goes out together with others.
func (e *Endpoint) batches(r *Request) bool {
	return e.ledger.room > 1 && r.batchable() && r.next.batchable() &&
		2*batchEntry+r.data.length+r.next.data.length <= e.limits.AMBcopy-maxHeader
}

// fill writes the messages that fit.
func (b *batch) fill(dst []byte) int {
	n := 0
	b.count = 0
	for r := b.first; b.count < b.most && r.batchable() &&
		len(dst)-n >= batchEntry+r.data.length; r = r.next {
		binary.LittleEndian.PutUint64(dst[n:], r.info.Tag)
		binary.LittleEndian.PutUint16(dst[n+8:], uint16(r.data.length))
		n += batchEntry
		n += r.data.gather(dst[n : n+r.data.length])
		r.data.rewind() // the batch may not go out, and the message then go alone
		b.count++
	}
	return n
}

// pushBatch sends the first messages of the queue in one active message.
func (e *Endpoint) pushBatch(face *transport.Endpoint) error {
	w := e.w
	b := &w.batch
	b.first, b.most = e.queue.head, e.ledger.room
	h := header{window: e.ledger.offer(0)}
	_, err := face.AMBcopy(amBatch, h.put(&w.hdr, amBatch), b.pack)
	b.first = nil
	if err != nil {
		return err
	}
	e.ledger.sent(b.count)
	e.ledger.gave(h.window)
	w.stats.batches++
	for range b.count {
		r := e.queue.head
		e.queue.remove(r)
		r.complete(nil)
	}
	return nil
}

// arrivedBatch takes in the messages of a batch, each of which takes a place in the window.
func (e *Endpoint) arrivedBatch(b []byte) error {
	for {
		tag, data, rest, err := nextInBatch(b)
		if err != nil {
			return err
		}
		if !e.ledger.arrived() {
			return beyondWindow(amBatch)
		}
		e.arrivedEager(&header{tag: tag, length: uint64(len(data))}, data)
		if len(rest) == 0 {
			return nil
		}
		b = rest
	}
}
