package tagged

import (
	"ibverbx/internal/guard"
	"ibverbx/internal/list"
	"ibverbx/transport"
)

// reading is a long message that is being read out of the sender's memory, a few chunks at a time.
//
// Invariant: it is in Endpoint.readQueue if and only if issued < length, or in spares.readings
// when it is not used.
type reading struct {
	e      *Endpoint
	req    *Request // the receive that it is for
	id     uint32   // the sender's number for the message
	memory memory   // the message's memory at the sender
	pins   pinList  // the memory that it is read into
	inList list.Link[reading]
	readCursor
}

// readCursor is the position of a reading.
//
// Invariant: done <= issued <= length; while no read has failed, inFlight is the number of chunks
// between done and issued.
type readCursor struct {
	length   uint64 // of the message, bytes
	issued   uint64 // bytes for which reads were posted
	done     uint64 // bytes that were read
	inFlight int    // reads

	// The source and the destination of the next chunk.
	from       int    // index of the sender's piece
	fromOffset uint64 // in that piece, bytes
	to         int    // index of the pin
	toOffset   uint64 // in that pin, bytes
}

// chunk is one read.
type chunk struct {
	comp transport.Completion
	fn   func(*transport.Completion)
	rd   *reading
	n    uint64 // bytes
	next *chunk // in spares.chunks
}

// newReading returns a free reading, or a new one.
func (w *Worker) newReading() *reading {
	if rd := w.spares.readings.PopFront(); rd != nil {
		return rd
	}
	return &reading{}
}

// put gives a reading back to the worker.
func (rd *reading) put(w *Worker) {
	rd.e, rd.req, rd.readCursor = nil, nil, readCursor{}
	w.spares.readings.PushFront(&rd.inList, rd)
}

// newChunk returns a free chunk, or a new one.
func (w *Worker) newChunk() *chunk {
	c := w.spares.chunks
	if c == nil {
		c = &chunk{}
		c.fn = func(*transport.Completion) { w.chunkRead(c) } // once for each chunk, not for each read
		return c
	}
	w.spares.chunks, c.next = c.next, nil
	return c
}

// put gives a chunk back to the worker.
func (c *chunk) put(w *Worker) {
	c.rd, c.next, w.spares.chunks = nil, w.spares.chunks, c
}

// startReading begins to read a message into its receive; kick continues. It releases the lock
// while it registers memory. Meanwhile the receive cannot be cancelled, since it is matched, but
// the endpoint may end.
func (e *Endpoint) startReading(rd *reading, r *Request, id uint32) {
	w := e.w
	rd.e, rd.req, rd.id, rd.length = e, r, id, uint64(r.info.Length)
	if r.info.Length > r.data.length {
		rd.finish(ErrTruncated)
		return
	}
	e.active++
	var err error
	if r.pins.count != 0 { // a receive into device memory, which it has pinned already
		rd.pins, r.pins = r.pins, pinList{}
	} else if err = rd.pins.pin(w, &r.data, r.info.Length, ForReceives); err != nil {
		err = refuse("recv", err, "the memory to receive into cannot be registered")
	}
	if e.err != nil {
		err = e.err
	}
	if err != nil {
		e.active--
		rd.finish(err)
		return
	}
	e.readQueue.PushBack(&rd.inList, rd)
}

// pushReads posts reads, one for each message in turn. They bypass the transport's queue, where
// active messages may wait for credits that the peer's program withholds: reads need no credit.
func (e *Endpoint) pushReads() error {
	w, view := e.w, e.tep.BypassQueue()
	for e.reads < w.cfg.Window && !e.readQueue.Empty() {
		rd := e.readQueue.First()
		from, to := &rd.memory.pieces[rd.from], &rd.pins.pins[rd.to]
		n := min(uint64(w.cfg.Chunk), rd.length-rd.issued, from.Length-rd.fromOffset, to.length-rd.toOffset)
		remote := *from
		remote.Addr, remote.Length = from.Addr+rd.fromOffset, n
		c := w.newChunk()
		c.rd, c.n = rd, n
		c.comp.Init(1, c.fn)
		if _, err := view.GetZcopy(&c.comp, remote, to.segment(rd.toOffset, n)); err != nil {
			c.put(w)
			return err
		}
		e.reads++
		rd.inFlight++
		rd.advance(n)
		if e.readQueue.Remove(&rd.inList); rd.issued < rd.length {
			e.readQueue.PushBack(&rd.inList, rd)
		}
	}
	return nil
}

// advance moves to the chunk behind the next n bytes.
func (rd *reading) advance(n uint64) {
	rd.issued += n
	if rd.fromOffset += n; rd.fromOffset == rd.memory.pieces[rd.from].Length {
		rd.from, rd.fromOffset = rd.from+1, 0
	}
	if rd.toOffset += n; rd.toOffset == rd.pins.pins[rd.to].length {
		rd.to, rd.toOffset = rd.to+1, 0
	}
}

// chunkRead handles the completion of a read.
func (w *Worker) chunkRead(c *chunk) {
	w.mu.Lock()
	rd := c.rd
	e := rd.e
	err := c.comp.Err()
	if err != nil {
		// OnError of the transport endpoint reports the same, perhaps later. Failing the endpoint
		// ends the readings that have no read in flight: rd still counts this one, and ends below.
		e.fail(err)
	}
	e.reads--
	rd.inFlight--
	if err == nil {
		rd.done += c.n
		e.traffic.receivedBytes += c.n
	}
	c.put(w)
	if rd.inFlight == 0 && (e.err != nil || rd.done == rd.length) {
		rd.end()
	}
	if e.err == nil {
		e.kick()
	}
	if guard.Checked {
		e.check()
	}
	w.unlockAndReport()
}

// end ends a reading that has no read in flight.
func (rd *reading) end() {
	rd.e.active--
	var err error
	if rd.done < rd.length {
		err = rd.e.err
	}
	rd.finish(err)
}

// finish completes the receive and queues the notice for the sender.
func (rd *reading) finish(err error) {
	e, r, w := rd.e, rd.req, rd.e.w
	if err == nil && rd.pins.staged != nil {
		r.data.scatter(rd.pins.staged)
	}
	rd.pins.release(w)
	if err == nil {
		e.traffic.received++
	}
	if e.err == nil {
		e.queueNotice(rd.id)
	}
	rd.put(w)
	r.complete(err)
}
