package stream

import (
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"syscall"

	"ibverbx"
	"ibverbx/transport"
)

// outbound is the direction to the peer.
//
// Invariant: sent <= limit; inflight pieces have been put and their puts have not completed.
type outbound struct {
	wait      waiter
	deadline  deadline
	total     uint64   // bytes that were handed over
	totalThen uint64   // total when tidy last looked
	sent      uint64   // of these in kindData
	limit     uint64   // bytes that may be sent in kindData
	chunks    []uint32 // of the peer's, which may be filled; the last one is next
	inflight  int
	pack      func([]byte) int // packData
	packing   []byte           // what it copies

	open   bool    // the peer knows the stream
	wanted [2]bool // kindWant for space and for chunks was sent, and not answered
	denied bool    // the peer has no chunks now
	ending bool    // kindFin or kindReset is due or was sent: nothing more is written
	reset  bool    // kindReset
	final  bool    // kindFin or kindReset was sent, and nothing was put behind
	err    error
}

// maxInflight bounds the pieces of a stream that are under way, so that one stream does not take
// them all.
const maxInflight = 8

// Write writes all of p, unless it returns an error, and then says how much it has handed over.
// What was handed over is delivered, also if the stream is closed right after. p is copied.
func (c *Conn) Write(p []byte) (int, error) {
	if c.tcp != nil {
		return c.tcp.Write(p)
	}
	c.wmu.Lock()
	n, err := c.write(p)
	c.wmu.Unlock()
	if err != nil {
		return n, c.opError("write", err)
	}
	return n, nil
}

func (c *Conn) write(p []byte) (n int, err error) {
	out := &c.out
	for first := true; ; first = false {
		out.wait.ready.Store(false)
		c.mu.Lock()
		out.denied = out.denied && !first
		k := 0
		if err = c.writable(); err == nil && len(p) != n {
			k, err = c.writeSome(p[n:])
		}
		c.mu.Unlock()
		if n += k; err != nil || n == len(p) {
			c.leaveLines()
			if len(p) > c.link.bcopy && !c.link.ordered {
				c.link.carrier.kick() // somebody must see the puts complete
			}
			return n, err
		}
		if k == 0 {
			c.link.await(&out.wait)
		}
	}
}

// leaveLines says that the stream's writer waits for nothing.
func (c *Conn) leaveLines() {
	c.link.starved.leave(c)
	c.link.pieces.leave(c)
}

// writable returns why nothing can be written; nil if it can. c.mu is held, here and below.
func (c *Conn) writable() error {
	switch err := c.stopped(&c.out.deadline); {
	case err != nil:
		return err
	case c.out.err != nil:
		return c.out.err
	case c.out.ending:
		return syscall.EPIPE
	}
	return nil
}

// writeSome hands over the first bytes of p, and returns how many; none if the call must wait.
func (c *Conn) writeSome(p []byte) (int, error) {
	out := &c.out
	room := out.limit - out.sent
	// Bytes in a message must not overtake those that are being put.
	mayMessage := len(c.due.puts) == 0 && (out.inflight == 0 || c.link.ordered)
	small := mayMessage && len(p) <= c.link.bcopy
	if small && uint64(len(p)) <= room {
		return c.message(p)
	}
	if len(out.chunks) != 0 {
		return c.fill(p, nil)
	}
	if mayMessage && out.denied && room != 0 {
		return c.message(p[:min(len(p), c.link.bcopy, int(min(room, lastWindow)))])
	}
	if small {
		c.want(forSpace, 0)
	} else {
		c.want(forChunks, len(p))
	}
	return 0, nil
}

// forSpace and forChunks index outbound.wanted and due.want.
const (
	forSpace = iota
	forChunks
)

// want tells the peer that this end waits for space, or for chunks for so many bytes.
func (c *Conn) want(what, bytes int) {
	if !c.out.wanted[what] && (what == forSpace || !c.out.denied) {
		c.out.wanted[what], c.due.want[what] = true, true
		c.due.wants = uint32(min(bytes, math.MaxUint32))
		c.control(c.link.ep)
	}
}

