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
// The descriptor is a duplicate: libibverbs closes its own, and if os.File closed the same number
// again, that could be an unrelated file by then. Both refer to one open file, so making one
// non-blocking also does so for the reads of libibverbs.
type fdReader struct {
	file *os.File
	done chan struct{}
	mem  mapping // the memory that next reads into; stop unmaps it
}

// readFD calls next whenever there may be something to read, until next returns false or stop is
// called. next reads everything that is there, and returns false if nothing will ever come.
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
		// A file that cannot be polled refuses a deadline, and would otherwise never report
		// anything.
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
			next() // the poller saw an error on the descriptor: reading returns it
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
