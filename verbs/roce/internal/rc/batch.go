package rc

import (
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/wire"
)

// Packet is a packet to send, in three pieces. The trailer is the room for pad and ICRC, which are
// not filled in.
type Packet struct {
	Header, Payload, Trailer []byte
}

const (
	// BatchPackets is the capacity of a batch.
	BatchPackets = 60

	// copied is the longest payload that is copied behind its header: the kernel then gathers a
	// whole burst as one piece.
	copied = 1024
)

// Batch holds packets of one QP that leave together. Longer payloads lie in registered memory, or
// in the batch if a packet's payload is in several pieces.
//
// All else lies side by side in frames, so that in a burst a trailer and the header behind it are
// one piece.
type Batch struct {
	packets [BatchPackets]Packet
	n       int
	frames  [BatchPackets * (wire.MaxHeader + copied + maxTrailer)]byte
	used    int // bytes of frames
	staging []byte
}

const maxTrailer = 3 + wire.ICRCSize

// Packets returns the packets of the batch.
func (b *Batch) Packets() []Packet { return b.packets[:b.n] }

// Reset empties the batch.
func (b *Batch) Reset() { b.n, b.used, b.staging = 0, 0, b.staging[:0] }

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

// unseen copies memory that the program may write meanwhile. The race detector does not see that,
// as it would see copy. Only race builds call it.
//
//go:norace
func (b *Batch) unseen(payload []byte) []byte {
	to := b.stage(len(payload))
	for i := range to {
		to[i] = payload[i]
	}
	return to
}

// add adds a packet. There must be room.
func (b *Batch) add(h *wire.Header, payload []byte) {
	h.Pad = wire.PadOf(len(payload))
	p := &b.packets[b.n]
	b.n++
	start := b.used
	end := start + h.Put(b.frames[start:])
	p.Header = b.frames[start:end:end]
	if n := len(payload); n <= copied {
		to := b.frames[end : end+n : end+n]
		nic.Move(to, payload)
		payload, end = to, end+n
	}
	p.Payload = payload
	b.used = end + int(h.Pad) + wire.ICRCSize
	p.Trailer = b.frames[end:b.used:b.used]
}
