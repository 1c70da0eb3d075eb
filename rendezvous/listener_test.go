package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/tcptest"
	"ibverbx/rendezvous"
)

// strangers are what comes to a port: each of some connections behaves in one way, and stays until
// the test has ended if it is not thrown out. It returns when half of them have come.
func strangers(t *testing.T, addr string, n int) {
	t.Helper()
	manners := []string{
		"", // silent
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", // TLS
		"\x89ibverbx\x00\x00\x00\x09",                  // half a greeting
		"\x89ibverbx\x00\x00\x00\x0a\x00",              // of another version
		"\x89ibverbx\x00\x00\x00\x09\x03own",           // of another protocol
	}
	var all sync.WaitGroup
	var next atomic.Int64
	half := make(chan struct{})
	for range 16 {
		all.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if i == int64(n)/2 {
					close(half)
				}
				nc, err := net.Dial("tcp", addr)
				if err != nil {
					continue
				}
				t.Cleanup(func() { _ = nc.Close() })
				switch kind := int(i) % (len(manners) + 2); kind {
				case len(manners): // noise without end
					noise := make([]byte, 4<<10)
					for at := range noise {
						noise[at] = byte(rand.Int())
					}
					_, _ = nc.Write(noise)
				case len(manners) + 1: // gone at once
					_ = nc.Close()
				default:
					_, _ = io.WriteString(nc, manners[kind])
				}
			}
		})
	}
	t.Cleanup(all.Wait)
	<-half
}

// dialAgain dials and does something with the conversation, again for as long as its connection is
// dropped before that has begun: beside a crowd a client that does not run for a second makes room.
func dialAgain(t *testing.T, addr string, cfg rendezvous.Config, use func(*rendezvous.Conn) error) {
	for {
		c, err := rendezvous.Dial(t.Context(), addr, cfg)
		if err == nil {
			err = use(c)
		}
		if errors.Is(err, rendezvous.ErrGone) {
			continue
		}
		if err != nil {
			t.Error("the dialling end:", err)
		}
		return
	}
}

// 250 processes connect to one listener at the same time, beside 1,000 strangers who stay: each is
// connected, in seconds, and what the strangers cost is bounded.
func TestManyConnectAtOnceBesideStrangers(t *testing.T) {
	const clients = 250
	var refused atomic.Int64
	cfg := rendezvous.Config{Protocol: "many", Timeout: 60 * time.Second, Greeting: 60 * time.Second,
		Refused: func(net.Addr, error) { refused.Add(1) }}
	l, addr := listen(t, cfg)
	devices := nics(t, 2)
	qps := ibverbx.Config{QPsPerDevice: 1, MaxMsgCntPerQP: 4, Conn: ibverbx.ConnConfig{GIDIndex: -1}}

	var serving, coming sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	most := 0
	serving.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			most = max(most, runtime.NumGoroutine())
			serving.Go(func() {
				defer c.Close()
				qp, err := ibverbx.Open(devices[:1], qps)
				if err != nil {
					t.Error(err)
					return
				}
				defer qp.Close()
				if err := rendezvous.Connect(t.Context(), c, qp); err != nil {
					t.Errorf("the listening end: %v", err)
				}
				_, _ = c.ReceiveAny(t.Context(), "bye")
			})
		}
	})
	strangers(t, addr, 1000)
	start := time.Now()
	for range clients {
		coming.Go(func() {
			dialAgain(t, addr, cfg, func(c *rendezvous.Conn) error {
				defer c.Close()
				qp, err := ibverbx.Open(devices[1:], qps)
				if err != nil {
					return err
				}
				defer qp.Close()
				if err := rendezvous.Connect(t.Context(), c, qp); err != nil {
					return err
				}
				return c.Send(t.Context(), "bye", nil)
			})
		})
	}
	coming.Wait()
	took := time.Since(start)
	stop()
	serving.Wait()
	if most > 3000 {
		t.Errorf("%d goroutines", most)
	}
	if refused.Load() == 0 {
		t.Error("no stranger was refused")
	}
	t.Logf("%d connected in %v beside %d strangers refused by then; %d goroutines at most", clients, took,
		refused.Load(), most)
}

// refuse has a listener greet a stranger that says something, and returns why that was refused. One
// that is to be refused for its silence has 200 ms.
func refuse(t *testing.T, says string, want error, cfg rendezvous.Config) (*rendezvous.Listener, error) {
	t.Helper()
	why := make(chan error, 1)
	cfg.Greeting = time.Minute
	if errors.Is(want, rendezvous.ErrTimeout) {
		cfg.Greeting = 200 * time.Millisecond
	}
	cfg.Refused = func(_ net.Addr, err error) {
		select {
		case why <- err:
		default: // somebody who came after the first
		}
	}
	l, addr := listen(t, cfg)
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := io.WriteString(nc, says); err != nil {
		t.Fatal(err)
	}
	return l, <-why
}

