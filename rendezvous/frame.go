package rendezvous

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

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
		// Reasons repeat what the peer has sent.
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
		return dst, fmt.Errorf("%w: message %q has %d bytes: at most %d (Config.MaxMessage)",
			verbs.ErrInvalid,
			kind, len(text), limit)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(text)))
	return append(dst, text...), nil
}

// readFrame reads a message. Its memory grows with what has come, not with what was announced.
func readFrame(r io.Reader, limit int) (m Message, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return m, err
	}
	size := binary.BigEndian.Uint32(head[:])
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
