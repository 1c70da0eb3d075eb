package rendezvous

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/peertext"
	"ibverbx/verbs"
)

// Message is a message from one end to the other.
type Message struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body,omitempty"`
}

// maxKind is the longest name of a kind, in bytes.
const maxKind = 32

// Decode reads the body into v.
func (m *Message) Decode(v any) error {
	if err := json.Unmarshal(m.Body, v); err != nil {
		// The error quotes the peer.
		return fmt.Errorf("%w: message %q: %s", ErrProtocol, m.Kind,
			peertext.Excerpt(err.Error(), maxReason))
	}
	return nil
}

// expect returns an error unless the message is of one of the kinds; no kinds stand for any.
func (m *Message) expect(kinds []string) error {
	for _, k := range kinds {
		if m.Kind == k {
			return nil
		}
	}
	if len(kinds) == 0 {
		return nil
	}
	return fmt.Errorf("%w: message %q came in place of %q", ErrProtocol, m.Kind, kinds[0])
}

// Frame is an encoded message, which can be sent to any number of peers: see [Conn.SendFrame].
type Frame struct {
	kind  string
	bytes []byte // begins with the length
}

// lengthLen is the number of bytes of the length in front of a message.
const lengthLen = 4

// Encode encodes a message. kind and body are those of [Conn.Send].
func Encode(kind string, body any) (Frame, error) {
	if kind == "" || len(kind) > maxKind || isReserved(kind) {
		return Frame{}, fmt.Errorf("%w: a message of kind %.40q: must be 1 to %d bytes, and neither %q nor "+
			"%q", verbs.ErrInvalid, kind, maxKind, errorKind, kindDetach)
	}
	return encode(kind, body)
}

// encode is Encode for any kind. It writes the JSON of a Message around the JSON of the body, which
// json.Marshal would parse and copy once more.
func encode(kind string, body any) (Frame, error) {
	name, err := json.Marshal(kind)
	var text []byte
	if err == nil && body != nil {
		text, err = json.Marshal(body)
	}
	if err != nil {
		return Frame{}, fmt.Errorf("message %q: %w", kind, err)
	}
	b := make([]byte, lengthLen, lengthLen+len(`{"kind":,"body":}`)+len(name)+len(text))
	b = append(append(b, `{"kind":`...), name...)
	if body != nil {
		b = append(append(b, `,"body":`...), text...)
	}
	b = append(b, '}')
	binary.BigEndian.PutUint32(b, uint32(len(b)-lengthLen))
	return Frame{kind, b}, nil
}

// readFrame reads a message. Its memory grows with the bytes that have arrived, not with the
// announced length.
func readFrame(r io.Reader, limit int) (m Message, err error) {
	var head [lengthLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 {
		return m, ErrLeft
	}
	if size > uint32(limit) {
		return m, fmt.Errorf("%w: a message of %d bytes: at most %d (Config.MaxMessage)", ErrProtocol, size,
			limit)
	}
	var text bytes.Buffer
	if _, err := io.CopyN(&text, r, int64(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return m, err
	}
	if err := json.Unmarshal(text.Bytes(), &m); err != nil {
		return m, fmt.Errorf("%w: %s", ErrProtocol, peertext.Excerpt(err.Error(), maxReason))
	}
	if m.Kind == "" || len(m.Kind) > maxKind {
		return m, fmt.Errorf("%w: a message of kind %.40q", ErrProtocol, m.Kind)
	}
	return m, nil
}

// incoming is the reading side of a connection. It counts the bytes that arrive; within a message,
// each of them extends the deadline for the next.
type incoming struct {
	nc      net.Conn
	timeout time.Duration // between two reads of a message; 0 before its first byte. The reader owns it
	bytes   atomic.Uint64

	mu   sync.Mutex
	last bool // the current deadline is final
}

// within sets the limit of each wait for bytes; 0 means no limit.
func (i *incoming) within(timeout time.Duration) {
	var end time.Time
	if i.timeout = timeout; timeout > 0 {
		end = time.Now().Add(timeout)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.last {
		_ = i.nc.SetReadDeadline(end) // if nc is closed, the next read fails
	}
}

// endAt ends all waits for bytes at the given time.
func (i *incoming) endAt(end time.Time) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.last = true
	return i.nc.SetReadDeadline(end)
}

// Read reads from the connection.
func (i *incoming) Read(p []byte) (n int, err error) {
	n, err = i.nc.Read(p)
	if n > 0 {
		i.bytes.Add(uint64(n))
		if i.timeout > 0 {
			i.within(i.timeout)
		}
	}
	return n, err
}
