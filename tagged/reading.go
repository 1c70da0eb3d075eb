package tagged

import "ibverbx/transport"

// reading is a long message that is being read out of the sender's memory, a few chunks at a time.
//
// Invariant: done <= issued <= length; under is the number of chunks between them.
type reading struct {
	e      *Endpoint
	req    *Request
	id     uint32 // the sender's
	memory memory
	pins   pinList

	length, issued, done uint64
	under                int
	err                  error

	from       int    // the next chunk is read from this piece of the sender's,
	fromOffset uint64 // at this offset,
	to         int    // into this pin
	toOffset   uint64

	next *reading // free ones; or the next in turn on the endpoint
}

// chunk is one read.
type chunk struct {
	comp transport.Completion
	fn   func(*transport.Completion)
	rd   *reading
	n    uint64
	next *chunk
}

func (w *Worker) newReading() *reading {
	rd := w.readings
	if rd == nil {
		return &reading{}
	}
	w.readings, rd.next = rd.next, nil
	return rd
}

func (rd *reading) put(w *Worker) {
	rd.e, rd.req, rd.err = nil, nil, nil
	rd.length, rd.issued, rd.done, rd.from, rd.fromOffset, rd.to, rd.toOffset = 0, 0, 0, 0, 0, 0, 0
	rd.next, w.readings = w.readings, rd
}

func (w *Worker) newChunk() *chunk {
	c := w.chunks
	if c == nil {
		c = &chunk{}
		c.fn = func(*transport.Completion) { w.chunkRead(c) } // once for each chunk, not each read
		return c
	}
	w.chunks, c.next = c.next, nil
	return c
}

func (c *chunk) put(w *Worker) {
	c.rd, c.next, w.chunks = nil, w.chunks, c
}

// readingRing are the messages that an endpoint has to read, the next in turn first.
type readingRing struct {
	head, tail *reading
	count      int
}

func (r *readingRing) push(rd *reading) {
	rd.next = nil
	if r.tail == nil {
		r.head = rd
	} else {
		r.tail.next = rd
	}
	r.tail = rd
	r.count++
}

func (r *readingRing) pop() *reading {
	rd := r.head
	if r.head = rd.next; r.head == nil {
		r.tail = nil
	}
	rd.next = nil
	r.count--
	return rd
}

// startReading begins to read a message into its receive; kick goes on with it. It lets go of the
// lock for what has to be registered: the receive is matched, so that it cannot be cancelled
// meanwhile, but the endpoint may end.
func (e *Endpoint) startReading(rd *reading, r *Request, id uint32) {
	w := e.w
	rd.e, rd.req, rd.id, rd.length = e, r, id, uint64(r.info.Length)
	if r.info.Length > r.data.length {
		rd.finish(ErrTruncated)
		return
	}
	e.active++
	err := rd.pins.pin(w, &r.data, r.info.Length, ForReceives)
	if err != nil {
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
	e.readings.push(rd)
}

// pushReads starts reads, one of each message in turn. They go past the transport's queue, where
// active messages may wait for credits that a peer's program withholds: reads need none.
func (e *Endpoint) pushReads() error {
	w, face := e.w, e.tep.BypassQueue()
	for e.reads < w.cfg.Window && e.readings.count != 0 {
		rd := e.readings.head
		from, to := &rd.memory.pieces[rd.from], &rd.pins.pins[rd.to]
		n := min(uint64(w.cfg.Chunk), rd.length-rd.issued, from.Length-rd.fromOffset, to.length-rd.toOffset)
		remote := *from
		remote.Addr, remote.Length = from.Addr+rd.fromOffset, n
		c := w.newChunk()
		c.rd, c.n = rd, n
		c.comp.Init(1, c.fn)
		if _, err := face.GetZcopy(&c.comp, remote, to.segment(rd.toOffset, n)); err != nil {
			c.put(w)
			return err
		}
		e.reads++
		rd.under++
		rd.advance(n)
		if e.readings.pop(); rd.issued < rd.length {
			e.readings.push(rd)
		}
	}
	return nil
}

func (rd *reading) advance(n uint64) {
	rd.issued += n
	if rd.fromOffset += n; rd.fromOffset == rd.memory.pieces[rd.from].Length {
		rd.from, rd.fromOffset = rd.from+1, 0
	}
	if rd.toOffset += n; rd.toOffset == rd.pins.pins[rd.to].length {
		rd.to, rd.toOffset = rd.to+1, 0
	}
}

// chunkRead takes in that a read has ended.
func (w *Worker) chunkRead(c *chunk) {
	w.mu.Lock()
	rd := c.rd
	e := rd.e
	err := c.comp.Err()
	if err != nil {
		// its own call back says the same, and may come later; rd has a read under way as yet, so
		// that this leaves it alone
		e.fail(err)
	}
	e.reads--
	rd.under--
	rd.done += c.n
	if rd.err == nil {
		rd.err = err
	}
	c.put(w)
	if rd.under == 0 && (e.err != nil || rd.done == rd.length) {
		rd.end()
	}
	if e.err == nil {
		e.kick()
	}
	w.unlockInProgress()
}

// end ends a reading that has no read under way.
func (rd *reading) end() {
	rd.e.active--
	err := rd.err
	if err != nil || rd.done < rd.length {
		err = rd.e.err
	}
	rd.finish(err)
}

// finish completes the receive, and has the sender told.
func (rd *reading) finish(err error) {
	e, r, w := rd.e, rd.req, rd.e.w
	if err == nil && rd.pins.staged != nil {
		r.data.scatter(rd.pins.staged)
	}
	rd.pins.release(w)
	if e.err == nil {
		e.tellMatched(rd.id)
	}
	rd.put(w)
	r.complete(err)
}