// A listener says why a connection brought no conversation, and goes on.
func TestListenerSaysWhyItRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		says string
		want error
		text string
	}{
		"HTTP": {"GET / HTTP/1.1\r\n\r\n", rendezvous.ErrProtocol,
			`the peer does not speak ibverbx: it began with "GET / HTTP/1."`},
		"perftest": {"6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", rendezvous.ErrProtocol,
			`as a tool of perftest does, or "ibverbx perftest": run the same program at both ends`},
		"TLS": {"\x16\x03\x01\x02\x00", rendezvous.ErrTLS, "the peer begins with TLS, and this end has none"},
		"another version": {"\x89ibverbx\x00\x00\x00\x0a\x00", rendezvous.ErrVersion,
			"the peer speaks version 10, this end version 9: use the same ibverbx on both sides"},
		"another protocol": {"\x89ibverbx\x00\x00\x00\x09\x06shop/2", rendezvous.ErrVersion,
			`the peer is here for protocol "shop/2", this end for "shop/3": run the same program, in the ` +
				`same version, on both sides`},
		"silence": {"", rendezvous.ErrTimeout, "the peer does not answer: waited 200ms for its greeting"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := refuse(t, tt.says, tt.want, rendezvous.Config{Protocol: "shop/3"})
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v, want %v with %q", err, tt.want, tt.text)
			}
			goesOn(t, l)
		})
	}
}

// goesOn checks that a listener for shop/3 still takes conversations. Where it gives a greeting
// little time, a busy machine may need several attempts.
func goesOn(t *testing.T, l *rendezvous.Listener) {
	t.Helper()
	var err error
	for range 10 {
		var c, d *rendezvous.Conn
		c, err = rendezvous.Dial(t.Context(), l.Addr().String(), rendezvous.Config{Protocol: "shop/3"})
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		d, err = l.Accept(ctx)
		cancel()
		_ = c.Close()
		if err == nil {
			_ = d.Close()
			return
		}
	}
	t.Error(err)
}

