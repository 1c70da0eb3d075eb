package rendezvous

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/internal/tcptest"
	"ibverbx/verbs"
)

// overPipe begins a conversation whose peer is the test, which reads and writes the connection.
func overPipe(t *testing.T, cfg Config) (c *Conn, peer net.Conn) {
	t.Helper()
	nc, peer := net.Pipe()
	t.Cleanup(func() { _ = peer.Close() })
	go func() { _, _ = peer.Write(greeting(wireVersion, "")) }()
	go func() { _, _ = io.ReadFull(peer, make([]byte, headLen)) }()
	c, err := Start(t.Context(), nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, peer
}

// A message that comes piece by piece is received however long it takes; one of which nothing more
// comes ends the conversation.
func TestMessageComesSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := overPipe(t, Config{Timeout: time.Second})
		text := frame(`{"kind":"word","body":"slow"}`)
		began := time.Now()
		go func() {
			for i := range text + text[:9] {
				_, _ = io.WriteString(peer, (text + text[:9])[i:i+1])
				time.Sleep(time.Second * 3 / 4)
			}
		}()
		m, err := c.Next(t.Context())
		if took := time.Since(began); err != nil || m.Kind != "word" || took < 20*time.Second {
			t.Errorf("after %v: %q, %v", took, m.Kind, err)
		}
		if got := c.Received(); got != uint64(len(text)) {
			t.Errorf("%d bytes are counted, of %d", got, len(text))
		}
		began = time.Now()
		if m, err = c.Next(t.Context()); !errors.Is(err, ErrTimeout) || time.Since(began) > 8*time.Second {
			t.Errorf("half of a message, after %v: %q, %v", time.Since(began), m.Kind, err)
		}
	})
}

// A Send lasts as long as the peer takes pieces of the message, and no longer.
func TestMessageGoesSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, peer := overPipe(t, Config{Timeout: time.Second})
		long := strings.Repeat("x", 10*pieceLen)
		taken := make(chan struct{})
		go func() {
			defer close(taken)
			got, piece := []byte(nil), make([]byte, pieceLen)
			for want := lengthLen; len(got) < want; time.Sleep(time.Second * 3 / 4) {
				n, err := peer.Read(piece)
				if got = append(got, piece[:n]...); err != nil || n == 0 {
					t.Errorf("%d bytes, %v", n, err)
					return
				}
				want = lengthLen + int(binary.BigEndian.Uint32(got))
			}
			if !bytes.Contains(got, []byte(long)) {
				t.Errorf("%d other bytes came", len(got))
			}
		}()
		began := time.Now()
		if err := c.Send(t.Context(), "long", long); err != nil || time.Since(began) < 5*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		<-taken
		began = time.Now()
		if err := c.Send(t.Context(), "long", long); !errors.Is(err, ErrTimeout) ||
			time.Since(began) > 2*time.Second {
			t.Errorf("nobody reads, after %v: %v", time.Since(began), err)
		}
	})
}

// A frame that is encoded once goes to several peers, each with its own limit.
func TestFrameGoesToMany(t *testing.T) {
	f, err := Encode("word", "the same")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a, b := pair(t, Config{})
		said := ""
		err := errors.Join(a.SendFrame(t.Context(), f), b.Receive(t.Context(), "word", &said))
		if err != nil || said != "the same" {
			t.Errorf("%q, %v", said, err)
		}
	}
	a, _ := pair(t, Config{MaxMessage: 10})
	for f, says := range map[*Frame]string{&f: "at most 10 (Config.MaxMessage)", {}: "must be from Encode"} {
		if err := a.SendFrame(t.Context(), *f); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: does not say %q", err, says)
		}
	}
}

