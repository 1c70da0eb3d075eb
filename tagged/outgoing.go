package tagged

import "ibverbx/transport"

// outgoing is the memory that a send needs while it goes out. There is one for all endpoints of a
// worker, because Worker.mu is held from packing to posting.
//
// Invariant: between posts src is clear, and from and batch.first are nil: nothing refers to the
// program's memory.
type outgoing struct {
	hdr     [maxHeader]byte // of the active message
	short   [256]byte       // payload of an active message that is sent inline
	scratch []byte          // payload of an announcement
	src     pieces          // what goes out, where that is not a request's own pieces
	from    *pieces         // what pack copies from
	left    int             // bytes that pack copies
	batch   batch
	// pack is gather: made once, so that no send makes a closure.
	pack func(dst []byte) int
}

// init prepares the memory, for announcements of a size at most.
func (o *outgoing) init(size int) {
	o.scratch = make([]byte, 0, size)
	o.pack, o.batch.pack = o.gather, o.batch.fill
}

// gather copies a fragment, and is the pack function of one.
func (o *outgoing) gather(dst []byte) int { return o.from.gather(dst[:o.left]) }

// post sends the next n bytes of the pieces as an active message with a header. inline is what both
// together may have to go inline, bytes.
func (o *outgoing) post(view *transport.Endpoint, kind transport.AMID, hdr []byte, p *pieces,
	n, inline int) error {
	if len(hdr)+n <= inline && n <= len(o.short) {
		p.gather(o.short[:n])
		return view.AMShort(kind, hdr, o.short[:n])
	}
	o.from, o.left = p, n
	_, err := view.AMBcopy(kind, hdr, o.pack)
	o.from = nil
	return err
}
