package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"ibverbx/transport"
)

// The kinds of messages of a link are ids of active messages. Each has a header of four bytes, the
// number of the stream, and a payload. Numbers are little-endian. Package memory below: a chunk has
// a number, which counts through the slabs of the receiver.
const (
	kindProof  transport.AMID = iota + 1 // no stream: a new link has carried a word
	kindOpen                             // the dialling end opens a stream
	kindAccept                           // the stream is open
	kindRefuse                           // it is not: why, as text
	kindData                             // bytes of the stream
	kindPut                              // u32 chunk, u32 bytes: they are in that chunk
	kindWant                             // u32: for so many bytes the writer waits for chunks; 0: for space
	kindSlab                             // in place of a stream the slab's number: its location as JSON
	kindGrant                            // u32 chunks: the writer may fill them; none: there are none now
	kindReturn                           // u32 chunks that the writer does not use
	kindSpace                            // u64: all bytes in kindData may be so many
	kindFin                              // u64: the stream had so many bytes, and ends
	kindReset                            // nothing more is sent or read
	kindShrink                           // u64, u64: the writer lowers its limit from the first to the second
	kindLast
)

const (
	headerBytes = 4
	// chunkBytes is the size of a chunk and of a piece of a large write: long enough to hide the
	// cost of two messages, and short enough to stay in a cache on its way.
	chunkBytes = 64 << 10
	// slabChunks is the number of chunks that are registered, and described to the peer, together.
	slabChunks = 8
	slabBytes  = slabChunks * chunkBytes
	// maxSlabs bounds what a peer may describe.
	maxSlabs = 4096
	// firstWindow and lastWindow bound the bytes of kindData that a stream may have unread.
	firstWindow = 8 << 10
	lastWindow  = 256 << 10
	// firstChunks and lastChunks bound the chunks of a stream.
	firstChunks = 4
	lastChunks  = 64
	// Beyond easyChunks the memory of a link grows only for a writer that has waited for wantTime:
	// until then it gets what others have read, which a cache still has.
	easyChunks = 128
	wantTime   = 5 * time.Millisecond
)

// violation makes the error for a message that no peer sends.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// u32s reads a list of chunk numbers.
func u32s(data []byte, most int, yield func(uint32) error) error {
	if len(data)%4 != 0 || len(data)/4 > most {
		return violation("a list of %d bytes: must be 4 each, at most %d", len(data), most)
	}
	for ; len(data) != 0; data = data[4:] {
		if err := yield(binary.LittleEndian.Uint32(data)); err != nil {
			return err
		}
	}
	return nil
}

// u64 reads a number.
func u64(data []byte) (uint64, error) {
	if len(data) != 8 {
		return 0, violation("a number of %d bytes: must be 8", len(data))
	}
	return binary.LittleEndian.Uint64(data), nil
}

// due is what the stream has to tell the peer. Each message is sent once, at the next possibility.
type due struct {
	open, accept, space, fin, reset bool
	want                            [2]bool  // forSpace, forChunks
	wants                           uint32   // for how many bytes the latter
	shrink                          uint64   // the limit that was lowered; 0 if none was
	puts                            []filled // chunks that this end has filled
	grants, returns                 []uint32 // chunks
	denied                          bool     // grant no chunk, because there is none
}

// filled is a chunk with n bytes.
type filled struct{ chunk, n uint32 }

// control sends what is due, or makes the link send it when it can.
func (c *Conn) control(ep *transport.Endpoint) {
	if c.tryControl(ep) {
		return
	}
	c.link.addDirty(c)
	c.tryControl(ep) // there may be resources since before the stream was listed
}

