package rendezvous

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How a conversation ends. Test with errors.Is.
var (
	// ErrGone: the peer closed the connection, or it broke.
	ErrGone = errors.New("the peer has gone")
	// ErrTimeout: the peer did not do its part in time.
	ErrTimeout = errors.New("the peer does not answer")
	// ErrProtocol: the peer sent what the protocol does not allow.
	ErrProtocol = errors.New("protocol error")
	// ErrVersion: the peer's messages are of another version.
	ErrVersion = errors.New("version mismatch")
	// ErrClosed: this end has closed the conversation.
	ErrClosed = errors.New("conversation closed")
)

// PeerError is the reason that the peer gave for ending the conversation.
type PeerError struct{ Text string }

// Error names the peer as the source of the text.
func (e *PeerError) Error() string { return "peer: " + e.Text }

const (
	// maxText is how long text of the peer may be in bytes.
	maxText = 2000
	// maxReason is how long a reason may be that repeats what the peer has sent.
	maxReason = 400
)

// Clean makes text of a peer safe for a terminal: control characters become spaces, but for line
// ends, and what is too long is cut. Further lines are indented, so that none looks like a line of
// this end.
func Clean(s string) string { return indent(excerpt(s, maxText)) }

// indent sets the lines after the first one off.
func indent(s string) string {
	first, rest, found := strings.Cut(s, "\n")
	if !found {
		return s
	}
	var b strings.Builder
	b.WriteString(first)
	for line := range strings.SplitSeq(rest, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString("\n  ")
			b.WriteString(line)
		}
	}
	return b.String()
}

// excerpt makes at most a number of bytes safe for a terminal.
func excerpt(s string, most int) string {
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
}
