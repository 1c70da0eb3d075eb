package udp

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// Conn is a UDP socket bound to one local address. Any number of goroutines may use it; the package
// comment lists what belongs to only one.
type Conn struct {
	local netip.AddrPort
	scope uint32 // the zone of link-local peers without one
	file  *os.File
	raw   syscall.RawConn // keeps the descriptor from being closed under a call

	recvBuffer, sendBuffer int // granted
	gso, gro               bool
	hopLimit               uint8 // of packets whose Way names none

	// Tests that need a kernel with other opinions replace these.
	sendmmsg func(fd uintptr, msgs []unix.Mmsghdr) (int, syscall.Errno)

	mu      sync.Mutex // guards what follows
	sources []*source  // the sockets on other ports
	full    *source    // the last one without room; nil is the socket of the Conn

	closed             atomic.Bool
	readable, writable waiter

	recvTruncated, sendDropped, gsoRefused atomic.Uint64
}

// Listen opens a socket. It fails with an [*Error] that says what to do.
func Listen(cfg Config) (*Conn, error) {
	return listen(cfg, os.Getenv)
}

// listen is Listen with the environment's variables.
func listen(cfg Config, getenv func(string) string) (*Conn, error) {
	cfg, err := cfg.validated(getenv)
	if err != nil {
		return nil, err
	}
	c := &Conn{sendmmsg: sendmmsg}
	if c.scope, err = scopeOf(cfg.Local.Addr()); err != nil {
		return nil, &Error{Op: "listen", Local: cfg.Local, Err: ErrNotLocal, Detail: err.Error()}
	}
	fd, err := unix.Socket(domain(cfg.Local.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, listenError(cfg.Local, err, os.DirFS("/sys"))
	}
	if err := c.open(fd, cfg); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	// Without O_NONBLOCK os.NewFile leaves the socket out of Go's poller: see waiter. No call waits
	// (MSG_DONTWAIT).
	c.file = os.NewFile(uintptr(fd), "udp "+c.local.String())
	if err := c.prepareWaits(); err != nil {
		_ = c.file.Close()
		return nil, listenError(c.local, err, os.DirFS("/sys"))
	}
	return c, nil
}

// prepareWaits makes the waiters.
func (c *Conn) prepareWaits() (err error) {
	if c.raw, err = c.file.SyscallConn(); err != nil {
		return err
	}
	if err := c.readable.init(unix.EPOLLIN); err != nil {
		return err
	}
	if err := c.writable.init(unix.EPOLLOUT); err != nil {
		_ = c.readable.close()
		return err
	}
	return errors.Join(c.readable.add(c.raw), c.writable.add(c.raw))
}

// open sets the options of a new socket and binds it.
func (c *Conn) open(fd int, cfg Config) error {
	if err := c.setOptions(fd, cfg); err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(cfg.Local, c.scope)); err != nil {
		return listenError(cfg.Local, err, os.DirFS("/sys"))
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return &Error{Op: "listen", Local: cfg.Local, Errno: err, Detail: "ask for the port"}
	}
	switch bound := bound.(type) {
	case *unix.SockaddrInet4:
		c.local = netip.AddrPortFrom(cfg.Local.Addr(), uint16(bound.Port))
	case *unix.SockaddrInet6:
		c.local = netip.AddrPortFrom(cfg.Local.Addr(), uint16(bound.Port))
	}
	return nil
}

// LocalAddr is the address that the socket is bound to, with the port that the kernel chose for
// port 0.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// Close closes the socket. Calls that wait end with [verbs.ErrClosed], as do later ones. Closing
// twice is fine.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	errs := []error{c.readable.close(), c.writable.close(), c.file.Close()}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sources {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

// Stats returns the counters. They count from Listen on.
func (c *Conn) Stats() Stats {
	s := Stats{RecvBuffer: c.recvBuffer, SendBuffer: c.sendBuffer, GSO: c.gso, GRO: c.gro,
		RecvTruncated: c.recvTruncated.Load(), SendDropped: c.sendDropped.Load(),
		GSORefused: c.gsoRefused.Load()}
	_ = c.raw.Control(func(fd uintptr) {
		if info, errno := meminfo(fd); errno == 0 {
			s.RecvDropped = uint64(info[unix.SK_MEMINFO_DROPS])
		}
	})
	return s
}

// WaitReadable waits until there may be something to receive. It returns os.ErrDeadlineExceeded
// when the deadline has come (the zero Time is none), and [verbs.ErrClosed] when the Conn is
// closed. The goroutine parks in Go's poller. One goroutine at a time may wait.
func (c *Conn) WaitReadable(deadline time.Time) error {
	err := c.readable.watch(c.raw)
	if err == nil {
		err = c.readable.wait(deadline)
	}
	if err != nil { // nothing waits any more
		c.readable.unwatch(c.raw)
	}
	return c.waitError(err)
}

// WaitWritable waits until there may be room to send, as WaitReadable does for receiving.
func (c *Conn) WaitWritable(deadline time.Time) error {
	err := c.watchFull()
	if err == nil {
		err = c.writable.wait(deadline)
	}
	return c.waitError(err)
}

// Yield offers the processor to other threads. It is for callers that poll again and again.
func (c *Conn) Yield() { yieldThread() }

// waitError translates the error of a wait for the caller.
func (c *Conn) waitError(err error) error {
	switch {
	case err == nil:
		return nil
	case c.closed.Load():
		return verbs.ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	}
	return &Error{Op: "wait", Local: c.local, Errno: err}
}