// message sends bytes in an active message.
func (c *Conn) message(p []byte) (int, error) {
	for again := range 2 {
		err := c.postMessage(p)
		switch {
		case err == nil:
			c.out.sent += uint64(len(p))
			c.out.total += uint64(len(p))
			c.link.starved.leave(c)
			return len(p), nil
		case err != transport.ErrNoResource:
			return 0, c.lost(err)
		case again == 0:
			c.link.starved.add(c) // and try once more, because it may have been woken before
		}
	}
	return 0, nil
}

// lost ends the link, because the endpoint refuses what it must accept, and returns the error of
// the call that noticed. Another goroutine ends it, because c.mu is held.
func (c *Conn) lost(why error) error {
	go c.link.fail(why)
	return &resetError{why}
}

func (c *Conn) postMessage(p []byte) error {
	if len(p) <= c.link.short {
		return c.link.ep.AMShort(kindData, c.header[:], p)
	}
	c.out.packing = p
	_, err := c.link.ep.AMBcopy(kindData, c.header[:], c.out.pack)
	c.out.packing = nil
	return err
}

// packData copies what postMessage sends.
func (c *Conn) packData(dst []byte) int { return copy(dst, c.out.packing) }

// fill copies a piece of p, or reads one from r, and puts it into a chunk of the peer. c.mu is
// released meanwhile; c.wmu is held.
func (c *Conn) fill(p []byte, r io.Reader) (int, error) {
	out := &c.out
	if out.inflight >= maxInflight {
		return 0, nil
	}
	stage := &c.link.carrier.stage
	s, err := stage.take(c.link.carrier.dom, c)
	if s == nil {
		return 0, err
	}
	c.link.pins.Add(1)
	c.mu.Unlock()
	var n int
	var failed error
	if r == nil {
		n = copy(s.mem, p)
	} else {
		n, failed = r.Read(s.mem) // of a file: it does not panic
	}
	c.mu.Lock()
	defer c.link.pins.Done()
	s.conn, s.n = c, n
	for n != 0 {
		out.wait.ready.Store(false)
		posted := false
		if err = c.writable(); err == nil {
			posted, err = c.put(s)
		}
		if posted {
			return n, failed
		}
		if err != nil {
			if failed = err; r != nil {
				failed = c.opError("write", err) // to tell it from an error of r
			}
			break
		}
		c.mu.Unlock()
		c.link.await(&out.wait)
		c.mu.Lock()
	}
	stage.give(s, c.link)
	return 0, failed
}

// put posts a piece, and reports whether it did. If not, and there is no error, the call must wait.
func (c *Conn) put(s *piece) (bool, error) {
	out := &c.out
	s.chunk = out.chunks[len(out.chunks)-1]
	remote := c.link.slab(s.chunk).Slice(uint64(s.chunk%slabChunks)*chunkBytes, uint64(s.n))
	s.comp.Init(1, s.fired)
	for again := range 2 {
		_, err := c.link.ep.PutZcopy(&s.comp, remote, s.segment())
		switch {
		case err == nil:
			out.chunks = out.chunks[:len(out.chunks)-1]
			out.inflight++
			out.total += uint64(s.n)
			c.link.starved.leave(c)
			if c.link.ordered {
				c.announce(s)
			}
			return true, nil
		case err != transport.ErrNoResource:
			return false, c.lost(err)
		case again == 0:
			c.link.starved.add(c) // and try once more, because it may have been woken before
		}
	}
	return false, nil
}

// slab returns the peer's memory that a chunk, which was granted, is part of.
func (l *link) slab(chunk uint32) ibverbx.RemoteMR {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slabs[chunk/slabChunks]
}

// announce tells the peer that bytes are in a chunk.
func (c *Conn) announce(s *piece) {
	c.due.puts = append(c.due.puts, filled{s.chunk, uint32(s.n)})
	c.control(c.link.ep)
}

