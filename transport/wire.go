package transport

import (
	"encoding/binary"
	"fmt"
)

// Every SEND begins with a header of eight bytes, little-endian:
//
//	byte 0     kind of message
//	byte 1     active message: id of the handler
//	byte 2     active message: length of the user's header, which follows
//	byte 3     zero
//	byte 4, 5  credits given back to the receiver of this message
//	byte 6, 7  zero
//
// Behind it stand the user's header and then the payload, to the end of the message.
const wireHeader = 8

type wireKind uint8

const (
	wireAM      wireKind = 1
	wireCredits wireKind = 2 // only credits
	wireBye     wireKind = 3 // the last message: the peer closes
	wireAbort   wireKind = 4 // the last message: the peer aborts
)

// header is a decoded header.
type header struct {
	kind    wireKind
	id      AMID
	length  uint8 // length of the user's header
	credits uint16
}

func (h header) put(b []byte) {
	b[0], b[1], b[2], b[3] = byte(h.kind), byte(h.id), h.length, 0
	binary.LittleEndian.PutUint32(b[4:], uint32(h.credits))
}

// parse reads the header of a message. It returns an error if the header is wrong.
func (h *header) parse(msg []byte) error {
	if len(msg) < wireHeader {
		return fmt.Errorf("message of %d bytes: a header has %d", len(msg), wireHeader)
	}
	*h = header{kind: wireKind(msg[0]), id: AMID(msg[1]), length: msg[2], credits: binary.LittleEndian.Uint16(
		msg[4:])}
	switch {
	case msg[3] != 0 || msg[6] != 0 || msg[7] != 0:
		return fmt.Errorf("header % x: reserved bytes are not zero", msg[:wireHeader])
	case h.kind < wireAM || h.kind > wireAbort:
		return fmt.Errorf("message of unknown kind %d", msg[0])
	case h.kind != wireAM && (len(msg) != wireHeader || h.id != 0 || h.length != 0):
		return fmt.Errorf("message of kind %d with a payload", msg[0])
	case h.id > MaxAMID:
		return fmt.Errorf("active message %d: ids end at %d", h.id, MaxAMID)
	case h.length > MaxHeader || int(h.length) > len(msg)-wireHeader:
		return fmt.Errorf("active message %d: a header of %d bytes in a message of %d", h.id, h.length,
			len(msg))
	}
	return nil
}
