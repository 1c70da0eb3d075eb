package rendezvous

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"ibverbx/internal/peertext"
)

// checkReason looks whether an error can be shown: nothing in it that a terminal obeys, and no more
// of what came than a line or two.
func checkReason(t *testing.T, err error) {
	t.Helper()
	if text := err.Error(); len(text) > 2*maxReason ||
		strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
		t.Fatalf("%d bytes: %.300q", len(text), text)
	}
}

// FuzzFrames reads frames from anything. What can be read can be written and read again, nothing is
// larger than allowed, what is refused says why, and a length that is only announced costs nothing.
func FuzzFrames(f *testing.F) {
	for _, s := range []string{
		frame(`{"kind":"word"}`), frame(`{"kind":"word","body":{"a":[1,2]}}`) + frame(`{"kind":"b"}`),
		frame("{}"), "\xff\xff\xff\xff",
		"\x00\x00\x00\x05{",
		frame(`{"kind":"` + strings.Repeat("k", 33) + `"}`), frame("null"), frame(`{"KIND":"x","body":null}`),
		string(greeting(wireVersion, "test")), "",
		"\x3f\xff\xff\xff{", frame(`{"kind":"\u001b[2J"}`),
		frame(`{"kind":1e` + strings.Repeat("9", 900) + `}`),
		frame(`{"kind":"x","kind":"y"}`),
	} {
		f.Add([]byte(s))
	}
	const limit = 1 << 10
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := readGreeting(bytes.NewReader(data), "test"); (err == nil) != bytes.HasPrefix(
			data, greeting(wireVersion, "test")) {
			t.Fatalf("began with %q: %v", data, err)
		}
		if len(data) >= 4 && data[0]|data[1] != 0 {
			announced(t, data)
		}
		r := bytes.NewReader(data)
		for {
			m, err := readFrame(r, limit)
			if err != nil {
				if !errors.Is(err, ErrProtocol) && !errors.Is(err, io.EOF) &&
					!errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrLeft) {
					t.Fatal(err)
				}
				checkReason(t, err)
				return
			}
			if m.Kind == "" || len(m.Kind) > maxKind || len(m.Body) > limit {
				t.Fatalf("took %q with %d bytes", m.Kind, len(m.Body))
			}
			var body any
			if len(m.Body) > 0 {
				if err := m.Decode(&body); err != nil {
					t.Fatalf("the body was taken: %v", err)
				}
			}
			again, err := encode(m.Kind, body)
			if err != nil {
				t.Fatal(err)
			}
			if m2, err := readFrame(bytes.NewReader(again.bytes), 8*limit); err != nil ||
				m2.Kind != strings.ToValidUTF8(m.Kind, "\ufffd") {
				t.Fatalf("written and read again: %v, %q became %q", err, m.Kind, m2.Kind)
			}
		}
	})
}

// announced reads a frame that says that it is long, from an end that would take it, and looks what
// that costs.
func announced(t *testing.T, data []byte) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _ = readFrame(bytes.NewReader(data), 1<<31-1)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20+uint64(16*len(data)) {
		t.Fatalf("a frame of %d bytes, of which %d came, took %d bytes", binary.BigEndian.Uint32(data),
			len(data)-4, took)
	}
}

// tape is a connection whose other end has said everything already, and has gone. It is read some
// bytes at a time.
type tape struct {
	net.Conn // what is not there is not called
	text     *bytes.Reader
	step     int
}

func (p *tape) Read(b []byte) (int, error)         { return p.text.Read(b[:min(len(b), p.step)]) }
func (p *tape) Write(b []byte) (int, error)        { return len(b), nil }
func (p *tape) Close() error                       { return nil }
func (p *tape) RemoteAddr() net.Addr               { return &net.TCPAddr{} }
func (p *tape) SetDeadline(time.Time) error        { return nil }
func (p *tape) SetReadDeadline(time.Time) error    { return nil }
func (p *tape) SetWriteDeadline(t time.Time) error { return nil }

