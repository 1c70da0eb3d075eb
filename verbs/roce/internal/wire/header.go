package wire

import (
	"encoding/binary"
	"errors"
)

// ICRCSize is the length of the ICRC at the end of a packet, in bytes. It is stored with its least
// significant byte first, unlike everything else.
const ICRCSize = 4

// These are the errors of packets that [Parse] refuses.
var (
	ErrShort   = errors.New("roce: packet is shorter than its headers")
	ErrVersion = errors.New("roce: packet has an unknown transport version")
	ErrOpcode  = errors.New("roce: packet has an unknown opcode")
	ErrPad     = errors.New("roce: packet is not padded to four bytes, or by more than its payload")
	ErrPayload = errors.New("roce: packet has a payload that its opcode does not carry")
)

// Header is the BTH of a packet and the extended headers that its opcode has. The fields of other
// headers mean nothing.
type Header struct {
	Opcode    Opcode
	Solicited bool   // the completion at the receiver raises a solicited event
	AckReq    bool   // the responder acknowledges at once
	Pad       uint8  // zero bytes after the payload, 0 to 3
	PKey      uint16 // partition
	DestQP    uint32 // 24 bits
	PSN       uint32 // 24 bits

	// Backward is the bit BECN: the network has marked packets that the receiver of this one sent.
	// The ICRC does not cover it.
	Backward bool
	// Marked is set by the receiver of the packet if the network has marked it for congestion (the
	// code point CE of the IP header). It is not encoded.
	Marked bool

	// Reserved is the seven bits beside AckReq. RoCE sends them as zero, and receivers ignore them
	// (IBTA volume 1, 9.2.3): ends of this provider announce themselves there. The ICRC covers
	// them.
	Reserved uint8

	// RETH: READ requests, and WRITE first and only. Addr and RKey of atomic requests too.
	Addr   uint64
	RKey   uint32
	Length uint32 // length of the message, in bytes

	// AtomicETH: atomic requests.
	SwapAdd uint64
	Compare uint64

	// AETH: acknowledgements, and READ responses except middle ones.
	Syndrome Syndrome
	MSN      uint32 // 24 bits: messages that the responder completed

	// AtomicAckETH: the value of the memory before the atomic.
	Original uint64

	// ImmDt: the immediate, which travels big-endian.
	Imm uint32
}

// These are the values of the reserved bits between two ends of this provider. They differ by
// direction, so an end that only reflects them sends the wrong one.
const (
	FromRequester = 'i' // in a request
	FromResponder = 'b' // in an answer
	Repeated      = 'r' // in a request that is sent again
)

// TellsGap reports whether the packet lists arrivals behind a gap, which only ends of this provider
// send. In RoCE no acknowledgement has a payload, and no response to a READ refuses anything: this
// packet has the form of a READ response with a NAK's syndrome.
func (h *Header) TellsGap() bool {
	return h.Opcode == ReadResponseOnly && h.Syndrome == NakSequence
}

// PadOf returns the pad of a payload of n bytes.
func PadOf(n int) uint8 { return uint8(-n & 3) }

// Len returns the length in bytes of the encoded header.
func (h *Header) Len() int { return h.Opcode.HeaderLen() }

// These are the bits of the BTH beside its numbers.
const (
	bthSolicited   = 1 << 7 // byte 1
	bthMigReq      = 1 << 6
	bthPadShift    = 4
	bthVersionMask = 0x0f
	bthBackward    = 1 << 6 // byte 4
	bthAckReq      = 1 << 7 // byte 8
)

// Put encodes the BTH and the extended headers of h.Opcode, which must be known, at the start of b,
// which must have room for [MaxHeader] bytes, and returns their length. Numbers of 24 bits lose
// their higher bits. The migration state says migrated, as NICs expect of a path that never
// migrates.
func (h *Header) Put(b []byte) int {
	_ = b[MaxHeader-1]
	flags := byte(bthMigReq) | h.Pad&3<<bthPadShift
	if h.Solicited {
		flags |= bthSolicited
	}
	psn := h.PSN&PSNMask | uint32(h.Reserved&^bthAckReq)<<24
	if h.AckReq {
		psn |= bthAckReq << 24
	}
	b[0] = byte(h.Opcode)
	b[1] = flags
	binary.BigEndian.PutUint16(b[2:], h.PKey)
	dest := h.DestQP & PSNMask
	if h.Backward {
		dest |= bthBackward << 24
	}
	binary.BigEndian.PutUint32(b[4:], dest)
	binary.BigEndian.PutUint32(b[8:], psn)

	traits := opcodeTable[h.Opcode].traits
	if traits&(reth|aeth|imm|atomic|notifies) != 0 {
		h.putExtended(b, traits)
	}
	return h.Len()
}

