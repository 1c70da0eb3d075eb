//go:build linux && (amd64 || arm64)

package rdmacore

import "syscall"

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