// A step whose context ends, and a listener that is closed, wait for nobody.
func TestHaste(t *testing.T) {
	for name, step := range map[string]func(context.Context, *Conn) error{
		"barrier":  func(ctx context.Context, c *Conn) error { return c.Barrier(ctx) },
		"exchange": func(ctx context.Context, c *Conn) error { _, err := Exchange(ctx, c, 1); return err },
		"long exchange": func(ctx context.Context, c *Conn) error {
			_, err := Exchange(ctx, c, strings.Repeat("x", 10*pieceLen))
			return err
		},
	} {
		for _, reads := range []int64{0, 1 << 30} {
			synctest.Test(t, func(t *testing.T) {
				c, peer := overPipe(t, Config{})
				go func() { _, _ = io.CopyN(io.Discard, peer, reads) }()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				err := step(ctx, c)
				if took := time.Since(began) - time.Second; took > 100*time.Millisecond ||
					!errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s, after %v: %v", name, took, err)
				}
			})
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := serve(&piped{make(chan net.Conn), make(chan struct{})}, Config{MaxGreetings: 8, MaxWaiting: 1,
			Timeout: time.Minute, Greeting: time.Minute})
		for i := range 3 { // one waits for Accept, one is told that there is no room, and one says nothing
			nc, peer := net.Pipe()
			l.nl.(*piped).conns <- nc
			defer peer.Close()
			go func() { _, _ = io.Copy(io.Discard, peer) }()
			if i < 2 {
				go func() { _, _ = peer.Write(greeting(wireVersion, "")) }()
			}
			synctest.Wait()
		}
		began := time.Now()
		if err := l.Close(); err != nil || time.Since(began) > 100*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// A peer that takes no end of TLS holds up neither Close nor Fail.
func TestHasteOverTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS() // which makes a certificate
	cfg := server.TLS
	server.Close()
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(*Conn){
			"Close": func(c *Conn) { _ = c.Close() },
			"Fail":  func(c *Conn) { c.fail(ErrBusy, shortFailTimeout) },
		} {
			nc, other := net.Pipe()
			peer := tls.Server(other, cfg)
			taken := make(chan struct{}) // the last that the peer takes
			go func() {
				_, _ = peer.Write(greeting(wireVersion, ""))
				var goodbye [headLen + lengthLen]byte
				_, _ = io.ReadFull(peer, goodbye[:])
				close(taken)
			}()
			c, err := Start(t.Context(), tls.Client(nc, &tls.Config{InsecureSkipVerify: true}), Config{})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			end(c)
			<-taken
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("%s takes %v", name, took)
			}
			_ = other.Close()
		}
	})
}

