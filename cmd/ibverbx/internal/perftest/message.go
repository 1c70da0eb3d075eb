package perftest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"regexp"
	"slices"
	"strconv"

	"ibverbx/verbs"
)

// ErrMessage is a message of the peer that is not one of perftest's, or not the expected one.
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
	plainKeysSize = 59 // without a GID: InfiniBand without -x
	figureSize    = 8  // a figure of a report
)

// Version is the version that this end claims.
const Version = "6.06"

// leastVersion is the first one with this exchange.
const leastVersion = 5.70

// rendezvousMagic begins a conversation of package rendezvous.
const rendezvousMagic = "\x89ibverbx"

// farewell is the last message. It gets no answer.
const farewell = "done\x00"

// encodeVersion writes a version, padded with zeros.
func encodeVersion(version string) []byte {
	b := make([]byte, versionSize)
	copy(b[:versionSize-1], version)
	return b
}

// versionFormat is digits, a point and digits, up to the first zero byte.
var versionFormat = regexp.MustCompile(`^[0-9]+\.?[0-9]*\x00`)

// decodeVersion reads a version.
func decodeVersion(b []byte) (text string, number float64, err error) {
	if bytes.HasPrefix(b, []byte(rendezvousMagic)) {
		return "", 0, fmt.Errorf("%w: the other end is \"ibverbx perf\", or another program of its library: "+
			"run \"ibverbx perftest\" or a tool of perftest there, or \"ibverbx perf\" here", ErrMismatch)
	}
	found := versionFormat.Find(b)
	if found == nil {
		return "", 0, malformed("%q is no version", b)
	}
	text = string(found[:len(found)-1])
	number, err = strconv.ParseFloat(text, 64)
	return text, number, err
}

// encodeNumber writes a number of 32 bits.
func encodeNumber(n int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

// decodeNumber reads a number of 32 bits, which must be positive and at most most.
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

// keysFormat is the form that has a GID: hexadecimal digits in lower case, and a zero byte.
const (
	keysFormat = "%04x:%04x:%06x:%06x:%08x:%016x:" + fourBytes + fourBytes + fourBytes + fourBytes +
		"%08x:\x00"
	fourBytes = "%02x:%02x:%02x:%02x:"
)

// encode writes the form that has a GID.
func (k *keys) encode() []byte {
	fields := []any{k.lid, k.reads, k.qp, k.psn, k.rkey, k.addr}
	for _, c := range k.gid {
		fields = append(fields, c)
	}
	return fmt.Appendf(nil, keysFormat, append(fields, k.srq)...)
}

// decodeKeys reads exactly the form that encode writes.
func decodeKeys(b []byte) (k keys, err error) {
	fields := []any{&k.lid, &k.reads, &k.qp, &k.psn, &k.rkey, &k.addr}
	for i := range k.gid {
		fields = append(fields, &k.gid[i])
	}
	_, err = fmt.Sscanf(string(b), keysFormat, append(fields, &k.srq)...)
	if err != nil || !bytes.Equal(k.encode(), b) {
		return keys{}, malformed("%q are no KEYS", b)
	}
	return k, nil
}

// report has the figures of an end, which travel one by one in this order.
type report struct {
	Size     uint64 // bytes
	Messages uint64 // of all queue pairs together
	Peak     float64
	Average  float64
	Rate     float64 // million messages a second
}

// figures returns the messages of a report.
func (r *report) figures() iter.Seq[[]byte] {
	b, _ := binary.Append(nil, binary.BigEndian, r) // its size is fixed: it cannot fail
	return slices.Chunk(b, figureSize)
}

// decodeReport reads the joined messages of figures.
func decodeReport(b []byte) (r report, err error) {
	if _, err = binary.Decode(b, binary.BigEndian, &r); err != nil {
		return r, malformed("a report of %d bytes", len(b))
	}
	return r, nil
}

// check returns an error if these cannot be the figures of an end that has sent something over so
// many queue pairs.
func (r *report) check(qps int) error {
	for _, f := range []float64{r.Average, r.Rate} {
		if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return malformed("the peer reports a figure of %v", f)
		}
	}
	if r.Size == 0 || r.Size > maxBytes || r.Messages == 0 || r.Messages > uint64(qps)*maxMessages {
		return malformed("the peer reports %d messages of %d bytes", r.Messages, r.Size)
	}
	return nil
}
