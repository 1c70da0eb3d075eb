package rendezvous

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
