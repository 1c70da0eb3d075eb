package stream

import (
	"encoding/binary"
	"errors"
	"io"

	"ibverbx/internal/ring"
)

// inbound is the direction from the peer.
//
// Invariant: queue holds the bytes that have arrived and were not read, in their order: heap those
// of kindData, and each chunk those of a kindPut.
type inbound struct {
	wait     waiter
	deadline deadline
	queue    ring.FIFO[segment]
	heap     heap
	total    uint64 // bytes that have arrived

	totalThen uint64 // total when tidy last looked
	promises

	direct  []byte // a waiting Read's own memory, which the next bytes may go into
	copied  int    // how many did
	fin     bool   // nothing follows
	err     error  // why nothing follows
	unread  int    // bytes in queue
	dropped bool   // the stream has ended, for the program: what arrives is dropped

	pinned      bool // the first segment's chunk, pinnedChunk, is in use without the lock
	pinnedChunk uint32
}

// segment is bytes of the queue.
type segment struct {
	n     int    // bytes in heap; 0 for those in a chunk
	mem   []byte // what is not read of the chunk
	chunk uint32
}

func (i *inbound) bytes() int { return i.unread }

// heap is a ring buffer, which grows.
type heap struct {
	mem        []byte // its length is a power of two, or 0
	head, tail uint64 // bytes read and written
}

// leastHeap is the first size of a heap.
const leastHeap = 512

// write appends bytes.
func (h *heap) write(data []byte) {
	have := int(h.tail - h.head)
	if size := len(h.mem); have+len(data) > size {
		for size = max(size, leastHeap); size < have+len(data); size *= 2 {
		}
		grown := make([]byte, size)
		h.read(grown[:have])
		h.mem, h.head, h.tail = grown, 0, uint64(have)
	}
	for len(data) != 0 {
		n := copy(h.mem[h.tail&uint64(len(h.mem)-1):], data)
		h.tail += uint64(n)
		data = data[n:]
	}
}

// read moves len(p) bytes, which must be there, to p.
func (h *heap) read(p []byte) {
	for len(p) != 0 {
		n := copy(p, h.front(len(p)))
		h.head += uint64(n)
		p = p[n:]
	}
}

// front returns up to n of the first bytes, as many as lie together.
func (h *heap) front(n int) []byte {
	at := h.head & uint64(len(h.mem)-1)
	return h.mem[at:min(at+uint64(n), uint64(len(h.mem)))]
}

// Read reads at least one byte, unless p is empty. It returns io.EOF once everything was read and
// the peer has ended its side.
func (c *Conn) Read(p []byte) (int, error) {
	if c.tcp != nil {
		return c.tcp.Read(p)
	}
	c.rmu.Lock()
	n, err := c.read(p)
	c.rmu.Unlock()
	if err != nil {
		return n, c.opError("read", err)
	}
	return n, nil
}

func (c *Conn) read(p []byte) (int, error) {
	in := &c.in
	for {
		in.wait.ready.Store(false)
		c.mu.Lock()
		n := in.copied
		in.direct, in.copied = nil, 0
		if n == 0 {
			err := c.stopped(&in.deadline)
			if err != nil || len(p) == 0 {
				c.mu.Unlock()
				return 0, err
			}
		}
		if in.unread != 0 {
			if n += c.take(p[n:]); n == 0 { // closed meanwhile: what is left is not all
				c.mu.Unlock()
				continue
			}
		}
		switch {
		case n != 0:
		case in.fin:
			c.mu.Unlock()
			return 0, io.EOF
		case in.err != nil:
			err := in.err
			c.mu.Unlock()
			return 0, err
		default:
			in.direct = p
			c.mu.Unlock()
			c.link.await(&in.wait)
			continue
		}
		c.control(c.link.ep)
		c.mu.Unlock()
		c.link.grantWaiting()
		return n, nil
	}
}

// take moves bytes from the queue to p. c.mu and c.rmu are held; c.mu is released meanwhile to copy
// from a chunk, so that handlers need not wait.
func (c *Conn) take(p []byte) (n int) {
	in := &c.in
	for n < len(p) && in.unread != 0 {
		first := in.queue.Front()
		if first.n != 0 {
			k := min(first.n, len(p)-n)
			in.heap.read(p[n : n+k])
			n += k
			c.consumed(first, k)
			continue
		}
		k := min(len(first.mem), len(p)-n)
		mem := first.mem[:k]
		c.pin()
		c.mu.Unlock()
		copy(p[n:], mem)
		c.mu.Lock()
		if !c.unpin(k) {
			break
		}
		n += k
	}
	return n
}

// pin keeps the queue's first chunk while its bytes are used without c.mu, even if the stream ends.
func (c *Conn) pin() {
	first := c.in.queue.Front()
	c.in.pinned, c.in.pinnedChunk = first.n == 0, first.chunk
	c.link.pins.Add(1)
}

// unpin takes k bytes off the queue that were used. It reports false if the stream has ended
// meanwhile, and they belong to nobody.
func (c *Conn) unpin(k int) bool {
	in := &c.in
	held := in.pinned
	in.pinned = false
	switch {
	case !in.dropped:
		first := in.queue.Front()
		if held && first.n != 0 { // by keepUnread
			in.heap.head += uint64(k)
		}
		c.consumed(first, k)
	case held:
		in.chunks--
		c.link.pool.release(in.pinnedChunk)
	}
	c.link.pins.Done()
	return !in.dropped
}

