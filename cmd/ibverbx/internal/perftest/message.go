package perftest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"ibverbx/verbs"
)

// ErrMessage is a message of the peer that is none of perftest's, or another one than was due.
var ErrMessage = errors.New("not the message that was due")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMessage, fmt.Sprintf(format, args...))
}

// Lengths of the messages in bytes.
const (
	versionSize   = 16
	numberSize    = 4 // page size and cache line
	mtuSize       = 2
	keysSize      = 108
	plainKeysSize = 59 // without a GID: of InfiniBand without -x
	figureSize    = 8  // a figure of a report
)

// Version is what this end calls itself.
const Version = "6.06"

// leastVersion is the first one that speaks this exchange.
const leastVersion = 5.70

// rendezvousMagic begins a conversation of package rendezvous.
const rendezvousMagic = "\x89ibverbx"

// farewell is the last message. Nobody answers it.
const farewell = "done\x00"

// encodeVersion writes a version, padded with zeros.
func encodeVersion(version string) []byte {
	b := make([]byte, versionSize)
	copy(b[:versionSize-1], version)
	return b
}

// decodeVersion reads a version: digits, a point and digits, up to the first zero byte.
func decodeVersion(b []byte) (text string, number float64, err error) {
	if len(b) != versionSize {
		return "", 0, malformed("a version has %d bytes, not %d", versionSize, len(b))
	}
	if bytes.HasPrefix(b, []byte(rendezvousMagic)) {
		return "", 0, fmt.Errorf("%w: the other end is \"ibverbx perf\", or another program of its library: "+
			"run \"ibverbx perftest\" or a tool of perftest there, or \"ibverbx perf\" here", ErrMismatch)
	}
	head, _, ended := bytes.Cut(b, []byte{0})
	if !ended || len(head) == 0 {
		return "", 0, malformed("%q is no version", b)
	}
	for _, c := range head {
		if c != '.' && (c < '0' || c > '9') {
			return "", 0, malformed("%q is no version", head)
		}
	}
	if number, err = strconv.ParseFloat(string(head), 64); err != nil {
		return "", 0, malformed("%q is no version", head)
	}
	return string(head), number, nil
}

// encodeNumber writes a number of 32 bits.
func encodeNumber(n int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// decodeNumber reads a number of 32 bits, which is positive and no more than most.
func decodeNumber(b []byte, what string, most int32) (int, error) {
	if len(b) != numberSize {
		return 0, malformed("a %s has %d bytes, not %d", what, numberSize, len(b))
	}
	n := int32(binary.BigEndian.Uint32(b))
	if n < 1 || n > most {
		return 0, malformed("%d bytes are no %s", n, what)
	}
	return int(n), nil
}

// encodeMTU writes an MTU as the digit of its code.
func encodeMTU(m verbs.MTU) []byte { return []byte{'0' + byte(m), 0} }

// decodeMTU reads an MTU.
func decodeMTU(b []byte) (verbs.MTU, error) {
	if len(b) != mtuSize || b[0] < '1' || b[0] > '5' || b[1] != 0 {
		return 0, malformed("%q is no path MTU", b)
	}
	return verbs.MTU(b[0] - '0'), nil
}

// keys describe a queue pair of an end, and the memory that it offers.
type keys struct {
	lid   uint16 // of InfiniBand
	reads uint16 // reads that the queue pair serves at a time
	qp    uint32 // number of the queue pair, 24 bits
	psn   uint32 // its first packet sequence number, 24 bits
	rkey  uint32
	addr  uint64
	gid   verbs.GID
	srq   uint32 // number of a shared receive queue, which perftest has for XRC only
}

// encode writes the form that has a GID.
func (k *keys) encode() []byte {
	b := fmt.Appendf(make([]byte, 0, keysSize), "%04x:%04x:%06x:%06x:%08x:%016x:", k.lid, k.reads, k.qp,
		k.psn, k.rkey, k.addr)
	for _, c := range k.gid {
		b = fmt.Appendf(b, "%02x:", c)
	}
	return fmt.Appendf(b, "%08x:\x00", k.srq)
}

// decodeKeys reads what encode writes, and nothing else.
func decodeKeys(b []byte) (k keys, err error) {
	if len(b) != keysSize {
		return k, malformed("KEYS have %d bytes, not %d", keysSize, len(b))
	}
	f := fields{rest: b}
	k.lid = uint16(f.hex(4, ':'))
	k.reads = uint16(f.hex(4, ':'))
	k.qp = uint32(f.hex(6, ':'))
	k.psn = uint32(f.hex(6, ':'))
	k.rkey = uint32(f.hex(8, ':'))
	k.addr = f.hex(16, ':')
	for i := range k.gid {
		k.gid[i] = byte(f.hex(2, ':'))
	}
	k.srq = uint32(f.hex(8, ':'))
	if f.wrong || f.rest[0] != 0 {
		return keys{}, malformed("%q are no KEYS", b)
	}
	return k, nil
}

// fields reads fields of hexadecimal digits, each with a byte behind it.
type fields struct {
	rest  []byte
	wrong bool
}

// hex reads a field of so many digits.
func (f *fields) hex(digits int, end byte) (v uint64) {
	if f.wrong || len(f.rest) <= digits || f.rest[digits] != end {
		f.wrong = true
		return 0
	}
	for _, c := range f.rest[:digits] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			f.wrong = true
			return 0
		}
		v = v<<4 | uint64(c)
	}
	f.rest = f.rest[digits+1:]
	return v
}

// report is the figures of an end. They travel one by one, in this order.
type report struct {
	size     uint64 // bytes
	messages uint64 // of all queue pairs together
	peak     float64
	average  float64
	rate     float64 // million messages a second
}

// encode writes the figures.
func (r *report) encode() [5][]byte {
	figure := func(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
	return [5][]byte{figure(r.size), figure(r.messages), figure(math.Float64bits(r.peak)),
		figure(math.Float64bits(r.average)), figure(math.Float64bits(r.rate))}
}

// decodeReport reads what encode writes.
func decodeReport(figures [5][]byte) (r report, err error) {
	var v [5]uint64
	for i, f := range figures {
		if len(f) != figureSize {
			return r, malformed("a figure has %d bytes, not %d", figureSize, len(f))
		}
		v[i] = binary.BigEndian.Uint64(f)
	}
	return report{v[0], v[1], math.Float64frombits(v[2]), math.Float64frombits(v[3]),
		math.Float64frombits(v[4])}, nil
}

// check says whether the figures of an end that has sent something
// over so many queue pairs can be figures.
func (r *report) check(qps int) error {
	for _, f := range []float64{r.average, r.rate} {
		if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return malformed("the peer reports a figure of %v", f)
		}
	}
	if r.size == 0 || r.size > maxBytes || r.messages == 0 || r.messages > uint64(qps)*maxMessages {
		return malformed("the peer reports %d messages of %d bytes", r.messages, r.size)
	}
	return nil
}
