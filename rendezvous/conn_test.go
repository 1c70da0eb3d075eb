package rendezvous

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"ibverbx/internal/tcptest"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait
	goleak.VerifyTestMain(m)
}

// pair is two ends of a conversation, whose first messages may take their time.
func pair(t *testing.T, cfg Config) (a, b *Conn) {
	t.Helper()
	return pairOf(t, cfg, cfg)
}

// pairOf is a pair whose ends are configured differently.
func pairOf(t *testing.T, cfgA, cfgB Config) (a, b *Conn) {
	t.Helper()
	cfgA.Greeting, cfgB.Greeting = time.Minute, time.Minute
	ncA, ncB := tcptest.Pair(t)
	started := make(chan error, 1)
	go func() {
		var err error
		b, err = Start(t.Context(), ncB, cfgB)
		started <- err
	}()
	a, err := Start(t.Context(), ncA, cfgA)
	if err := errors.Join(err, <-started); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestConversation(t *testing.T) {
	a, b := pair(t, Config{})
	if err := a.Send(t.Context(), "number", 17); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(t.Context(), "nothing", nil); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := b.Receive(t.Context(), "number", &n); err != nil || n != 17 {
		t.Errorf("got %d, %v", n, err)
	}
	if err := b.Receive(t.Context(), "nothing", nil); err != nil {
		t.Error(err)
	}
	if err := b.Send(t.Context(), "last", "words"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	<-a.Done()
	var s string
	if err := a.Receive(t.Context(), "last", &s); err != nil || s != "words" {
		t.Errorf("got %q, %v: what came before the end must be received", s, err)
	}
	if err := a.Receive(t.Context(), "more", nil); !errors.Is(err, ErrLeft) || !errors.Is(err, ErrGone) {
		t.Errorf("error %v, want ErrLeft", err)
	}
	if err := b.Send(t.Context(), "more", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}

// TestFail shows that both ends learn why either gave up, also when messages that nobody read are
// under way.
func TestFail(t *testing.T) {
	a, b := pair(t, Config{})
	for range 3 * inboxLen {
		if err := b.Send(t.Context(), "unread", strings.Repeat("x", 1000)); err != nil {
			t.Fatal(err)
		}
	}
	failing := make(chan struct{})
	go func() {
		a.Fail(errors.New("out of\x1b[31m ink\nand paper"))
		close(failing)
	}()
	<-b.Done()
	var said *PeerError
	if err := b.Err(); !errors.As(err, &said) || said.Text != "out of [31m ink\n  and paper" ||
		err.Error() != "peer: "+said.Text {
		t.Errorf("error %v", b.Err())
	}
	b.Fail(errors.New("no paper here either"))
	<-failing
	if err := a.Err(); !errors.As(err, &said) || said.Text != "no paper here either" {
		t.Errorf("the failing end heard %v", err)
	}
}

func TestReceiveEnds(t *testing.T) {
	a, _ := pair(t, Config{Timeout: 20 * time.Millisecond})
	if err := a.Receive(t.Context(), "word", nil); !errors.Is(err, ErrTimeout) ||
		!strings.Contains(err.Error(), `message "word"`) {
		t.Errorf("error %v, want ErrTimeout", err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	a, _ = pair(t, Config{})
	if err := a.Receive(ctx, "word", nil); !errors.Is(err, why) {
		t.Errorf("error %v, want the context's cause", err)
	}
}

func TestVersions(t *testing.T) {
	ncA, ncB := tcptest.Pair(t)
	other := make(chan error, 1)
	go func() {
		_, err := Start(t.Context(), ncB, Config{Protocol: "shop/2"})
		other <- err
	}()
	_, err := Start(t.Context(), ncA, Config{Protocol: "shop/1"})
	for _, err := range []error{err, <-other} {
		if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), `"shop/1"`) ||
			!strings.Contains(err.Error(), `"shop/2"`) {
			t.Errorf("error %v, want ErrVersion with both", err)
		}
	}
}

// frame is a frame around some text.
func frame(text string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

// TestStrangers sends an end what no peer would send. It must say what is wrong,
// and not wait for ever.
func TestStrangers(t *testing.T) {
	t.Parallel()
	hello := string(greeting(wireVersion, "test"))
	for name, tt := range map[string]struct {
		sent  string
		stays bool // and does not close the connection
		want  error
		text  string
	}{
		"silence": {"", true, ErrTimeout, "its greeting"},
		"nobody":  {"", false, ErrGone, ""},
		"HTTP": {"GET / HTTP/1.1\r\n\r\n", true, ErrProtocol,
			`it began with "GET / HTTP/1`},
		"a word":                      {"hi", true, ErrProtocol, `it began with "hi"`},
		"noise":                       {"\x89\x00\xff\xfe", true, ErrProtocol, "does not speak ibverbx"},
		"half a greeting":             {hello[:5], true, ErrTimeout, "its greeting"},
		"half a greeting and no more": {hello[:5], false, ErrGone, ""},
		"another version": {string(greeting(77, "test")), true, ErrVersion,
			"the peer speaks version 77, this end version 9: use the same ibverbx on both sides"},
		"another version of old": {"\x89ibverbx\x00\x00\x00\x08", true, ErrVersion,
			"the peer speaks version 8, this end version 9"},
		"another protocol": {string(greeting(wireVersion, "test/2")), true, ErrVersion,
			`the peer is here for protocol "test/2", this end for "test": run the same program`},
		"no protocol": {string(greeting(wireVersion, "")), true, ErrVersion,
			`the peer is here for protocol "", this end for "test"`},
		"a protocol that a terminal obeys": {string(greeting(wireVersion, "\x1b[2J")), true, ErrProtocol,
			`the name of the peer's protocol is "\x1b[2J"`},
		"TLS": {"\x16\x03\x01\x02\x00", true, ErrTLS,
			"the peer begins with TLS, and this end has none"},
		"almost TLS":           {"\x16\x04", true, ErrProtocol, `it began with "\x16\x04"`},
		"greeting and no more": {hello, false, ErrGone, ""},
		"greeting and silence": {hello, true, ErrTimeout, `message "word"`},
		"overlong frame": {hello + "\xff\xff\xff\xff", true, ErrProtocol,
			"a message of 4294967295 bytes: at most 1000 (Config.MaxMessage)"},
		"a little too long": {hello + "\x00\x00\x03\xe9", true, ErrProtocol,
			"a message of 1001 bytes"},
		"truncated frame": {hello + frame(`{"kind":"word"}`)[:9], true, ErrTimeout,
			"the peer does not answer"},
		"truncated frame and no more": {hello + frame(`{"kind":"word"}`)[:9], false, ErrGone, ""},
		"half a length":               {hello + "\x00\x00", true, ErrTimeout, "the peer does not answer"},
		"no JSON":                     {hello + frame("word word"), true, ErrProtocol, "invalid character"},
		"a goodbye":                   {hello + frame(""), true, ErrLeft, ""},
		"no kind":                     {hello + frame(`{}`), true, ErrProtocol, "of kind"},
		"long kind": {hello + frame(`{"kind":"`+strings.Repeat("k", 100)+`"}`), true,
			ErrProtocol, "of kind"},
		"other kind": {hello + frame(`{"kind":"sword"}`), true, ErrProtocol,
			`"sword" came in place of "word"`},
		"wrong body": {hello + frame(`{"kind":"word","body":{"a":1}}`), true, ErrProtocol,
			`message "word"`},
		"no body": {hello + frame(`{"kind":"word"}`), true, ErrProtocol,
			`message "word"`},
		"wrong last words": {hello + frame(`{"kind":"error","body":7}`), true, ErrProtocol, ""},
	} {
		t.Run(name, func(t *testing.T) {
			nc, stranger := tcptest.Pair(t)
			if _, err := io.WriteString(stranger, tt.sent); err != nil {
				t.Fatal(err)
			}
			if !tt.stays {
				stranger.Close()
			}
			cfg := Config{Protocol: "test", MaxMessage: 1000} // what has come is read, however late
			if errors.Is(tt.want, ErrTimeout) {
				cfg.Timeout = 50 * time.Millisecond
				if strings.HasPrefix(tt.sent, hello) {
					cfg.Greeting = time.Minute
				}
			}
			conn, err := Start(t.Context(), nc, cfg)
			if err == nil {
				var word string
				if err = conn.Receive(t.Context(), "word", &word); err == nil {
					err = conn.Receive(t.Context(), "word", &word)
				}
				conn.Close()
			}
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) ||
				errors.Is(err, ErrLeft) != errors.Is(tt.want, ErrLeft) {
				t.Errorf("error %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

// TestFlood sends without end to an end that does not receive: it must not read more than it has
// room for.
func TestFlood(t *testing.T) {
	const most = 1 << 20
	a, b := pairOf(t, Config{MaxMessage: most}, Config{Timeout: 50 * time.Millisecond, MaxMessage: most})
	big := strings.Repeat("x", 1<<19)
	var err error
	sent := 0
	for ; err == nil && sent < 1000; sent++ {
		err = b.Send(t.Context(), "big", big)
	}
	if !errors.Is(err, ErrTimeout) {
		t.Errorf("error %v after %d messages, want ErrTimeout", err, sent)
	}
	a.Close()
}

func TestStartInterrupted(t *testing.T) {
	nc, _ := tcptest.Pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := Start(ctx, nc, Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// TestSendInterrupted sends to an end that does not read, and is told to stop.
func TestSendInterrupted(t *testing.T) {
	t.Parallel()
	nc, other := tcptest.Pair(t)
	if _, err := other.Write(greeting(wireVersion, "")); err != nil {
		t.Fatal(err)
	}
	conn, err := Start(t.Context(), nc, Config{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var n atomic.Int64
	go func() {
		untilStill(&n)
		cancel(why)
	}()
	big := strings.Repeat("x", 1<<19)
	for err = nil; err == nil; {
		n.Add(1)
		if err = conn.Send(ctx, "big", big); err == nil && ctx.Err() != nil {
			t.Fatal("what waited when the context ended is said to be sent")
		}
	}
	if !errors.Is(err, why) {
		t.Errorf("error %v, want the context's cause", err)
	}
	failed := make(chan struct{})
	go func() { conn.Fail(why); close(failed) }()
	select {
	case <-failed:
	case <-time.After(20 * time.Second):
		t.Fatal("Fail does not end")
	}
	if err := conn.Send(t.Context(), "word", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
}

// TestFailSendsItsReason sends to a peer that has gone and has said why, which this end has not
// read yet: its reason is returned.
func TestFailSendsItsReason(t *testing.T) {
	nc, other := tcptest.Pair(t)
	said := string(greeting(wireVersion, "")) + strings.Repeat(frame(`{"kind":"unread"}`), inboxLen+1) +
		frame(`{"kind":"error","body":{"text":"out of ink"}}`)
	if _, err := io.WriteString(other, said); err != nil {
		t.Fatal(err)
	}
	conn, err := Start(t.Context(), nc, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other.Close()
	time.AfterFunc(50*time.Millisecond, func() { <-conn.Inbox() }) // sending has failed long since
	for err = nil; err == nil; {
		err = conn.Send(t.Context(), "word", nil)
	}
	var words *PeerError
	if !errors.As(err, &words) || words.Text != "out of ink" {
		t.Errorf("error %v, want the peer's words", err)
	}
}

// TestCloseAmidAMessage closes a conversation in which much is unread while a further message
// trickles in: each of its bytes prolongs the wait for the next, but not Close.
func TestCloseAmidAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nc, other := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, other) }()
		go func() {
			said := string(greeting(wireVersion, "")) + strings.Repeat(frame(`{"kind":"unread"}`), inboxLen) +
				"\x00\x00\x10\x00"
			for _, err := io.WriteString(other, said); err == nil; _, err = io.WriteString(other, " ") {
				time.Sleep(3 * time.Millisecond)
			}
		}()
		conn, err := Start(t.Context(), nc, Config{Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		start := time.Now()
		if err := conn.Close(); err != nil || time.Since(start) > time.Second {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
		other.Close()
		time.Sleep(time.Second) // the other end notices
	})
}

// TestGreeting shows that the beginning can have less time than the rest.
func TestGreeting(t *testing.T) {
	nc, _ := tcptest.Pair(t)
	if _, err := Start(t.Context(), nc, Config{Timeout: time.Hour,
		Greeting: 20 * time.Millisecond}); !errors.Is(err, ErrTimeout) ||
		!strings.Contains(err.Error(), "waited 20ms") {
		t.Errorf("error %v, want ErrTimeout", err)
	}
}

// TestSendEnded sends nothing once the context has ended.
func TestSendEnded(t *testing.T) {
	a, b := pair(t, Config{})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := a.Send(ctx, "never", nil); !errors.Is(err, why) {
		t.Errorf("error %v, want the context's cause", err)
	}
	if err := a.Send(t.Context(), "word", nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Receive(t.Context(), "word", nil); err != nil {
		t.Error(err)
	}
}

// TestNext waits for a message for longer than a step may take, and not for longer than its
// context.
func TestNext(t *testing.T) {
	a, b := pairOf(t, Config{Timeout: 20 * time.Millisecond}, Config{})
	time.AfterFunc(100*time.Millisecond, func() { _ = b.Send(t.Context(), "word", 7) })
	if m, err := a.Next(t.Context()); err != nil || m.Kind != "word" || string(m.Body) != "7" {
		t.Errorf("%s %s, %v", m.Kind, m.Body, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := a.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	b.Close()
	if _, err := a.Next(t.Context()); !errors.Is(err, ErrLeft) {
		t.Errorf("error %v, want ErrLeft", err)
	}
}

// TestDecode checks the error for a malformed body: it repeats little of it.
func TestDecode(t *testing.T) {
	m := Message{Kind: "word", Body: []byte(`{"n":` + strings.Repeat("1", 100000) + `}`)}
	var body struct {
		N int `json:"n"`
	}
	err := m.Decode(&body)
	if !errors.Is(err, ErrProtocol) || len(err.Error()) > 2*maxReason {
		t.Errorf("error %.1000v", err)
	}
}

// The zero Config has the values that its fields document.
func TestDefaults(t *testing.T) {
	for listens, greeting := range map[bool]time.Duration{true: 5 * time.Second, false: 30 * time.Second} {
		got, err := Config{}.withDefaults(listens)
		if err != nil || got.Timeout != 30*time.Second || got.Greeting != greeting ||
			got.MaxMessage != 1<<20 ||
			got.MaxGreetings != 512 || got.MaxWaiting != 512 || got.Retry != 0 {
			t.Errorf("listens %v: %+v, %v", listens, got, err)
		}
	}
}

// A message may be as long as the limit.
func TestLongest(t *testing.T) {
	text := `{"kind":"word"}`
	for limit, want := range map[int]error{len(text): nil, len(text) - 1: ErrProtocol} {
		if _, err := readFrame(strings.NewReader(frame(text)), limit); !errors.Is(err, want) {
			t.Errorf("%d bytes, at most %d: %v", len(text), limit, err)
		}
	}
}

func TestTooLongToSend(t *testing.T) {
	a, _ := pair(t, Config{MaxMessage: 100})
	if err := a.Send(t.Context(), "word", strings.Repeat("x", 100)); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "at most 100") {
		t.Errorf("error %v", err)
	}
}

// Bytes that arrived together with the peer's "detach" were read ahead; they come first.
func TestDetachReturnsWhatWasReadAhead(t *testing.T) {
	a, b := tcptest.Pair(t)
	go func() {
		_, _ = io.WriteString(b, string(greeting(wireVersion, ""))+frame(`{"kind":"detach"}`)+"early")
	}()
	c, err := Start(t.Context(), a, Config{})
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done() // all of one segment has arrived
	nc, err := c.Detach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, wrapped := nc.(*detached); !wrapped {
		t.Errorf("%T has read nothing ahead", nc)
	}
	if _, err := io.WriteString(b, " and late"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("early and late"))
	if _, err := io.ReadFull(nc, got); err != nil || string(got) != "early and late" {
		t.Errorf("%q, %v", got, err)
	}
	if err := nc.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Error(err)
	}
}

// A context of the conversation ends with it, and says why, or with the caller's own.
func TestContext(t *testing.T) {
	a, b := pair(t, Config{})
	ctx, cancel := a.Context(t.Context())
	defer cancel()
	ended, end := a.Context(ctx)
	if ctx.Err() != nil || ended.Err() != nil {
		t.Fatal("it has ended before the conversation")
	}
	end()
	if <-ended.Done(); !errors.Is(context.Cause(ended), context.Canceled) || ctx.Err() != nil {
		t.Errorf("canceled: %v, and the other: %v", context.Cause(ended), ctx.Err())
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if <-ctx.Done(); !errors.Is(context.Cause(ctx), ErrLeft) {
		t.Errorf("the peer has closed: %v", context.Cause(ctx))
	}
	late, cancel := a.Context(t.Context())
	defer cancel()
	if <-late.Done(); !errors.Is(context.Cause(late), ErrLeft) {
		t.Errorf("of a conversation that has ended: %v", context.Cause(late))
	}
}