// putDone handles the completion of a put. The peer learns only now of the bytes, because over
// several queue pairs a message may overtake them. If the put has failed, so has the link.
func (c *Conn) putDone(s *piece) {
	c.mu.Lock()
	c.out.inflight--
	if c.link.ordered {
		c.control(c.link.ep)
	} else {
		c.announce(s)
	}
	c.mu.Unlock()
	s.stage.give(s, c.link)
	c.out.wait.notify()
}

// granted handles chunks that this end may fill.
func (c *Conn) granted(data []byte) error {
	out := &c.out
	if c.link.lis == nil && !out.open {
		return violation("chunks for stream %d, which is not open", c.id)
	}
	if out.wanted[forChunks] = false; len(data) == 0 {
		out.denied = true
	}
	c.link.mu.Lock()
	slabs := len(c.link.slabs)
	c.link.mu.Unlock()
	err := u32s(data, lastChunks, func(k uint32) error {
		if uint64(k) >= uint64(slabs)*slabChunks || len(out.chunks) == lastChunks {
			return violation("chunk %d of %d for stream %d, which has %d", k, slabs*slabChunks, c.id,
				len(out.chunks))
		}
		if !out.ending { // the peer takes it back when it learns of the end
			out.chunks = append(out.chunks, k)
		}
		return nil
	})
	c.link.untidy.Store(true)
	out.wait.notify()
	return err
}

// moreSpace handles the number of bytes that this end may send in kindData.
func (c *Conn) moreSpace(data []byte) error {
	limit, err := u64(data)
	switch {
	case err != nil:
		return err
	case limit < c.out.limit || limit-c.out.sent > lastWindow:
		return violation("stream %d may send %d bytes, with %d sent, and could %d", c.id, limit, c.out.sent,
			c.out.limit)
	}
	c.out.limit, c.out.wanted[forSpace] = limit, false
	c.due.shrink = 0 // if it was not sent yet
	if limit-c.out.sent > firstWindow {
		c.link.untidy.Store(true)
	}
	c.out.wait.notify()
	return nil
}

// copyBuffers holds the memory of ReadFrom.
//
//nolint:gochecknoglobals // a pool of the process
var copyBuffers = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

// ReadFrom writes everything that r has. It reads a regular file, or an io.LimitedReader of one,
// straight into registered memory, so the bytes are not copied at this end.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	if c.tcp != nil {
		return io.Copy(c.tcp, r)
	}
	if isFile(r) {
		total, err = c.readFile(r)
		if !errors.Is(err, errDenied) {
			return total, err
		}
	}
	buf := copyBuffers.Get().(*[chunkBytes]byte)
	defer copyBuffers.Put(buf)
	for {
		n, err := r.Read(buf[:])
		if n > 0 {
			w, err := c.Write(buf[:n])
			if total += int64(w); err != nil {
				return total, err
			}
		}
		switch {
		case err == io.EOF:
			return total, nil
		case err != nil:
			return total, err
		}
	}
}

// left is how many bytes a read from r may still yield, as far as is known.
func left(r io.Reader) int {
	if limited, ok := r.(*io.LimitedReader); ok {
		return int(min(limited.N, math.MaxUint32))
	}
	return math.MaxUint32
}

// isFile reports whether a read from r does not wait for others.
func isFile(r io.Reader) bool {
	if limited, ok := r.(*io.LimitedReader); ok {
		r = limited.R
	}
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// errDenied reports that the peer has no chunk to put into.
var errDenied = errors.New("no chunk")

// readFile is ReadFrom for a regular file.
func (c *Conn) readFile(r io.Reader) (total int64, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	defer c.leaveLines()
	out := &c.out
	for {
		out.wait.ready.Store(false)
		n := 0
		c.mu.Lock()
		switch err = c.writable(); {
		case err != nil:
			err = c.opError("write", err)
		case len(out.chunks) != 0:
			n, err = c.fill(nil, r)
		case out.denied:
			out.denied = false
			err = errDenied
		default:
			c.want(forChunks, left(r))
		}
		c.mu.Unlock()
		total += int64(n)
		switch {
		case errors.Is(err, io.EOF):
			return total, nil
		case err != nil:
			return total, err
		case n == 0:
			c.link.await(&out.wait)
		}
	}
}
