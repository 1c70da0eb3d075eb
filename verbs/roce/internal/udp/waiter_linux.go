package udp

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waiter waits in Go's poller until a socket is ready for one thing.
//
// Go's poller does not know the socket itself: every burst that arrives would wake it, and a thread
// with it, also while the program polls and nobody waits. What it knows is an epoll descriptor of
// the waiter's own, which is told to watch the socket for the length of a wait only, and once
// (EPOLLONESHOT).
type waiter struct {
	events   uint32
	socket   syscall.RawConn
	epoll    *os.File
	epollRaw syscall.RawConn

	// The calls and what they work on, made once, as a closure for each wait would be an
	// allocation.
	watch, setUp func(fd uintptr)
	ready        func(fd uintptr) bool
	op           int // of epoll_ctl
	fd           int // the socket
	event        [1]unix.EpollEvent
	err          error
}

// init makes the waiter of a socket for an epoll event.
func (w *waiter) init(socket syscall.RawConn, events uint32) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	// Without O_NONBLOCK os.NewFile would not register it with Go's poller. Nothing else looks at
	// the flag: an epoll descriptor is neither read nor written.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	w.events, w.socket, w.epoll = events, socket, os.NewFile(uintptr(fd), "epoll")
	w.watch, w.setUp, w.ready = w.watchSocket, w.control, w.isReady
	if w.epollRaw, err = w.epoll.SyscallConn(); err == nil {
		// A descriptor that the poller does not take would refuse a deadline, and then block.
		err = w.epoll.SetReadDeadline(time.Time{})
	}
	if err == nil {
		err = w.ctl(unix.EPOLL_CTL_ADD, 0)
	}
	if err != nil {
		_ = w.epoll.Close()
	}
	return err
}

// wait waits until the socket is ready, or the deadline has come.
func (w *waiter) wait(deadline time.Time) error {
	if err := w.epoll.SetReadDeadline(deadline); err != nil {
		return err
	}
	if err := w.ctl(unix.EPOLL_CTL_MOD, w.events); err != nil {
		return err
	}
	err := w.epollRaw.Read(w.ready)
	if err != nil {
		_ = w.ctl(unix.EPOLL_CTL_MOD, 0) // nobody waits any more
	}
	return err
}

// ctl sets the events to watch for from now on, once; with 0 these are only errors, which the
// kernel adds.
func (w *waiter) ctl(op int, events uint32) error {
	w.op, w.event[0] = op, unix.EpollEvent{Events: events | unix.EPOLLONESHOT}
	if err := w.socket.Control(w.watch); err != nil {
		return err
	}
	return w.err
}

// watchSocket and control are the halves of ctl: each keeps a descriptor from being closed.
func (w *waiter) watchSocket(socket uintptr) {
	w.fd = int(socket)
	if err := w.epollRaw.Control(w.setUp); err != nil {
		w.err = err
	}
}

func (w *waiter) control(epoll uintptr) {
	w.err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(epoll), w.op, w.fd, &w.event[0]))
}

// isReady asks whether the socket was ready since the wait began, which ends the watch.
func (w *waiter) isReady(epoll uintptr) bool {
	for {
		n, err := unix.EpollWait(int(epoll), w.event[:], 0)
		if err != unix.EINTR {
			return n != 0 || err != nil
		}
	}
}

// close ends the wait and all later ones.
func (w *waiter) close() error { return w.epoll.Close() }
