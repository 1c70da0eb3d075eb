package rc

import (
	"ibverbx/verbs/roce/internal/wire"
)

// Packet is a packet to send.
type Packet struct {
	before  [8]byte // room for pad and ICRC of the packet before this one: see Trailer
	Header  [wire.MaxHeader]byte
	Len     uint8 // length of the header
	Pad     uint8 // bytes of zeros behind the payload
	Payload []byte
}

// BatchPackets is the capacity of a batch.
const BatchPackets = 60

// Batch holds packets of one QP that leave together. Their payloads lie in registered memory, or in
// the batch if a packet's payload is in several pieces.
type Batch struct {
	packets [BatchPackets + 1]Packet // the last one only has the trailer of the one before it
	n       int
	staging []byte
}

// Packets returns the packets of the batch.
func (b *Batch) Packets() []Packet { return b.packets[:b.n] }

// Reset empties the batch.
func (b *Batch) Reset() { b.n, b.staging = 0, b.staging[:0] }

// Trailer returns the memory for the pad and the ICRC of packet i, not filled in yet. It ends where
// the header of the next packet begins: in a burst the kernel gathers both as one piece.
func (b *Batch) Trailer(i int) []byte {
	room := &b.packets[i+1].before
	return room[len(room)-wire.ICRCSize-int(b.packets[i].Pad):]
}

func (b *Batch) full() bool { return b.n == BatchPackets }

// stage returns n bytes that stay until Reset.
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
