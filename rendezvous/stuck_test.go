package rendezvous

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/internal/tcptest"
	"ibverbx/verbs"
)

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
