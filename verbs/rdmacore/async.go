//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// readAsyncEvents publishes the device's asynchronous events while it is open, with or without
// watchers: the provider itself must know about a dead CQ and a NIC that is gone.
func (d *device) readAsyncEvents(fd int) (*fdReader, error) {
	mem, err := mapMemory(carved[ibvAsyncEvent](1), 0)
	if err != nil {
		return nil, d.err("open device", verbs.ErrNoMemory, err.Error())
	}
	event := &carve[ibvAsyncEvent](&mem, 1)[0]
	r, err := readFD(fd, d.name+" asynchronous events", func() (more bool) {
		for {
			switch errno := d.p.lib.status(d.p.lib.getAsyncEvent, d.ctx, address(event)); errno {
			case 0:
				e := d.event(event)
				call(d.p.lib.ackAsyncEvent, address(event))
				if e.Type.IsQP() {
					// Only now: closing the queue pair holds its lock and waits for the
					// acknowledgement.
					d.refreshState(e.QPNum)
				}
				d.watchers.Publish(e)
			case syscall.EINTR: // read again: the poller reports new events only
			case syscall.EAGAIN:
				return true
			default:
				// The kernel has removed the device (uverbs_disassociate), so it fails every read.
				d.lost()
				return false
			}
		}
	})
	if err != nil {
		_ = mem.unmap()
		return nil, d.err("open device", err, filesHint(err))
	}
	r.mem = mem
	return r, nil
}

// lost records that the NIC is gone, and wakes watchers and sleepers.
func (d *device) lost() {
	if !d.gone.Swap(true) {
		d.watchers.Publish(verbs.Event{Type: verbs.EventDeviceFatal, Device: d})
		d.wakeAll()
	}
}

// event translates an event, and updates the provider's state. The object that the event names
// exists until it is acknowledged: destroying the object waits for that.
func (d *device) event(c *ibvAsyncEvent) verbs.Event {
	e := verbs.Event{Type: verbs.EventType(c.eventType), Device: d}
	switch {
	case e.Type.IsPort():
		e.Port = int(int32(c.element))
	case e.Type.IsQP():
		e.QPNum = object[ibvQP](c.element).qpNum
	case e.Type.IsCQ():
		d.mu.Lock()
		q := d.cqs[c.element]
		d.mu.Unlock()
		if q != nil {
			q.dead.Store(true)
			q.signal() // a sleeper finds out by polling
			e.CQ = q
		}
	case e.Type == verbs.EventDeviceFatal:
		d.gone.Store(true)
		d.wakeAll()
	}
	return e
}

// wakeAll raises an event for every CQ: sleepers find out by polling.
func (d *device) wakeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.cqs {
		q.signal()
	}
}

// refreshState finds out whether a queue pair is in ERR, after a failed completion or an event. The
// number may belong to another queue pair by now, or to none: then it has no effect.
func (d *device) refreshState(qpNum uint32) {
	d.mu.Lock()
	q := d.qps[qpNum]
	d.mu.Unlock()
	if q == nil || !q.mayFail() {
		return
	}
	q.lock()
	if !q.sends.closed {
		q.current()
	}
	q.unlock()
}

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

// compEvents is a device's completion channel (struct ibv_comp_channel): one for all its CQs,
// whichever CompChannel they signal, so that a device costs one descriptor and one goroutine.
type compEvents struct {
	d      *device
	addr   uintptr
	reader *fdReader
}

// completionEvents returns the device's completion channel, and makes it at the first call. The
// device's lock is held.
func (d *device) completionEvents(op string) (*compEvents, error) {
	if d.events != nil {
		return d.events, nil
	}
	lib := d.p.lib
	addr, errno := lib.pointer(lib.createCompChannel, d.ctx)
	if errno != 0 {
		return nil, d.callErr(op, 0, "ibv_create_comp_channel", errno, filesHint(errno))
	}
	e := &compEvents{d: d, addr: addr}
	mem, err := mapMemory(carved[uintptr](2), 0)
	if err == nil {
		out := carve[uintptr](&mem, 2) // the CQ, and the context that it was made with
		get, ack := []uintptr{addr, address(&out[0]), address(&out[1])}, []uintptr{0, 1}
		e.reader, err = readFD(int(object[ibvCompChannel](addr).fd), d.name+" completion events",
			func() (more bool) { return e.read(&out[0], get, ack) })
		if err != nil {
			_ = mem.unmap()
		} else {
			e.reader.mem = mem
		}
	}
	if err != nil {
		_ = lib.status(lib.destroyCompChannel, addr)
		return nil, d.err(op, err, filesHint(err))
	}
	d.events = e
	return e, nil
}

// read signals the CQ of every pending event. C stores an event's CQ in c; get and ack are the
// arguments of the two calls.
func (e *compEvents) read(c *uintptr, get, ack []uintptr) (more bool) {
	d := e.d
	lib := d.p.lib
	for {
		switch errno := lib.status(lib.getCQEvent, get...); errno {
		case 0:
			d.mu.Lock()
			q := d.cqs[*c]
			d.mu.Unlock()
			// Destroying the CQ waits until its events are acknowledged, so it still exists.
			ack[0] = *c
			call(lib.ackCQEvents, ack...)
			if q != nil {
				q.signal()
			}
		case syscall.EINTR: // read again: the poller reports new events only
		case syscall.EAGAIN:
			return true
		default:
			d.lost()
			return false
		}
	}
}

// close destroys the channel. All its CQs are closed.
func (e *compEvents) close() error {
	if e == nil {
		return nil
	}
	e.reader.stop()
	errno := e.d.destroy(e.d.p.lib.destroyCompChannel, e.addr)
	if errno == syscall.EBUSY && e.d.removed() {
		errno = 0 // libibverbs still counts the CQs whose destruction the kernel did not answer
	}
	if errno != 0 {
		return e.d.callErr("close device", 0, "ibv_destroy_comp_channel", errno, "")
	}
	return nil
}
