package tagged

import "ibverbx/verbs"

// RegisterDMABuf registers part of a dma-buf, such as memory of a GPU, for long messages: messages
// go from and into it with SendRegion and RecvRegion. The arguments are those of
// [ibverbx.Domain.RegisterDMABuf]. [Region.Bytes] is nil: the processor does not access it.
func (w *Worker) RegisterDMABuf(use Use, fd int, offset, length, iova uint64) (*Region, error) {
	if err := use.validate(); err != nil {
		return nil, err
	}
	mr, err := w.dom.RegisterDMABuf(fd, offset, length, iova, w.access(use))
	if err != nil {
		return nil, err
	}
	return w.addRegion(&Region{w: w, use: use, mr: mr, remote: mr.Remote()})
}

// SendRegion sends n bytes of a region, from offset off, as one message; it returns what Send
// returns. For a region that has bytes it does what Send does. From device memory no message is
// copied, however short: the peer reads it.
func (e *Endpoint) SendRegion(tag uint64, r *Region, off, n int) (*Request, error) {
	const op = "send region"
	w := e.w
	if err := r.refuses(op, w, ForSends, off, n); err != nil {
		return nil, err
	}
	if r.buf != nil || n == 0 {
		return e.send(op, tag, r.pieces(off, n), false)
	}
	w.mu.Lock()
	err := e.admit(op)
	if err == nil && r.closed {
		err = refuse(op, ErrClosed, "the region")
	}
	if err != nil {
		w.mu.Unlock()
		return nil, err
	}
	req := w.newRequest(tag, nil, n)
	req.ep, req.kind = e, sendLong
	req.pins.addRegion(r, off, n)
	return e.enqueue(req)
}

// RecvRegion is Recv into n bytes of a region, from offset off. A message that its sender has
// copied (see Config.EagerLimit) cannot be received into device memory: the request completes with
// [ErrDeviceMemory].
func (w *Worker) RecvRegion(tag, mask uint64, r *Region, off, n int) (*Request, error) {
	return w.recvRegion(nil, tag, mask, r, off, n)
}

// RecvRegion is [Worker.RecvRegion] for messages of this peer alone, as [Endpoint.Recv] is.
func (e *Endpoint) RecvRegion(tag, mask uint64, r *Region, off, n int) (*Request, error) {
	return e.w.recvRegion(e, tag, mask, r, off, n)
}

func (w *Worker) recvRegion(from *Endpoint, tag, mask uint64, r *Region, off, n int) (*Request, error) {
	const op = "recv region"
	if err := r.refuses(op, w, ForReceives, off, n); err != nil {
		return nil, err
	}
	if r.buf != nil || n == 0 {
		return w.recv(from, false, tag, mask, r.pieces(off, n))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return nil, refuse(op, ErrClosed, "")
	case r.closed:
		return nil, refuse(op, ErrClosed, "the region")
	}
	req := w.newRequest(tag, nil, n)
	req.pins.addRegion(r, off, n)
	return w.post(req, from, false, mask)
}

// refuses returns why a request of a worker cannot use part of the region; nil if it can.
func (r *Region) refuses(op string, w *Worker, use Use, off, n int) error {
	switch {
	case r == nil || r.w != w:
		return refuse(op, verbs.ErrInvalid, "the region is of no worker, or of another one")
	case r.use&use == 0:
		return refuse(op, verbs.ErrInvalid, "the region is not registered for this use")
	case off < 0 || n < 0 || uint64(off) > r.mr.Len() || uint64(n) > r.mr.Len()-uint64(off):
		return refuse(op, verbs.ErrInvalid, "%d bytes from offset %d: the region has %d", n, off, r.mr.Len())
	}
	return nil
}

// pieces returns part of the region as buffers; the region must have bytes.
func (r *Region) pieces(off, n int) [][]byte {
	if n == 0 {
		return nil
	}
	return [][]byte{r.buf[off : off+n]}
}

// cannotCopy returns why a message cannot be copied into the receive; nil if it can.
func (r *Request) cannotCopy(n int) error {
	switch {
	case n > r.data.length:
		return ErrTruncated
	case n != 0 && r.pins.count != 0:
		return ErrDeviceMemory
	}
	return nil
}
