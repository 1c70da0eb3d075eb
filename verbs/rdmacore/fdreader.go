//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fdReader reads events from a descriptor of libibverbs through Go's own poller: a goroutine that
// waits costs no thread.
//
// The descriptor is a duplicate, because libibverbs closes its own and os.File would close it once
// more, by then perhaps somebody else's. Both stand for one open file, so that making one
// non-blocking does it for libibverbs' reads, too.
type fdReader struct {
	file *os.File
	done chan struct{}
	mem  mapping // what next reads into; given back by stop
}

// readFD calls next whenever there may be something to read, until it says that nothing will ever
// come, or stop is called. next reads all that there is.
func readFD(fd int, name string, next func() (more bool)) (*fdReader, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of %s: %w", name, err)
	}
	if err := unix.SetNonblock(dup, true); err != nil {
		_ = unix.Close(dup)
		return nil, fmt.Errorf("make %s non-blocking: %w", name, err)
	}
	r := &fdReader{file: os.NewFile(uintptr(dup), name), done: make(chan struct{})}
	conn, err := r.file.SyscallConn()
	if err == nil {
		// refused by a file that cannot be polled, which would never say so
		err = r.file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		_ = r.file.Close()
		return nil, fmt.Errorf("poll %s: %w", name, err)
	}
	go func() {
		defer close(r.done)
		if err := conn.Read(func(uintptr) bool { return !next() }); err != nil &&
			!errors.Is(err, os.ErrClosed) {
			next() // the poller saw nothing but an error on the descriptor: what it is comes out by reading
		}
	}()
	return r, nil
}

// stop ends the reading, and waits for next to return.
func (r *fdReader) stop() {
	if r == nil {
		return
	}
	_ = r.file.Close()
	<-r.done
	_ = r.mem.unmap()
}
