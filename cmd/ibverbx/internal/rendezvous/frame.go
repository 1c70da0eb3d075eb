package rendezvous

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// magic begins a conversation. Its first byte occurs in no text.
const magic = "\x89ibverbx"

// prefaceLen is the length of what each end begins with: the magic and a version.
const prefaceLen = len(magic) + 4

func preface(version uint32) []byte { return binary.BigEndian.AppendUint32([]byte(magic), version) }

// readPreface reads the peer's beginning and refuses it as soon as it is wrong.
func readPreface(r io.Reader, version uint32) error {
	var buf [prefaceLen]byte
	for got := 0; got < len(buf); {
		n, err := r.Read(buf[got:])
		got += n
		if head := min(got, len(magic)); string(buf[:head]) != magic[:head] {
			return fmt.Errorf("%w: the peer does not speak ibverbx: it began with %q", ErrProtocol, buf[:got])
		}
		if err != nil && got < len(buf) {
			return err
		}
	}
	if v := binary.BigEndian.Uint32(buf[len(magic):]); v != version {
		return fmt.Errorf("%w: the peer speaks version %d, this end version %d: use the same ibverbx on "+
			"both sides", ErrVersion, v, version)
	}
	return nil
}

// Message is a message from one end to the other.
type Message struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body,omitempty"`
}

// maxKind is how long the name of a kind may be.
const maxKind = 32

// Decode reads the body into v.
func (m *Message) Decode(v any) error {
	if err := json.Unmarshal(m.Body, v); err != nil {
		return m.unreadable(err)
	}
	return nil
}

// DecodeKnown reads the body into v, which must have a field for everything that is in it.
func (m *Message) DecodeKnown(v any) error {
	d := json.NewDecoder(bytes.NewReader(m.Body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return m.unreadable(err)
	}
	return nil
}

// unreadable says that the body is not what it should be. Reasons repeat what the peer has sent.
func (m *Message) unreadable(err error) error {
	return fmt.Errorf("%w: message %q: %s", ErrProtocol, m.Kind, excerpt(err.Error(), maxReason))
}

// appendFrame appends the frame of a message.
func appendFrame(dst []byte, kind string, body any, limit int) ([]byte, error) {
	m := Message{Kind: kind}
	var err error
	if body != nil {
		if m.Body, err = json.Marshal(body); err != nil {
			return dst, fmt.Errorf("message %q: %w", kind, err)
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return dst, fmt.Errorf("message %q: %w", kind, err)
	}
	if len(text) > limit {
		return dst, fmt.Errorf("message %q has %d bytes: at most %d", kind, len(text), limit)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(text)))
	return append(dst, text...), nil
}

// readFrame reads a message. What it holds in memory grows with what has come,
// not with what was announced.
func readFrame(r io.Reader, limit int) (m Message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > uint32(limit) {
		return m, fmt.Errorf("%w: a frame of %d bytes: at most %d", ErrProtocol, size, limit)
	}
	var text bytes.Buffer
	if _, err := io.CopyN(&text, r, int64(size)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return m, err
	}
	if err := json.Unmarshal(text.Bytes(), &m); err != nil {
		return m, fmt.Errorf("%w: %s", ErrProtocol, excerpt(err.Error(), maxReason))
	}
	if m.Kind == "" || len(m.Kind) > maxKind {
		return m, fmt.Errorf("%w: a message of kind %.40q", ErrProtocol, m.Kind)
	}
	return m, nil
}