// piped is a listener whose connections are pipes.
type piped struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *piped) Accept() (net.Conn, error) {
	select {
	case nc := <-p.conns:
		return nc, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *piped) Close() error   { close(p.closed); return nil }
func (p *piped) Addr() net.Addr { return &net.TCPAddr{} }

// soon is far less than the Timeout of the conversations here.
const soon = 30 * time.Second

// stuck is a conversation in which a Send waits for a peer that does not read. Its error comes
// when it ends.
func stuck(t *testing.T, cfg Config) (c *Conn, sent chan error) {
	t.Helper()
	nc, other := tcptest.Pair(t)
	_, err := other.Write(greeting(wireVersion, ""))
	if err = errors.Join(err, nc.(*net.TCPConn).SetWriteBuffer(4096),
		other.(*net.TCPConn).SetReadBuffer(4096)); err != nil {
		t.Fatal(err)
	}
	c, err = Start(t.Context(), nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	sent = make(chan error, 1)
	var n atomic.Int64
	go func() {
		big := strings.Repeat("x", 1<<19)
		for {
			n.Add(1)
			if err := c.Send(context.Background(), "big", big); err != nil {
				sent <- err
				return
			}
		}
	}()
	untilStill(&n)
	return c, sent
}

// untilStill returns when a count that has begun has not changed for 300 ms, of which this process
// had its share.
func untilStill(n *atomic.Int64) {
	last, still := int64(0), 0
	for still < 15 {
		time.Sleep(20 * time.Millisecond)
		if now := n.Load(); now != last || now == 0 {
			last, still = now, -1
		}
		still++
	}
}

// in fails the test if something takes an hour, which is what the Send there may.
func in(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	start := time.Now()
	go func() { do(); close(done) }()
	select {
	case <-done:
		t.Logf("%s took %v", what, time.Since(start))
	case <-time.After(soon):
		t.Fatalf("%s does not end", what)
	}
}

// Nobody waits behind a Send that is held up: neither Close, nor another Send for longer than its
// context or Config.Timeout, nor Fail for longer than its patience.
func TestStuckSendHoldsUpNobody(t *testing.T) {
	t.Parallel()
	c, sent := stuck(t, Config{Timeout: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	in(t, "another Send", func() {
		if err := c.Send(ctx, "word", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
	waiting := make(chan error, 1)
	go func() { waiting <- c.Send(context.Background(), "word", nil) }()
	in(t, "Close", func() { _ = c.Close() })
	for _, ended := range []chan error{sent, waiting} {
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("Send ends with %v, want ErrClosed", err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}

	c, sent = stuck(t, Config{Timeout: time.Hour})
	in(t, "Fail", func() { c.Fail(errors.New("enough")) })
	if err := <-sent; !errors.Is(err, ErrClosed) {
		t.Errorf("Send ends with %v, want ErrClosed", err)
	}
}

// A Send that waits for its turn has Config.Timeout in all.
func TestTurnsAreBounded(t *testing.T) {
	t.Parallel()
	c, _ := stuck(t, Config{Timeout: time.Second})
	in(t, "another Send", func() {
		if err := c.Send(t.Context(), "word", nil); !errors.Is(err, ErrTimeout) &&
			!errors.Is(err, errCutOff) {
			t.Errorf("error %v", err)
		}
	})
}

// After a message that was cut off nothing more can be sent, which is said at once: the peer has
// not gone.
func TestSendAfterOneThatWasCutOff(t *testing.T) {
	t.Parallel()
	c, sent := stuck(t, Config{Timeout: 2 * time.Second})
	if err := <-sent; !errors.Is(err, ErrTimeout) {
		t.Fatalf("error %v, want ErrTimeout", err)
	}
	fastest := time.Hour
	for range 3 {
		start := time.Now()
		err := c.Send(t.Context(), "word", nil)
		if err == nil || errors.Is(err, ErrGone) ||
			err.Error() != "an earlier message was cut off: nothing more can be sent" {
			t.Errorf("error %v", err)
		}
		fastest = min(fastest, time.Since(start))
	}
	if fastest > time.Second {
		t.Errorf("it took %v", fastest)
	}
}

// A Send that has failed asks for the peer's reason no longer than its context, and not for the two
// seconds that it may otherwise: the fastest of some says it on a busy machine.
func TestReasonIsAwaitedWithinTheContext(t *testing.T) {
	fastest := time.Hour
	for try := 0; try < 4 && fastest > time.Second; try++ {
		fastest = min(fastest, failedSend(t))
	}
	if fastest > time.Second {
		t.Errorf("it took %v", fastest)
	}
}

// failedSend returns how long a Send takes whose peer has gone, with more unread than there is room
// for, and whose context has 100 ms.
func failedSend(t *testing.T) (took time.Duration) {
	t.Helper()
	nc, other := tcptest.Pair(t)
	said := string(greeting(wireVersion, "")) + strings.Repeat(frame(`{"kind":"unread"}`), inboxLen+1)
	if _, err := io.WriteString(other, said); err != nil {
		t.Fatal(err)
	}
	c, err := Start(t.Context(), nc, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other.Close()
	begun := time.Now()
	// A context that ends before the Send has failed says nothing.
	for err == nil || errors.Is(err, context.DeadlineExceeded) && time.Since(begun) < soon {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		err = c.Send(ctx, "word", nil)
		took = time.Since(start)
		cancel()
	}
	if !errors.Is(err, ErrGone) {
		t.Errorf("after %v: %v", took, err)
	}
	return took
}

// interrupting is a connection whose user loses patience when the deadline of the greeting is set.
type interrupting struct {
	net.Conn
	lose func()
}

func (c *interrupting) SetDeadline(d time.Time) error {
	if c.lose != nil && d.After(time.Now()) {
		lose := c.lose
		c.lose = nil
		lose()
		time.Sleep(50 * time.Millisecond) // what comes of that comes first
	}
	return c.Conn.SetDeadline(d)
}

// The end of the context ends the greeting, whenever it comes.
func TestGreetingInterruptedAtItsBeginning(t *testing.T) {
	nc, _ := tcptest.Pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	start := time.Now()
	_, err := Start(ctx, &interrupting{nc, cancel}, Config{Greeting: time.Hour})
	if took := time.Since(start); took > soon || !errors.Is(err, context.Canceled) {
		t.Errorf("after %v: %v", took, err)
	}
}

// What a listener holds is bounded, also by who configures it.
func TestBoundsOfAListener(t *testing.T) {
	for _, n := range []int{-1, 1<<16 + 1, math.MaxInt} {
		for _, cfg := range []Config{{MaxWaiting: n}, {MaxGreetings: n}} {
			if l, err := Listen(t.Context(), "127.0.0.1:0", cfg); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%d: %v, error %v", n, l, err)
			}
		}
	}
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{MaxWaiting: 1 << 16, MaxGreetings: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// An address from which nothing comes in time is a peer that does not answer.
func TestDialTakesTooLong(t *testing.T) {
	_, err := Dial(t.Context(), "127.0.0.1:1", Config{Timeout: 1})
	var op *OpError
	if !errors.Is(err, ErrTimeout) || !errors.As(err, &op) ||
		!strings.HasPrefix(err.Error(), "rendezvous: the peer does not answer: dial tcp 127.0.0.1:1: ") {
		t.Errorf("error %v", err)
	}
}

// However many strangers come and stay, a listener holds no more than MaxGreetings of them, and
// throws them out one after another.
func TestGreetingsAreBounded(t *testing.T) {
	t.Parallel()
	var thrown atomic.Int64
	var who sync.Map // by address
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{MaxGreetings: 8, Timeout: time.Hour,
		Greeting: time.Hour, Refused: func(remote net.Addr, why error) {
			who.Store(remote.String(), true)
			if !errors.Is(why, ErrTimeout) || why.Error() != errEvicted.Error() {
				t.Errorf("refused: %v", why)
			}
			thrown.Add(1)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var first string
	for i := range 40 {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if i == 0 {
			first = nc.LocalAddr().String()
		}
	}
	most := 0
	for start := time.Now(); thrown.Load() < 16 && time.Since(start) < time.Minute; time.Sleep(
		time.Millisecond) {
		l.mu.Lock()
		most = max(most, len(l.greeted))
		l.mu.Unlock()
	}
	if err := l.Close(); err != nil { // before the strangers go by themselves
		t.Error(err)
	}
	if most != 8 || thrown.Load() < 16 {
		t.Errorf("%d at a time, %d thrown out", most, thrown.Load())
	}
	if _, out := who.Load(first); !out {
		t.Error("the first one has stayed")
	}
}

// A listener goes on where too much is open for the moment, and ends where its socket does.
func TestPassingConditions(t *testing.T) {
	for err, passing := range map[error]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.ENOBUFS: true, syscall.ENOMEM: true,
		syscall.ECONNABORTED: true, net.ErrClosed: false, syscall.EINVAL: false,
	} {
		if got := exhausted(&net.OpError{Op: "accept", Err: err}); got != passing {
			t.Errorf("%v: passing %v", err, got)
		}
	}
}

// scripted is a listener whose Accept returns errors, and then that it is closed.
type scripted struct {
	net.Listener
	errs []error
}

func (s *scripted) Accept() (net.Conn, error) {
	if len(s.errs) == 0 {
		return s.Listener.Accept()
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return nil, err
}

// Accept says why no more conversations come, to everybody who asks.
func TestListenerFails(t *testing.T) {
	why := errors.New("the network card is on fire")
	nl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Config{}.withDefaults(true)
	if err != nil {
		t.Fatal(err)
	}
	l := serve(&scripted{nl, []error{syscall.EMFILE, syscall.ECONNABORTED, why}}, cfg)
	for range 2 {
		if _, err := l.Accept(t.Context()); !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v", err)
	}
}

// Of a conversation that nobody has accepted no message is read: what its peer sends stays in the
// kernel.
func TestWaitingConversationsHoldNothing(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := Dial(t.Context(), l.Addr().String(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range inboxLen + 2 {
		if err := c.Send(t.Context(), "word", "x"); err != nil {
			t.Fatal(err)
		}
	}
	var waiting *Conn
	for start := time.Now(); waiting == nil && time.Since(start) < time.Minute; waiting = l.take() {
		time.Sleep(time.Millisecond)
	}
	if n := len(waiting.inbox); n != 0 {
		t.Errorf("%d messages are held", n)
	}
	waiting.run()
	if err := waiting.Receive(t.Context(), "word", nil); err != nil {
		t.Error(err)
	}
	if err := waiting.Close(); err != nil {
		t.Error(err)
	}
}

// A conversation that Accept returns is nobody's who has to make room: who is thrown out at the
// moment at which its conversation begins is not handed out.
func TestEvictedIsNotAccepted(t *testing.T) {
	refused := make(chan error, 1)
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{Refused: func(_ net.Addr, why error) {
		refused <- why
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var a *arrival
	for start := time.Now(); a == nil && time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		if len(l.greeted) == 1 {
			a = l.greeted[0]
			break // and keep the lock
		}
		l.mu.Unlock()
	}
	if a == nil {
		t.Fatal("nobody has come")
	}
	if _, err := nc.Write(greeting(wireVersion, "")); err != nil {
		t.Error(err)
	}
	time.Sleep(100 * time.Millisecond) // the conversation has begun
	l.evict(a)
	l.mu.Unlock()
	if why := <-refused; !errors.Is(why, errEvicted) {
		t.Errorf("refused: %v", why)
	}
	if c := l.take(); c != nil {
		t.Error("a conversation waits whose connection is closed")
	}
}
