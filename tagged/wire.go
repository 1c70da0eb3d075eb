package tagged

import (
	"encoding/binary"
	"fmt"
	"math"

	"ibverbx"
	"ibverbx/transport"
)

// The active messages of this package. Their headers begin alike, little-endian:
//
//	byte 0, 1   places of the window granted to the receiver of this message
//	byte 2      announcement: how many pieces of memory the payload describes;
//	            eager messages: 1 if the sender waits for the notice of the match;
//	            routed messages: their kind
//	byte 3      zero
//	byte 4-7    the sender's number for the message, if it waits for a notice; zero otherwise;
//	            of a routed message its length
//	byte 8-15   tag; of a further fragment its offset; of a routed message the ranks that it is
//	            from, in four bytes, and for
//	byte 16-23  length of the message; of a routed message where the payload begins in it
//
// and end after as many bytes as the kind needs. The payload of an announcement is one description
// of memory for each piece, see [ibverbx.RemoteSegment.AppendBinary]; that of an eager message is
// its bytes; that of a batch is, for each message, its tag, two bytes with its length, and its
// bytes.
const (
	amEager    = FirstAMID + iota // a whole message: 16 bytes of header
	amFirst                       // the first fragment of a message: 24
	amMore                        // a further fragment: 16
	amAnnounce                    // a long message, to be read: 24
	amDone                        // notice: the message was matched, and read if it was announced: 8
	amWindow                      // only a grant of window: 8
	amBatch                       // several short messages: 8
	amRoute                       // a message between two ranks, passed on by others: 24
)

// headerSize is the length of a header.
func headerSize(kind transport.AMID) int {
	switch kind {
	case amFirst, amAnnounce, amRoute:
		return maxHeader
	case amEager, amMore:
		return 16
	}
	return 8
}

// maxWindow is the most places that the two bytes hold.
const maxWindow = math.MaxUint16

const maxHeader = 24

// maxPieces is the most pieces of memory that an announcement describes, and the most that a long
// message is read into. A message of more pieces goes through a buffer made for it.
const maxPieces = 4

// header is the decoded form.
type header struct {
	window uint16 // places that are granted
	flag   uint8  // byte 2
	id     uint32 // the sender's number
	tag    uint64 // or the offset of a further fragment
	length uint64 // of the message, bytes
}

// flagSync in byte 2 says that the sender of an eager message waits for the notice of the match.
const flagSync = 1

// put writes the header of a kind into b, and returns it.
func (h *header) put(b *[maxHeader]byte, kind transport.AMID) []byte {
	binary.LittleEndian.PutUint32(b[:], uint32(h.window)|uint32(h.flag)<<16)
	binary.LittleEndian.PutUint32(b[4:], h.id)
	binary.LittleEndian.PutUint64(b[8:], h.tag)
	binary.LittleEndian.PutUint64(b[16:], h.length)
	return b[:headerSize(kind)]
}

// parse reads the header of an active message, and returns an error if no sender would write it.
func (h *header) parse(kind transport.AMID, b, payload []byte) error {
	if size := headerSize(kind); len(b) != size {
		return fmt.Errorf("message %d: a header of %d bytes: it has %d", kind, len(b), size)
	}
	*h = header{window: binary.LittleEndian.Uint16(b), flag: b[2], id: binary.LittleEndian.Uint32(b[4:])}
	if b[3] != 0 {
		return fmt.Errorf("message %d: header % x: byte 3 is not zero", kind, b)
	}
	if len(b) >= 16 {
		h.tag = binary.LittleEndian.Uint64(b[8:])
	}
	h.length = uint64(len(payload))
	if len(b) >= 24 {
		h.length = binary.LittleEndian.Uint64(b[16:])
	}
	return h.check(kind, payload)
}

// check returns an error if the fields of an active message are wrong.
func (h *header) check(kind transport.AMID, payload []byte) error {
	n := uint64(len(payload))
	switch kind {
	case amEager, amFirst:
		if h.flag > flagSync || h.flag != flagSync && h.id != 0 {
			return fmt.Errorf("message %d: flags %#x, number %d", kind, h.flag, h.id)
		}
		if kind == amFirst && (n == 0 || n >= h.length || h.length > math.MaxInt64) {
			return fmt.Errorf("first fragment with %d bytes of %d", n, h.length)
		}
	case amMore:
		if n == 0 || h.flag != 0 || h.id != 0 {
			return fmt.Errorf("fragment of %d bytes, flags %#x, number %d", n, h.flag, h.id)
		}
	case amAnnounce:
		if h.flag == 0 || h.flag > maxPieces || h.length > math.MaxInt64 {
			return fmt.Errorf("announcement of %d bytes in %d pieces: 1 to %d are possible", h.length, h.flag,
				maxPieces)
		}
	case amRoute:
		if h.flag > routeRefused || h.id > maxRouted || h.length > maxRouted || h.length+n > uint64(h.id) ||
			n == 0 && h.id != 0 {
			return fmt.Errorf("routed message of kind %d: %d bytes at %d of %d", h.flag, n, h.length, h.id)
		}
	case amBatch:
		if h.flag != 0 || h.id != 0 {
			return fmt.Errorf("batch: flags %#x, number %d", h.flag, h.id)
		}
	default:
		if n != 0 || h.flag != 0 || kind == amWindow && (h.id != 0 || h.window == 0) {
			return fmt.Errorf("message %d: %d bytes, flags %#x, number %d, window %d", kind, n, h.flag, h.id,
				h.window)
		}
	}
	return nil
}

// batchEntry is the length of the header of each message in a batch: tag and length.
const batchEntry = 10

// nextInBatch splits the next message off a batch. It returns an error if the batch is wrong.
func nextInBatch(b []byte) (tag uint64, data, rest []byte, err error) {
	if len(b) < batchEntry {
		return 0, nil, nil, fmt.Errorf("batch that ends in %d bytes", len(b))
	}
	tag, n := binary.LittleEndian.Uint64(b), int(binary.LittleEndian.Uint16(b[8:]))
	if n > len(b)-batchEntry {
		return 0, nil, nil, fmt.Errorf("batch with a message of %d bytes in %d", n, len(b)-batchEntry)
	}
	return tag, b[batchEntry : batchEntry+n], b[batchEntry+n:], nil
}

// memory is the location of an announced message at its sender.
type memory struct {
	pieces [maxPieces]ibverbx.RemoteSegment
	keys   [maxPieces]ibverbx.Keys
	count  int
}

// parse reads the payload of an announcement of count pieces and length bytes. The result must not
// be copied: its pieces point into it.
func (m *memory) parse(count int, length uint64, payload []byte) error {
	m.count = 0
	var total uint64
	for i := range count {
		var err error
		if m.pieces[i], payload, err = m.keys[i].DecodeSegment(payload); err != nil {
			return err
		}
		n := m.pieces[i].Length
		if total += n; n == 0 || n > length || total > length {
			return fmt.Errorf("announcement of %d bytes: piece %d of %d has %d", length, i, count, n)
		}
	}
	if total != length || len(payload) != 0 {
		return fmt.Errorf("announcement of %d bytes: its pieces have %d, and %d bytes stand behind them",
			length, total, len(payload))
	}
	m.count = count
	return nil
}