// consumed takes k bytes off the queue's first segment, and gives the peer room for more.
func (c *Conn) consumed(first *segment, k int) {
	in := &c.in
	in.unread -= k
	if first.n != 0 {
		if first.n -= k; first.n == 0 {
			in.queue.Drop()
		}
		c.consumedData(k)
		return
	}
	if first.mem = first.mem[k:]; len(first.mem) == 0 {
		chunk := first.chunk
		in.queue.Drop()
		c.chunkRead(chunk)
	}
}

// arrived handles bytes of the stream.
func (c *Conn) arrived(data []byte) error {
	in := &c.in
	n := uint64(len(data))
	switch {
	case !c.out.open || c.final:
		return violation("bytes for stream %d, whose peer has ended it or not opened it", c.id)
	case n == 0 || n > in.limit-in.received:
		return violation("%d bytes for stream %d, which may have %d more", n, c.id, in.limit-in.received)
	}
	in.received += n
	in.total += n
	if in.dropped {
		in.consumed += n
		c.beginReset()
		return nil
	}
	if in.direct != nil && in.unread == 0 && in.copied == 0 {
		in.copied = copy(in.direct, data)
		in.direct = nil
		data = data[in.copied:]
		c.consumedData(in.copied)
	}
	if len(data) != 0 {
		in.heap.write(data)
		c.link.untidy.Store(true)
		in.unread += len(data)
		if last := in.last(); last != nil && last.n != 0 {
			last.n += len(data)
		} else {
			in.queue.Push(segment{n: len(data)})
		}
	}
	in.wait.notify()
	return nil
}

// putArrived handles bytes that the peer has put into a chunk.
func (c *Conn) putArrived(data []byte) error {
	if len(data) != 8 || !c.out.open || c.final {
		return violation("a put of %d bytes into stream %d, whose peer has ended it or not opened it",
			len(data), c.id)
	}
	k, n := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:])
	mem, err := c.link.pool.arrived(c, k, n)
	if err != nil {
		return err
	}
	c.in.total += uint64(n)
	if c.in.dropped {
		c.in.chunks--
		c.link.pool.release(k)
		c.beginReset()
		return nil
	}
	c.in.queue.Push(segment{mem: mem, chunk: k})
	c.in.unread += int(n)
	c.in.wait.notify()
	return nil
}

// dropUnread gives up what has arrived and was not read, and what arrives from now on.
func (c *Conn) dropUnread() {
	in := &c.in
	in.dropped, in.direct = true, nil
	for kept := in.pinned; in.unread != 0; kept = false {
		first := in.queue.Pop()
		if in.unread -= first.n + len(first.mem); first.n == 0 && !kept {
			in.chunks--
			c.link.pool.release(first.chunk)
		}
	}
	in.heap = heap{}
}

// keepUnread keeps what has arrived and was not read, while the memory of the link goes.
func (c *Conn) keepUnread() {
	in := &c.in
	if in.dropped || in.unread == 0 {
		return
	}
	all := make([]byte, 0, in.unread)
	for left := in.unread; left != 0; {
		first := in.queue.Pop()
		left -= first.n + len(first.mem)
		if at := len(all); first.n != 0 {
			all = all[:at+first.n]
			in.heap.read(all[at:])
		} else {
			all = append(all, first.mem...)
		}
	}
	in.heap = heap{}
	in.heap.write(all)
	in.queue.Push(segment{n: len(all)})
}

// dropChunks takes back the chunks of a stream whose peer puts nothing any more.
func (c *Conn) dropChunks() {
	if c.in.chunks > c.in.queue.Len() {
		c.in.chunks -= c.link.pool.releaseGranted(c)
	}
}

// WriteTo writes to w everything that arrives, until the peer ends its side. It passes w the memory
// into which the peer has put the bytes.
func (c *Conn) WriteTo(w io.Writer) (total int64, err error) {
	if c.tcp != nil {
		return io.Copy(w, c.tcp)
	}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for {
		mem, err := c.peek()
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, c.opError("read", err)
		}
		n, err := c.hand(w, mem)
		total += int64(n)
		switch {
		case err != nil:
			return total, err
		case n != len(mem):
			return total, io.ErrShortWrite
		}
	}
}

// hand passes pinned bytes to w, and takes those off the queue that w has taken: none if it panics.
func (c *Conn) hand(w io.Writer, mem []byte) (n int, err error) {
	defer func() {
		c.mu.Lock()
		k := max(0, min(n, len(mem)))
		if !c.in.dropped && !c.in.pinned {
			c.in.heap.head += uint64(k)
		}
		c.unpin(k)
		c.control(c.link.ep)
		c.mu.Unlock()
		c.link.grantWaiting()
	}()
	return w.Write(mem)
}

// peek waits for bytes and returns the first ones, as many as lie together, with the link's memory
// pinned.
func (c *Conn) peek() ([]byte, error) {
	in := &c.in
	for {
		in.wait.ready.Store(false)
		c.mu.Lock()
		err := c.stopped(&in.deadline)
		switch {
		case err != nil:
		case in.unread != 0:
			first := in.queue.Front()
			mem := first.mem
			if first.n != 0 {
				mem = in.heap.front(first.n)
			}
			c.pin()
			c.mu.Unlock()
			return mem, nil
		case in.fin:
			err = io.EOF
		default:
			err = in.err
		}
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		c.link.await(&in.wait)
	}
}

// last returns the queue's last segment; nil if it is empty.
func (i *inbound) last() *segment {
	if i.queue.Len() == 0 {
		return nil
	}
	return i.queue.Back()
}
