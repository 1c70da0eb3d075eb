package rc

import (
	"ibverbx/verbs/roce/internal/wire"
)

// Packet is one that leaves.
type Packet struct {
	Header  [wire.MaxHeader]byte
	Len     uint8 // of the header
	Pad     uint8 // bytes of zeros behind the payload
	Payload []byte
}

// BatchPackets is how many packets a batch holds.
const BatchPackets = 32

// Batch is packets of one QP that leave together. Their payloads lie in registered memory, or in
// the batch where a packet's payload lies in several pieces.
type Batch struct {
	packets [BatchPackets]Packet
	n       int
	staging []byte
}

// Packets are those in the batch.
func (b *Batch) Packets() []Packet { return b.packets[:b.n] }

// Reset empties the batch.
func (b *Batch) Reset() { b.n, b.staging = 0, b.staging[:0] }

func (b *Batch) full() bool { return b.n == len(b.packets) }

// stage is n bytes that stay until Reset.
func (b *Batch) stage(n int) []byte {
	if cap(b.staging) == 0 {
		b.staging = make([]byte, 0, BatchPackets*maxMTU)
	}
	from := len(b.staging)
	b.staging = b.staging[:from+n]
	return b.staging[from : from+n : from+n]
}

const maxMTU = 4096

// add adds a packet. There must be room.
func (b *Batch) add(h *wire.Header, payload []byte) {
	p := &b.packets[b.n]
	b.n++
	h.Pad = uint8(-len(payload) & 3)
	p.Len = uint8(h.Put(p.Header[:]))
	p.Pad, p.Payload = h.Pad, payload
}