// FuzzConversation has a conversation with a peer that says anything, in pieces of any length, and
// goes. What can be received is what a reader of its frames finds, and how it ends is what comes
// behind that.
func FuzzConversation(f *testing.F) {
	hello := string(greeting(wireVersion, "test"))
	for _, s := range []string{
		"", hello, hello[:7], "GET / HTTP/1.1\r\n\r\n", string(greeting(77, "test")),
		hello + frame(`{"kind":"word","body":7}`) + frame(`{"kind":"nothing"}`),
		hello + strings.Repeat(frame(`{"kind":"flood"}`), 3*inboxLen),
		hello + frame(`{"kind":"word"}`) +
			frame(`{"kind":"error","body":{"text":"out of\u001b[31m ink\nibverbx: all is well"}}`) +
			frame(`{"kind":"late"}`),
		hello + frame(`{"kind":"error","body":7}`), hello + frame(`{"kind":"error"}`),
		hello + frame(`{"kind":"word"}`)[:9],
		hello + "\xff\xff\xff\xff", hello + frame(`{"kind":"word"}`) + "\x00\x00\x00\x00",
		hello + frame(`{"kind":"error","body":{"text":"`+strings.Repeat("x\\n", 400)+`"}}`),
	} {
		f.Add([]byte(s), byte(3))
		f.Add([]byte(s), byte(255))
	}
	const limit = 1 << 11
	f.Fuzz(func(t *testing.T, data []byte, step byte) {
		cfg := Config{Protocol: "test", Timeout: time.Hour, MaxMessage: limit}
		conn, err := Start(t.Context(), &tape{text: bytes.NewReader(data), step: 1 + int(step)}, cfg)
		if err != nil {
			allowed := []error{ErrProtocol, ErrVersion, ErrGone, ErrTLS}
			if bytes.HasPrefix(data, greeting(wireVersion, "test")) ||
				!slices.ContainsFunc(allowed, func(is error) bool { return errors.Is(err, is) }) {
				t.Fatal(err)
			}
			return
		}
		frames := bytes.NewReader(data[len(greeting(wireVersion, "test")):])
		for {
			want, end := readFrame(frames, limit)
			var words errorBody
			last := end == nil && want.Kind == errorKind
			if last && json.Unmarshal(want.Body, &words) != nil {
				last, end = false, ErrProtocol
			}
			m, err := conn.ReceiveAny(t.Context(), want.Kind)
			if end == nil && !last {
				if err != nil || m.Kind != want.Kind || !bytes.Equal(m.Body, want.Body) {
					t.Fatalf("received %q, %v, want %q", m.Kind, err, want.Kind)
				}
				continue
			}
			<-conn.Done()
			said := new(PeerError)
			switch {
			case last && errors.As(err, &said) && said.Text == peertext.Clean(words.Text):
			case last:
				t.Fatalf("it ends with %v, and not with the peer's words %q", err, words.Text)
			case errors.Is(end, ErrProtocol) == errors.Is(err, ErrProtocol) &&
				errors.Is(end, ErrProtocol) != errors.Is(err, ErrGone) &&
				errors.Is(end, ErrLeft) == errors.Is(err, ErrLeft):
				checkReason(t, err)
			default:
				t.Fatalf("it ends with %v, want %v", err, end)
			}
			if !errors.Is(conn.Err(), err) {
				t.Fatalf("it says %v, and then %v", err, conn.Err())
			}
			break
		}
		conn.Fail(errors.New("enough"))
		if err := conn.Send(t.Context(), "word", nil); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	})
}

// party is an endpoint that connects to anything.
type party struct{}

// partyCard is its card.
type partyCard struct {
	Number int
	Names  []string
	Raw    json.RawMessage
}

func (party) Card() (partyCard, error) { return partyCard{Number: 1}, nil }

func (party) Connect(peer partyCard) error {
	if peer.Number < 0 {
		return errors.New("a negative number")
	}
	return nil
}

// FuzzSteps takes the steps of a conversation with a peer that says anything, and goes. Each step
// ends, with a reason that can be shown, or because the peer did the same.
func FuzzSteps(f *testing.F) {
	hello := string(greeting(wireVersion, "test"))
	card := frame(`{"kind":"card","body":{"type":"rendezvous.partyCard","card":{"Number":7}}}`)
	connected, barrier := frame(`{"kind":"connected"}`), frame(`{"kind":"barrier"}`)
	value := frame(`{"kind":"value","body":{"a":[1,"b"]}}`)
	for _, s := range []string{
		card + connected + value + barrier, card + connected + value, card + connected, card, "",
		card + barrier, value, barrier, card + connected + frame(`{"kind":"value","body":7}`),
		card + connected + frame(`{"kind":"value"}`),
		frame(`{"kind":"card"}`), frame(`{"kind":"card","body":{"type":"rendezvous.partyCard"}}`),
		frame(`{"kind":"card","body":{"type":"rendezvous.partyCard","card":{"Number":-1}}}`),
		frame(`{"kind":"card","body":{"type":"\u001b[2J` + strings.Repeat("x", 500) + `","card":{}}}`),
		frame(`{"kind":"card","body":{"type":"rendezvous.partyCard","card":{"Number":"` +
			strings.Repeat("9", 500) + `"}}}`),
		frame(`{"kind":"error","body":{"text":"out of ink"}}`), frame(`{"kind":"\u001b[2J"}`),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		conn, err := Start(t.Context(), &tape{text: bytes.NewReader(append([]byte(hello), data...)),
			step: 4096},
			Config{Protocol: "test", Timeout: time.Hour, MaxMessage: 1 << 11})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		start := time.Now()
		err = Connect(t.Context(), conn, party{})
		if err == nil {
			_, err = Exchange(t.Context(), conn, map[string]any{"mine": 1})
		}
		if err == nil {
			err = conn.Barrier(t.Context())
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Fatalf("took %v", took)
		}
		var step *OpError
		switch {
		case err == nil:
			if !bytes.HasPrefix(data, []byte{0}) || bytes.Count(data, []byte("kind")) < 4 {
				t.Fatalf("content with %q", data)
			}
			return
		case !errors.As(err, &step):
			t.Fatalf("no step: %v", err)
		case len(err.Error()) > 3000 || strings.ContainsFunc(err.Error(),
			func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }):
			t.Fatalf("%d bytes: %.300q", len(err.Error()), err.Error())
		}
		if err := conn.Send(t.Context(), "more", nil); !errors.Is(err, ErrClosed) {
			t.Fatalf("the conversation goes on: %v", err)
		}
	})
}
