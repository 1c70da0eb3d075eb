package udp

import (
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waiter waits in Go's poller until one of several sockets is ready to receive, or to send.
//
// Go's poller does not know the socket itself: every burst that arrives would wake it, and a thread
// with it, even while the program polls and nothing waits. Instead it knows an epoll descriptor of
// the waiter's own, which watches a socket only during a wait, and once (EPOLLONESHOT).
type waiter struct {
	events   uint32
	epoll    *os.File
	epollRaw syscall.RawConn

	// The calls, made once, as a closure for each wait would be an allocation.
	holdSocket, setUp func(fd uintptr)
	ready             func(fd uintptr) bool
	got               [1]unix.EpollEvent

	mu    sync.Mutex // guards what ctl works on
	op    int        // of epoll_ctl
	fd    int        // the socket
	event unix.EpollEvent
	err   error
}

// init makes a waiter for an epoll event.
func (w *waiter) init(events uint32) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	// Without O_NONBLOCK os.NewFile would not register it with Go's poller. The flag has no other
	// effect: an epoll descriptor is neither read nor written.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return os.NewSyscallError("fcntl", err)
	}
	w.events, w.epoll = events, os.NewFile(uintptr(fd), "epoll")
	w.holdSocket, w.setUp, w.ready = w.withSocket, w.control, w.isReady
	if w.epollRaw, err = w.epoll.SyscallConn(); err == nil {
		// A descriptor that the poller refuses would refuse a deadline too, and then block.
		err = w.epoll.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = w.epoll.Close()
	}
	return err
}

// add registers a socket without watching it. Closing the socket removes it.
func (w *waiter) add(socket syscall.RawConn) error { return w.ctl(socket, unix.EPOLL_CTL_ADD, 0) }

// unwatch ends watch.
func (w *waiter) unwatch(socket syscall.RawConn) { _ = w.ctl(socket, unix.EPOLL_CTL_MOD, 0) }

// watch watches a socket until it was ready once.
func (w *waiter) watch(socket syscall.RawConn) error {
	return w.ctl(socket, unix.EPOLL_CTL_MOD, w.events)
}

// wait waits until a watched socket is ready, or the deadline has come.
func (w *waiter) wait(deadline time.Time) error {
	if err := w.epoll.SetReadDeadline(deadline); err != nil {
		return err
	}
	return w.epollRaw.Read(w.ready)
}

// ctl sets the events for which a socket is watched from now on, once; 0 leaves only errors, which
// the kernel adds.
func (w *waiter) ctl(socket syscall.RawConn, op int, events uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.op, w.event = op, unix.EpollEvent{Events: events | unix.EPOLLONESHOT}
	if err := socket.Control(w.holdSocket); err != nil {
		return err
	}
	return w.err
}

// withSocket and control are the halves of ctl: each keeps a descriptor from being closed.
func (w *waiter) withSocket(socket uintptr) {
	w.fd = int(socket)
	if err := w.epollRaw.Control(w.setUp); err != nil {
		w.err = err
	}
}

func (w *waiter) control(epoll uintptr) {
	w.err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(epoll), w.op, w.fd, &w.event))
}

// isReady reports whether a socket was ready since the wait began, which ends the watch.
func (w *waiter) isReady(epoll uintptr) bool {
	for {
		n, err := unix.EpollWait(int(epoll), w.got[:], 0)
		if err != unix.EINTR {
			return n != 0 || err != nil
		}
	}
}

// close ends the wait and all later ones.
func (w *waiter) close() error { return w.epoll.Close() }