// Who dials learns what is at the other end.
func TestDialSaysWhatIsThere(t *testing.T) {
	answer := func(text string) string {
		nl, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nl.Close() })
		go func() {
			for {
				nc, err := nl.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(nc, text)
				t.Cleanup(func() { _ = nc.Close() })
			}
		}()
		return nl.Addr().String()
	}
	closed := tcptest.FreeAddr(t).String()
	for name, tt := range map[string]struct {
		addr string
		want error
		text string
	}{
		"an HTTP server": {answer("HTTP/1.1 400 Bad Request\r\n\r\n"), rendezvous.ErrProtocol,
			`: protocol error: the peer does not speak ibverbx: it began with "HTTP/1.1 400 "`},
		"SSH": {answer("SSH-2.0-OpenSSH_9.2p1\r\n"), rendezvous.ErrProtocol, `it began with "SSH-2.0-OpenS"`},
		"silence": {answer(""), rendezvous.ErrTimeout,
			": the peer does not answer: waited 200ms for its greeting"},
		"a closed port": {closed, syscall.ECONNREFUSED, "rendezvous: dial tcp " +
			closed + ": connect: connection refused: nobody listens there: start the " +
			"listening end first, or set Config.Retry"},
		"no such host": {"no.such.host.invalid:1", nil, "rendezvous: dial tcp: lookup no.such.host.invalid"},
		"no port": {"127.0.0.1", nil,
			"rendezvous: dial tcp: address 127.0.0.1: missing port in address"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := rendezvous.Config{Protocol: "shop/3"}
			if name == "silence" {
				cfg.Greeting = 200 * time.Millisecond
			}
			_, err := rendezvous.Dial(t.Context(), tt.addr, cfg)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) ||
				!strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

// Processes may start in any order: with Retry who dials waits for the listener.
func TestDialRetries(t *testing.T) {
	addr := tcptest.FreeAddr(t).String()
	if _, err := rendezvous.Dial(t.Context(), addr,
		rendezvous.Config{Retry: 100 * time.Millisecond}); err == nil ||
		!strings.Contains(err.Error(), "nobody has listened there for 100ms") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dialed := make(chan error, 1)
	go func() {
		c, err := rendezvous.Dial(ctx, addr, rendezvous.Config{Retry: time.Minute})
		if err == nil {
			err = c.Close()
		}
		dialed <- err
	}()
	time.Sleep(100 * time.Millisecond) // it has been refused by then
	l, err := rendezvous.Listen(ctx, addr, rendezvous.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := <-dialed; err != nil {
		t.Error(err)
	}
}

// Who is slow at the greeting keeps nobody out: it has its time, and where all places are taken it
// makes room sooner.
func TestSlowGreetingsMakeRoom(t *testing.T) {
	t.Parallel()
	l, addr := listen(t, rendezvous.Config{MaxGreetings: 4, Greeting: time.Hour, Timeout: time.Hour})
	for range 12 { // one byte each, and then nothing
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Write([]byte{0x89}); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	c, err := rendezvous.Dial(t.Context(), addr, rendezvous.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if took := time.Since(start); took > 40*time.Second {
		t.Errorf("it took %v", took)
	}
}

// Conversations that nobody accepts are bounded: one more is told so.
func TestTooManyWait(t *testing.T) {
	l, addr := listen(t, rendezvous.Config{MaxWaiting: 2})
	var conns []*rendezvous.Conn
	refused := make(chan error, 3)
	for range 3 {
		c, err := rendezvous.Dial(t.Context(), addr, rendezvous.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	for _, c := range conns {
		go func() { <-c.Done(); refused <- c.Err(); _ = c.Close() }()
	}
	var said *rendezvous.PeerError
	if err := <-refused; !errors.As(err, &said) ||
		!errors.Is(said, rendezvous.ErrBusy) ||
		said.Text != "busy, try again later: 2 conversations wait for the listening end already" {
		t.Errorf("error %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-refused; !errors.As(err, &said) ||
			said.Text != "the listening end has stopped listening" {
			t.Errorf("error %v", err)
		}
	}
	_, err := l.Accept(t.Context())
	if want := fmt.Sprintf("rendezvous: accept %s: conversation closed", addr); !errors.Is(err,
		rendezvous.ErrClosed) || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if err := l.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// A conversation that ends without a word before it is accepted is dropped, and its place free; one
// whose peer has said something is handed out with that.
func TestGoneBeforeAccept(t *testing.T) {
	refused := make(chan error, 4)
	l, addr := listen(t, rendezvous.Config{MaxWaiting: 2, Refused: func(_ net.Addr, why error) {
		refused <- why
	}})
	begin := func() *rendezvous.Conn {
		c, err := rendezvous.Dial(t.Context(), addr, rendezvous.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	spoke := begin()
	if err := spoke.Send(t.Context(), "word", "farewell"); err != nil {
		t.Error(err)
	}
	_ = spoke.Close()
	for range 3 { // in the place that is left
		_ = begin().Close()
		select {
		case why := <-refused:
			if !errors.Is(why, rendezvous.ErrLeft) || !strings.Contains(why.Error(), "before it was acc") {
				t.Errorf("refused: %v", why)
			}
		case <-time.After(time.Minute):
			t.Fatal("it keeps its place")
		}
	}
	stays := begin()
	defer stays.Close()
	if err := stays.Send(t.Context(), "word", "here"); err != nil {
		t.Error(err)
	}
	var words []string // the order of those that wait is not promised
	for range 2 {
		c, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		var got string
		if err := c.Receive(t.Context(), "word", &got); err != nil {
			t.Error(err)
		}
		words = append(words, got)
	}
	if slices.Sort(words); !slices.Equal(words, []string{"farewell", "here"}) {
		t.Errorf("got %q", words)
	}
}

// Accept waits no longer than its context; Close ends the wait too.
func TestAcceptEnds(t *testing.T) {
	l, _ := listen(t, rendezvous.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = l.Close() })
	if _, err := l.Accept(t.Context()); !errors.Is(err, rendezvous.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

// A conversation needs no TCP: both ends of any connection can start one, even of one that takes
// nothing before the peer reads.
func TestStartOverAPipe(t *testing.T) {
	left, right := net.Pipe()
	errA, errB := both(func() error {
		c, err := rendezvous.Start(t.Context(), left, rendezvous.Config{})
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Barrier(t.Context())
	}, func() error {
		c, err := rendezvous.Start(t.Context(), right, rendezvous.Config{})
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Barrier(t.Context())
	})
	if errA != nil || errB != nil {
		t.Error(errA, errB)
	}
	a, b := tcptest.Pair(t)
	_, errA = rendezvous.Start(t.Context(), a, rendezvous.Config{Timeout: -1})
	if _, err := b.Read(make([]byte, 1)); errA == nil || err == nil {
		t.Errorf("a conversation that cannot be: %v, and its connection: %v", errA, err)
	}
}