// putExtended encodes the extended headers.
func (h *Header) putExtended(b []byte, traits trait) {
	at := bthSize
	switch {
	case traits&reth != 0:
		binary.BigEndian.PutUint64(b[12:], h.Addr)
		binary.BigEndian.PutUint32(b[20:], h.RKey)
		binary.BigEndian.PutUint32(b[24:], h.Length)
		at += rethSize
	case traits&atomic != 0:
		binary.BigEndian.PutUint64(b[12:], h.Addr)
		binary.BigEndian.PutUint32(b[20:], h.RKey)
		binary.BigEndian.PutUint64(b[24:], h.SwapAdd)
		binary.BigEndian.PutUint64(b[32:], h.Compare)
	case traits&aeth != 0:
		binary.BigEndian.PutUint32(b[12:], uint32(h.Syndrome)<<24|h.MSN&PSNMask)
		if h.Opcode == AtomicAcknowledge {
			binary.BigEndian.PutUint64(b[16:], h.Original)
		}
	case traits&notifies != 0:
		b[1] &^= bthMigReq // as NICs send it
		clear(b[12 : 12+cnpSize])
	}
	if traits&imm != 0 {
		binary.BigEndian.PutUint32(b[at:], h.Imm)
	}
}

// Parse decodes the headers of b, a packet from its BTH to its ICRC, into h. It sets the fields of
// h that the opcode has. The payload, without pad and ICRC, is a part of b. The error is one of the
// sentinels above; h is then undefined. Parse does not check the ICRC: [Flow.Check] does.
func Parse(b []byte, h *Header) (payload []byte, err error) {
	if len(b) < bthSize+ICRCSize {
		return nil, ErrShort
	}
	flags := b[1]
	if flags&bthVersionMask != 0 {
		return nil, ErrVersion
	}
	what := &opcodeTable[b[0]]
	if what.traits&known == 0 {
		return nil, ErrOpcode
	}
	start, end := int(what.header), len(b)-ICRCSize
	if start > end {
		return nil, ErrShort
	}
	pad := int(flags >> bthPadShift & 3)
	if (end-start)&3 != 0 || pad > end-start {
		return nil, ErrPad
	}
	if end != start && what.traits&carries == 0 {
		return nil, ErrPayload
	}

	h.Opcode = Opcode(b[0])
	h.Solicited = flags&bthSolicited != 0
	h.Pad = uint8(pad)
	h.PKey = binary.BigEndian.Uint16(b[2:])
	dest := binary.BigEndian.Uint32(b[4:])
	h.DestQP = dest & PSNMask
	h.Backward = dest>>24&bthBackward != 0
	h.Marked = false
	psn := binary.BigEndian.Uint32(b[8:])
	h.AckReq = psn>>24&bthAckReq != 0
	h.Reserved = uint8(psn>>24) &^ bthAckReq
	h.PSN = psn & PSNMask
	if what.traits&(reth|aeth|imm|atomic) != 0 {
		h.parseExtended(b[:end], what.traits)
	}
	return b[start : end-pad], nil
}

// parseExtended decodes the extended headers; b is long enough.
func (h *Header) parseExtended(b []byte, traits trait) {
	at := bthSize
	switch {
	case traits&reth != 0:
		h.Addr = binary.BigEndian.Uint64(b[12:])
		h.RKey = binary.BigEndian.Uint32(b[20:])
		h.Length = binary.BigEndian.Uint32(b[24:])
		at += rethSize
	case traits&atomic != 0:
		h.Addr = binary.BigEndian.Uint64(b[12:])
		h.RKey = binary.BigEndian.Uint32(b[20:])
		h.SwapAdd = binary.BigEndian.Uint64(b[24:])
		h.Compare = binary.BigEndian.Uint64(b[32:])
	case traits&aeth != 0:
		v := binary.BigEndian.Uint32(b[12:])
		h.Syndrome = Syndrome(v >> 24)
		h.MSN = v & PSNMask
		if h.Opcode == AtomicAcknowledge {
			h.Original = binary.BigEndian.Uint64(b[16:])
		}
	}
	if traits&imm != 0 {
		h.Imm = binary.BigEndian.Uint32(b[at:])
	}
}

// PSNMask is the largest packet sequence number, and the mask of its bits. Message sequence numbers
// and queue-pair numbers are as wide.
const PSNMask = 1<<24 - 1

// PSNDiff returns how far a is ahead of b, negative if it is behind: -2^23 to 2^23 - 1. It also
// works for message sequence numbers.
func PSNDiff(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }
