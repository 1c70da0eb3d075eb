package stream

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/transport"
)

// Conn is a stream of bytes in both directions: a [net.Conn]. Its methods may be called from any
// goroutine; several Reads, or several Writes, take turns.
type Conn struct {
	tcp    net.Conn // carries the stream; nil if a link does
	why    string   // the reason for that
	link   *link
	id     uint32
	header [headerBytes]byte // of all messages
	local  net.Addr
	remote net.Addr

	rmu, wmu sync.Mutex // held by the Read and by the Write whose turn it is

	mu      sync.Mutex // guards what follows
	in      inbound
	out     outbound
	due     due
	closed  bool // by Close
	linger  time.Duration
	lingers *time.Timer // resets the stream after linger; nil if it does not run
	final   bool        // the peer has sent kindFin or kindReset: it puts nothing any more
	done    bool        // it uses nothing of the link any more
	refusal string
	scratch [64]byte // payload of the message that is being sent
}

var _ interface {
	net.Conn
	io.WriterTo
	io.ReaderFrom
} = (*Conn)(nil)

// newConn makes a stream of a link, which has taken firstWindow for it.
func (l *link) newConn(id uint32) *Conn {
	c := &Conn{link: l, id: id, local: l.local, remote: l.remote, linger: -1}
	binary.LittleEndian.PutUint32(c.header[:], id)
	c.in.window, c.in.limit, c.out.limit = firstWindow, firstWindow, firstWindow
	c.in.wait.wake, c.out.wait.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	c.out.pack = c.packData
	return c
}

// Carrier says what carries the stream.
func (c *Conn) Carrier() Carrier {
	if c.tcp != nil {
		return Carrier{Kind: "tcp", Reason: c.why}
	}
	return Carrier{Kind: "rdma", NICs: append([]string(nil), c.link.carrier.names...)}
}

// LocalAddr returns this end's address, a *[net.TCPAddr]: that of the TCP connection over which the
// two processes have met. The streams of a link share it.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's address: see LocalAddr.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// opError wraps an error of a call as package net does; io.EOF stays as it is.
func (c *Conn) opError(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &net.OpError{Op: op, Net: "rdma", Source: c.local, Addr: c.remote, Err: err}
}

// Close ends the stream. What was written is delivered in the background, while the process lives:
// see SetLinger and [CloseIdle]. If there are bytes that were not read, or more arrive, the peer's
// stream is reset. Waiting calls return net.ErrClosed.
func (c *Conn) Close() error {
	if c.tcp != nil {
		return c.tcp.Close()
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	c.in.deadline.stop()
	c.out.deadline.stop()
	switch {
	case c.in.bytes() != 0 || c.linger == 0:
		c.beginReset()
	default:
		c.beginFin()
		if c.linger > 0 && !c.ended() {
			c.lingers = time.AfterFunc(c.linger, c.reset)
		}
	}
	c.dropUnread()
	c.control(c.link.ep)
	c.mu.Unlock()
	c.link.grantWaiting()
	c.in.wait.notify()
	c.out.wait.notify()
	return nil
}

// CloseWrite ends the direction to the peer, whose Read returns io.EOF once it has read everything.
// Reading goes on.
func (c *Conn) CloseWrite() error {
	if c.tcp != nil {
		if half, ok := c.tcp.(interface{ CloseWrite() error }); ok {
			return half.CloseWrite()
		}
		return c.opError("close write", errors.ErrUnsupported)
	}
	c.mu.Lock()
	err := c.out.err
	switch {
	case c.closed:
		err = net.ErrClosed
	case err == nil:
		c.beginFin()
		c.control(c.link.ep)
	}
	c.mu.Unlock()
	c.out.wait.notify()
	return c.opError("close write", err)
}

// SetLinger says what Close does with data that the peer has not taken. With a negative number, the
// default, it is delivered in the background; with 0 it is dropped and the stream is reset; with
// more, the stream is reset if the peer has not closed it too after so many seconds.
func (c *Conn) SetLinger(sec int) error {
	if c.tcp != nil {
		nc := c.tcp
		if over, ok := nc.(*tls.Conn); ok {
			nc = over.NetConn()
		}
		if t, ok := nc.(interface{ SetLinger(int) error }); ok {
			return t.SetLinger(sec)
		}
		return c.opError("set", errors.ErrUnsupported)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	c.linger = time.Duration(min(max(sec, -1), maxLinger)) * time.Second
	return nil
}

// maxLinger is the longest time that SetLinger takes, in seconds: 68 years.
const maxLinger = math.MaxInt32

// reset ends the stream at once.
func (c *Conn) reset() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.dropUnread()
	}
	c.beginReset()
	c.control(c.link.ep)
	c.mu.Unlock()
	c.link.grantWaiting()
	c.in.wait.notify()
	c.out.wait.notify()
}

// beginFin ends the writing side behind what was written. If the link has failed, that may not be
// what the program has written, and the peer must not take it for all. c.mu is held, here and
// below.
func (c *Conn) beginFin() {
	if !c.out.ending && !c.out.final {
		c.out.ending, c.due.fin = true, true
	}
}

// beginReset ends both sides; what has not left this end is dropped.
func (c *Conn) beginReset() {
	if !c.out.reset && !c.ended() {
		c.out.ending, c.out.reset = true, true
		c.due.fin, c.due.reset = false, true
	}
}

// ended reports whether nothing more passes between the ends.
func (c *Conn) ended() bool { return c.out.final && c.final }

// linkFailed ends the stream with its link.
func (c *Conn) linkFailed(why error) {
	err := &resetError{why}
	c.mu.Lock()
	if c.out.err == nil {
		c.out.err = err
	}
	if c.in.err == nil {
		c.in.err = err // after the bytes that have arrived, and unless that is all
	}
	c.due = due{}
	c.out.final, c.final = true, true
	c.keepUnread()
	c.retire()
	c.mu.Unlock()
	c.in.wait.notify()
	c.out.wait.notify()
}

// retire removes the stream from its link when both ends have sent all, and the program has closed
// it, or has nothing to read.
func (c *Conn) retire() {
	if c.final {
		c.dropChunks()
	}
	if !c.ended() || c.out.inflight != 0 {
		return
	}
	if !c.done && (c.closed || c.in.err != nil) {
		c.done = true
		if c.lingers != nil {
			c.lingers.Stop()
		}
		c.link.remove(c)
		c.link.carrier.hub.memory.give(int64(c.in.window))
	}
}

// handle handles a message for the stream. Its error ends the link.
func (c *Conn) handle(kind transport.AMID, data []byte) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch kind {
	case kindAccept, kindRefuse:
		err = c.answered(kind, data)
	case kindData:
		err = c.arrived(data)
	case kindPut:
		err = c.putArrived(data)
	case kindWant:
		err = c.wanted(data)
	case kindReturn:
		c.in.target = 0
		err = u32s(data, len(c.scratch)/4, func(k uint32) error {
			c.in.chunks--
			return c.link.pool.returned(c, k)
		})
	case kindGrant:
		err = c.granted(data)
	case kindSpace:
		err = c.moreSpace(data)
	case kindFin:
		err = c.finArrived(data)
	case kindReset:
		c.resetArrived()
	case kindShrink:
		err = c.shrunk(data)
	}
	if err == nil {
		c.control(c.link.ep)
	}
	return err
}

// answered handles the answer to kindOpen.
func (c *Conn) answered(kind transport.AMID, why []byte) error {
	if c.link.lis != nil || c.out.open || c.final {
		return violation("stream %d is answered twice", c.id)
	}
	if kind == kindAccept {
		c.out.open = true
	} else {
		c.out.err = refusedError{peertext.Line(string(why), 200)}
		c.in.err = c.out.err
		c.final, c.out.final = true, true
		c.due = due{}
	}
	c.out.wait.notify()
	return nil
}

// refusedError is the peer's refusal to open a stream.
type refusedError struct{ reason string }

func (e refusedError) Error() string {
	return syscall.ECONNREFUSED.Error() + ": peer: " + e.reason
}

func (e refusedError) Unwrap() error { return syscall.ECONNREFUSED }

// finArrived handles the end of the peer's bytes.
func (c *Conn) finArrived(data []byte) error {
	total, err := u64(data)
	switch {
	case err != nil:
		return err
	case c.final:
		return violation("stream %d ends twice", c.id)
	case total != c.in.total:
		return violation("stream %d ends behind %d bytes, and %d have arrived", c.id, total, c.in.total)
	}
	c.final, c.in.fin = true, true
	c.in.wait.notify()
	return nil
}

// resetArrived handles the end of everything. The answer is the end of this side, behind the puts
// that are under way.
func (c *Conn) resetArrived() {
	err := &resetError{}
	c.final = true
	if !c.in.fin { // otherwise every byte has arrived
		c.dropUnread()
		if c.in.err == nil {
			c.in.err = err
		}
	}
	if c.out.err == nil {
		c.out.err = err
	}
	if !c.out.final {
		c.out.ending, c.out.reset = true, true
		c.due.fin, c.due.reset = false, true
	}
	c.in.wait.notify()
	c.out.wait.notify()
}

// deadline is that of Read or of Write.
type deadline struct {
	at     time.Time // zero if there is none
	passed bool
	timer  *time.Timer
}

func (d *deadline) stop() {
	d.at = time.Time{}
	if d.timer != nil {
		d.timer.Stop()
	}
}

// SetDeadline sets the deadlines of Read and Write. A deadline that passes interrupts the calls
// that wait, and later ones, until a new one is set; the stream goes on.
func (c *Conn) SetDeadline(t time.Time) error {
	if c.tcp != nil {
		return c.tcp.SetDeadline(t)
	}
	if err := c.setDeadline(&c.in.deadline, &c.in.wait, t); err != nil {
		return err
	}
	return c.setDeadline(&c.out.deadline, &c.out.wait, t)
}

// SetReadDeadline sets the deadline of Read: see SetDeadline.
func (c *Conn) SetReadDeadline(t time.Time) error {
	if c.tcp != nil {
		return c.tcp.SetReadDeadline(t)
	}
	return c.setDeadline(&c.in.deadline, &c.in.wait, t)
}

// SetWriteDeadline sets the deadline of Write: see SetDeadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if c.tcp != nil {
		return c.tcp.SetWriteDeadline(t)
	}
	return c.setDeadline(&c.out.deadline, &c.out.wait, t)
}

func (c *Conn) setDeadline(d *deadline, w *waiter, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	d.stop()
	d.at, d.passed = t, false
	if t.IsZero() {
		return nil
	}
	left := time.Until(t)
	switch {
	case left <= 0:
		d.passed = true
		w.notify()
	case d.timer == nil:
		d.timer = time.AfterFunc(left, func() { c.deadlinePassed(d, w) })
	default:
		d.timer.Reset(left)
	}
	return nil
}

// deadlinePassed wakes the call that waits, unless the deadline was changed meanwhile.
func (c *Conn) deadlinePassed(d *deadline, w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !d.at.IsZero() && !time.Now().Before(d.at) {
		d.passed = true
		w.notify()
	}
}

// stopped returns why a call of one direction does not go on; nil if it does.
func (c *Conn) stopped(d *deadline) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case d.passed:
		return os.ErrDeadlineExceeded
	}
	return nil
}