// tryControl sends what is due. It reports false if something found no resource.
func (c *Conn) tryControl(ep *transport.Endpoint) bool {
	d := &c.due
	if c.refusal != "" {
		text := []byte(c.refusal)
		if !c.sent(c.link.sendText(ep, kindRefuse, c.id, text)) {
			return false
		}
		c.refusal = ""
		return true
	}
	// A peer to which chunks are returned takes it that nothing waits. So a want comes behind.
	ok := c.flag(ep, &d.open, kindOpen) && c.flag(ep, &d.accept, kindAccept) &&
		c.puts(ep) && c.list(ep, &d.returns, kindReturn) && c.shrink(ep) &&
		c.wants(ep, forSpace, 0) && c.wants(ep, forChunks, d.wants)
	if ok && d.space {
		if ok = c.number(ep, kindSpace, c.in.limit); ok {
			d.space = false
		}
	}
	if ok && (len(d.grants) != 0 || d.denied) {
		if ok = c.sent(c.link.pool.announce(c.link, ep)) && c.list(ep, &d.grants, kindGrant); ok && d.denied {
			ok = c.flag(ep, &d.denied, kindGrant)
		}
	}
	// The end promises the peer that no byte lands behind it.
	mayEnd := c.out.inflight == 0 || c.link.ordered
	if ok && d.fin && mayEnd {
		if ok = c.number(ep, kindFin, c.out.total); ok {
			d.fin, c.out.final = false, true
		}
	}
	if ok && d.reset && mayEnd {
		if ok = c.flag(ep, &d.reset, kindReset); ok {
			c.out.final = true
		}
	}
	c.retire()
	return ok
}

// flag sends a message without a payload if it is due.
func (c *Conn) flag(ep *transport.Endpoint, due *bool, kind transport.AMID) bool {
	if !*due {
		return true
	}
	if !c.sent(ep.AMShort(kind, c.header[:], nil)) {
		return false
	}
	*due = false
	return true
}

// wants says that this end waits.
func (c *Conn) wants(ep *transport.Endpoint, what int, bytes uint32) bool {
	if !c.due.want[what] {
		return true
	}
	binary.LittleEndian.PutUint32(c.scratch[:], bytes)
	if !c.sent(ep.AMShort(kindWant, c.header[:], c.scratch[:4])) {
		return false
	}
	c.due.want[what] = false
	return true
}

// shrink says that this end has lowered its limit.
func (c *Conn) shrink(ep *transport.Endpoint) bool {
	if c.due.shrink == 0 {
		return true
	}
	binary.LittleEndian.PutUint64(c.scratch[:], c.due.shrink)
	binary.LittleEndian.PutUint64(c.scratch[8:], c.out.limit)
	if !c.sent(ep.AMShort(kindShrink, c.header[:], c.scratch[:16])) {
		return false
	}
	c.due.shrink = 0
	return true
}

// number sends a message with a number.
func (c *Conn) number(ep *transport.Endpoint, kind transport.AMID, n uint64) bool {
	binary.LittleEndian.PutUint64(c.scratch[:], n)
	return c.sent(ep.AMShort(kind, c.header[:], c.scratch[:8]))
}

// puts announces the chunks that this end has filled.
func (c *Conn) puts(ep *transport.Endpoint) bool {
	for len(c.due.puts) != 0 {
		f := c.due.puts[0]
		binary.LittleEndian.PutUint32(c.scratch[:], f.chunk)
		binary.LittleEndian.PutUint32(c.scratch[4:], f.n)
		if !c.sent(ep.AMShort(kindPut, c.header[:], c.scratch[:8])) {
			return false
		}
		c.due.puts = c.due.puts[:copy(c.due.puts, c.due.puts[1:])]
	}
	return true
}

// list sends the numbers of chunks, in as many messages as that takes.
func (c *Conn) list(ep *transport.Endpoint, list *[]uint32, kind transport.AMID) bool {
	for len(*list) != 0 {
		n := min(len(*list), len(c.scratch)/4, c.link.short/4)
		for i, k := range (*list)[:n] {
			binary.LittleEndian.PutUint32(c.scratch[4*i:], k)
		}
		if !c.sent(ep.AMShort(kind, c.header[:], c.scratch[:4*n])) {
			return false
		}
		*list = (*list)[:copy(*list, (*list)[n:])]
	}
	return true
}

// sent reports whether a message need not be sent again: it was sent, or the link has failed.
func (c *Conn) sent(err error) bool { return !errors.Is(err, transport.ErrNoResource) }
