package stream

import (
	"encoding/binary"
	"time"
)

// promises is what the receiver of a direction has let the peer send, and what the peer has asked
// for. A writer that waits says for what (kindWant). Room for messages then doubles; chunks are
// granted, as many as its bytes need and the stream may have. What is not used for a while comes
// back: the writer returns chunks (kindReturn) and lowers its limit (kindShrink).
//
// Invariant: limit - window <= consumed <= received <= limit.
type promises struct {
	received uint64 // bytes that have come in kindData
	consumed uint64 // of these, read
	limit    uint64 // bytes that the peer may send in kindData
	window   uint64 // of these, how many may be unread: what the budget has given
	hungry   bool   // the peer waits for room for messages

	chunks int       // that the peer may fill, or that are not read
	target int       // how many it may have
	wants  uint32    // for so many bytes the peer waits for chunks; 0 if it does not
	since  time.Time // when it began to wait
	queued bool      // the stream is in chunkPool.waiting
}

// consumedData counts bytes of kindData that were read.
func (c *Conn) consumedData(k int) {
	c.in.consumed += uint64(k)
	c.offer()
}

// offer lets the peer send more when half of the window is free, or when it waits and all is read:
// what is free then may be less than half, and all that it waits for.
func (c *Conn) offer() {
	in := &c.in
	free := in.consumed + in.window - in.limit
	if enough := 2*free >= in.window || in.hungry && in.unread == 0; enough && free != 0 && !c.final {
		in.limit, in.hungry = in.limit+free, false
		c.due.space = true
	}
}

// chunkRead grants a chunk that was read once more, unless the peer sends nothing more, or others
// wait for it.
func (c *Conn) chunkRead(k uint32) {
	in := &c.in
	if c.final || in.dropped || in.chunks > in.target || c.link.pool.waits.Load() != 0 {
		in.chunks--
		c.link.pool.release(k)
		if in.wants != 0 {
			c.grant(false)
		}
		return
	}
	c.link.pool.again(k)
	in.wants = 0
	c.due.grants = append(c.due.grants, k)
}

// wanted handles the word that the writer waits: for chunks, or, if data is 0, for room for
// messages.
func (c *Conn) wanted(data []byte) error {
	in := &c.in
	switch {
	case len(data) != 4:
		return violation("a want of %d bytes: must be 4", len(data))
	case c.final:
		return violation("stream %d wants space behind its end", c.id)
	case in.dropped:
		return nil
	}
	// If what the peer may send lies here unread, the reader is slow, and more room does not help.
	bytes := binary.LittleEndian.Uint32(data)
	if bytes == 0 {
		more := min(in.window, lastWindow-in.window)
		if 2*uint64(in.unread) < in.window && more != 0 && c.link.carrier.hub.memory.take(int64(more)) {
			in.window += more
		}
		in.hungry = true
		c.offer()
		return nil
	}
	in.wants, in.since = bytes, time.Now()
	switch {
	case in.target == 0 || c.link.pool.waits.Load() != 0:
		in.target = firstChunks
	case 2*in.unread <= in.target*chunkBytes:
		in.target = min(2*in.target, lastChunks)
	}
	c.grant(false)
	return nil
}

// grant grants the chunks for which the peer waits. If there are none now, it waits in line, and
// for wantTime at most: then late is true, and it gets new memory, or learns that there is none.
func (c *Conn) grant(late bool) {
	in := &c.in
	n := min(in.target-in.chunks, (int(in.wants)+chunkBytes-1)/chunkBytes)
	if in.wants == 0 || c.final || in.dropped || n <= 0 {
		return // if n is 0, chunkRead answers
	}
	had := len(c.due.grants)
	var wait bool
	c.due.grants, wait = c.link.pool.grant(c, n, late, c.due.grants)
	got := len(c.due.grants) - had
	in.chunks += got
	switch {
	case got != 0:
		in.wants = 0
	case wait && !in.queued:
		in.queued = true
		c.link.enqueue(c)
	case !wait && in.chunks == 0: // otherwise chunkRead answers
		in.wants, c.due.denied = 0, true
	}
}

// enqueue puts a stream in the line of those that wait for chunks.
func (l *link) enqueue(c *Conn) {
	p := &l.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting.Push(waiting{c, c.in.since})
	p.waits.Store(int32(p.waiting.Len()))
	switch {
	case p.waiting.Len() != 1:
	case p.late == nil:
		p.late = time.AfterFunc(p.patience, l.grantLate)
	default:
		p.late.Reset(p.patience)
	}
}

// grantWaiting grants chunks that are free to streams that wait. It is called without a Conn.mu,
// after what may have released some.
func (l *link) grantWaiting() {
	for l.pool.waits.Load() != 0 {
		c := l.pool.nextWaiting(time.Time{})
		if c == nil {
			return
		}
		c.grantQueued(false)
	}
}

// grantLate grants chunks to streams that have waited for long.
func (l *link) grantLate() {
	before := time.Now().Add(-l.pool.patience)
	for {
		c := l.pool.nextWaiting(before)
		if c == nil {
			break
		}
		c.grantQueued(true)
	}
	l.pool.mu.Lock()
	if l.pool.waiting.Len() != 0 {
		l.pool.late.Reset(l.pool.patience)
	}
	l.pool.mu.Unlock()
}

// grantQueued is grant for a stream whose turn it is.
func (c *Conn) grantQueued(late bool) {
	c.mu.Lock()
	c.in.queued = false
	c.grant(late)
	c.control(c.link.ep)
	c.mu.Unlock()
}

// shrunk handles the word that the writer has not used its room for a while, and lowers its limit.
func (c *Conn) shrunk(data []byte) error {
	in := &c.in
	if len(data) != 16 {
		return violation("two numbers of %d bytes: must be 16", len(data))
	}
	from, to := binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:])
	switch {
	case from > in.limit || to > from || to < in.received+firstWindow:
		return violation("stream %d lowers %d to %d, with %d received, and could %d", c.id, from, to,
			in.received, in.limit)
	case from < in.limit || c.final:
		return nil // it has been given more meanwhile, and may use that
	}
	window := to - in.consumed
	c.link.carrier.hub.memory.give(int64(in.window - window))
	in.limit, in.window = to, window
	return nil
}

// tidy gives back what the stream has not used since it was last called: chunks and room of the
// peer's, and the memory of its own heap. It reports whether there is more to give back later.
func (c *Conn) tidy() (more bool) {
	if !c.wmu.TryLock() {
		return true // a Write needs them
	}
	defer c.wmu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	in, out := &c.in, &c.out
	sent, received := out.total != out.totalThen, in.total != in.totalThen
	out.totalThen, in.totalThen = out.total, in.total
	if in.heap.mem != nil && in.unread == 0 && !received {
		in.heap = heap{}
	}
	if !sent && !out.ending && out.err == nil {
		c.due.returns = append(c.due.returns, out.chunks...)
		out.chunks = out.chunks[:0]
		if room := out.sent + firstWindow; out.limit > room && c.due.shrink == 0 {
			c.due.shrink, out.limit = out.limit, room
			out.wanted[forSpace] = false // a want is answered only if it can be met
		}
		c.control(c.link.ep)
	}
	return in.heap.mem != nil || len(out.chunks) != 0 || out.limit > out.sent+firstWindow
}
