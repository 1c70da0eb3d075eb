package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"ibverbx/nics"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// eachProvider runs a test of a pair over every provider.
func eachProvider(t *testing.T, test func(t *testing.T, a, b *Conn)) {
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			a, b := pair(t, over(t, provider))
			test(t, a, b)
		})
	}
}

// A stream has the semantics of a net.Conn, whatever carries it.
func TestConn(t *testing.T) {
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			cfg := over(t, provider)
			l := listen(t, cfg)
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b := dial(t, l, cfg)
				return a, b, func() { _ = a.Close(); _ = b.Close() }, nil
			})
		})
	}
}

// Writes of any size arrive whole and in order, in both directions at once.
func TestBytesArrive(t *testing.T) {
	eachProvider(t, func(t *testing.T, a, b *Conn) {
		var both sync.WaitGroup
		for _, ends := range [][2]*Conn{{a, b}, {b, a}} {
			data := make([]byte, 2<<20)
			for i := range data {
				data[i] = byte(rand.Uint32())
			}
			both.Go(func() {
				for rest := data; len(rest) != 0; {
					n := min(len(rest), []int{1, 100, 117, 4000, 8180, 8192, 100_000, 500_000}[rand.IntN(8)])
					if _, err := ends[0].Write(rest[:n]); err != nil {
						t.Error(err)
						return
					}
					rest = rest[n:]
				}
				if err := ends[0].CloseWrite(); err != nil {
					t.Error(err)
				}
			})
			both.Go(func() {
				got, err := io.ReadAll(ends[1])
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes of %d: %v", len(got), len(data), err)
				}
			})
		}
		both.Wait()
	})
}

// A file goes from registered memory to the writer at the other end; so does what a limit leaves.
func TestFileIsCopied(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	eachProvider(t, func(t *testing.T, a, b *Conn) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		sent := make(chan error, 1)
		go func() {
			n, err := io.Copy(a, io.LimitReader(f, 300_000))
			m, err2 := io.Copy(a, f)
			k, err3 := io.Copy(a, bytes.NewReader(data[:5]))
			if n+m+k != int64(len(data))+5 {
				t.Errorf("%d, %d and %d bytes", n, m, k)
			}
			sent <- errors.Join(err, err2, err3, a.Close())
		}()
		var got bytes.Buffer
		if n, err := io.Copy(&got, b); err != nil || n != int64(len(data))+5 {
			t.Errorf("%d bytes, %v", n, err)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if want := append(data[:len(data):len(data)], data[:5]...); !bytes.Equal(got.Bytes(), want) {
			t.Error("the bytes differ")
		}
	})
}

// What was written before Close arrives, and then io.EOF; the calls of a closed end say so.
func TestCloseDelivers(t *testing.T) {
	eachProvider(t, func(t *testing.T, a, b *Conn) {
		data := bytes.Repeat([]byte{7}, 200_000)
		wrote := make(chan error, 1)
		go func() {
			_, err := a.Write(data)
			wrote <- errors.Join(err, a.Close())
		}()
		got, err := io.ReadAll(b)
		if err := errors.Join(err, <-wrote); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		_, read := a.Read(make([]byte, 1))
		_, write := a.Write([]byte{1})
		for call, err := range map[string]error{"read": read, "write": write, "close": a.Close(),
			"close write": a.CloseWrite(), "deadline": a.SetDeadline(time.Time{}), "linger": a.SetLinger(0)} {
			var op *net.OpError
			if !errors.Is(err, net.ErrClosed) || !errors.As(err, &op) {
				t.Errorf("%s: %v", call, err)
			}
		}
	})
}

// After CloseWrite nothing more is written, and reading goes on.
func TestCloseWrite(t *testing.T) {
	a, b := pair(t, over(t, nics.Soft))
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte{1}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write: %v", err)
	}
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read: %v", err)
	}
	mustWrite(t, b, []byte("still"))
	if got := mustRead(t, a, 5); string(got) != "still" {
		t.Errorf("%q", got)
	}
}

// An end that closes with unread data, lingers for no time, or gets data later resets the peer's.
func TestReset(t *testing.T) {
	eachProvider(t, func(t *testing.T, a, b *Conn) {
		mustWrite(t, a, []byte("unread"))
		mustRead(t, b, 1)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
		if _, err := a.Write([]byte("more")); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: %v", err)
		}
	})
	t.Run("linger", func(t *testing.T) {
		a, b := pair(t, over(t, nics.Soft))
		if err := errors.Join(a.SetLinger(0), a.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read: %v", err)
		}
	})
	t.Run("late", func(t *testing.T) {
		a, b := pair(t, over(t, nics.Soft))
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("read: %v", err)
		}
		var err error
		for err == nil {
			_, err = b.Write(make([]byte, 100))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: %v", err)
		}
	})
}

// A deadline in the middle of a long Write ends it, says how much was handed over, and changes
// nothing for what follows. A reader that does not read holds up its own writer only.
func TestSlowReader(t *testing.T) {
	eachProvider(t, func(t *testing.T, a, b *Conn) {
		data := bytes.Repeat([]byte("slow"), 4<<20)
		if err := a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := a.Write(data)
		var timeout net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() ||
			n > (lastChunks+1)*chunkBytes+lastWindow {
			t.Fatalf("%d bytes, %v", n, err)
		}
		x, err := a.link.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = x.Close() }()
		c, err := b.link.lis.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		go func() { _, _ = x.Write(data[:3<<20]) }()
		mustRead(t, c, 3<<20)

		if err := a.SetWriteDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = a.Write([]byte("end"))
			_ = a.Close()
		}()
		got, err := io.ReadAll(b)
		if want := string(data[:n]) + "end"; err != nil || string(got) != want {
			t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
		}
	})
}

// All streams to one address share one endpoint; names of what carries them and addresses are
// there.
func TestStreamsShareALink(t *testing.T) {
	cfg := over(t, nics.Soft)
	l := listen(t, cfg)
	before := Counts().RDMA
	var ends []*Conn
	for range 100 {
		a, b := dial(t, l, cfg)
		mustWrite(t, a, []byte("hello"))
		mustRead(t, b, 5)
		ends = append(ends, a, b)
	}
	if n := ends[0].link.carrier.w.Stats().Endpoints; n != 2 {
		t.Errorf("%d endpoints for two ends", n)
	}
	if got := Counts().RDMA - before; got != 200 {
		t.Errorf("%d ends of streams are counted", got)
	}
	carrier := ends[0].Carrier()
	if carrier.Kind != "rdma" || len(carrier.NICs) == 0 || carrier.Reason != "" {
		t.Errorf("%+v", carrier)
	}
	if host, _, err := net.SplitHostPort(ends[0].RemoteAddr().String()); err != nil || host != "127.0.0.1" ||
		ends[0].RemoteAddr().String() != l.Addr().String() ||
		ends[0].LocalAddr().String() != ends[1].RemoteAddr().String() {
		t.Errorf("%v to %v, %v", ends[0].LocalAddr(), ends[0].RemoteAddr(), err)
	}
}

// When a link fails, its streams end with the reason, and the next Dial makes another link.
func TestLinkFails(t *testing.T) {
	cfg := over(t, nics.Soft)
	l := listen(t, cfg)
	a, b := dial(t, l, cfg)
	broken := errors.New("broken on purpose")
	a.link.fail(broken)
	for _, c := range []*Conn{a, b} {
		_, err := c.Read(make([]byte, 1))
		var op *net.OpError
		if !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) {
			t.Errorf("%v", err)
		}
		if _, err = c.Write([]byte{1}); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v", err)
		}
	}
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, broken) {
		t.Errorf("the reason is missing: %v", err)
	}
	x, y := dial(t, l, cfg)
	mustWrite(t, x, []byte("again"))
	mustRead(t, y, 5)
}

// A program that closes a stream whose link has failed at its end only does not end it: the peer,
// which is told later, must not take what has arrived for all.
func TestCloseBehindAFailedLink(t *testing.T) {
	a, b := pair(t, over(t, nics.Soft))
	mustWrite(t, a, make([]byte, 100))
	a.link.fail(errors.New("the link has failed"))
	if _, err := a.Write(make([]byte, 100)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(b); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d bytes, then %v", len(got), err)
	}
}

// A Read that is copying while its own end is closed does not take what it has for all, although
// the peer's end has arrived.
func TestReadBesideClose(t *testing.T) {
	cfg := over(t, nics.Soft)
	l := listen(t, cfg)
	const size = 2 * chunkBytes
	for i := range 300 {
		a, b := dial(t, l, cfg)
		mustWrite(t, a, make([]byte, size))
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		until(t, "the end arrives", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.in.fin
		})
		read, begun := make(chan error, 1), make(chan struct{})
		go func() {
			close(begun)
			got, err := io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{b})
			if err == nil && got != size {
				err = fmt.Errorf("io.EOF behind %d of %d bytes", got, size)
			} else {
				err = nil
			}
			read <- err
		}()
		<-begun
		for begin := time.Now(); time.Since(begin) < time.Duration(i%60)*time.Microsecond/2; {
		}
		_ = b.Close() // it is open
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		_ = a.Close() // as above
	}
}

// A stream over two NICs survives the loss of one: every byte arrives, and the link goes on.
func TestRailIsLost(t *testing.T) {
	host := newHost(t, nics.Config{Provider: nics.Soft, Soft: soft.Config{Devices: 2}})
	a, b := pair(t, Config{Host: host})
	if names := a.Carrier().NICs; len(names) != 2 {
		t.Fatalf("carried by %v", names)
	}
	data := bytes.Repeat([]byte("over two rails, and then over one"), 200_000)
	sent := make(chan error, 1)
	go func() {
		_, err := a.Write(data)
		sent <- errors.Join(err, a.CloseWrite())
	}()
	got := mustRead(t, b, len(data)/3)
	host.Provider().(*soft.Fabric).Device(0).SetLink(false)
	rest, err := io.ReadAll(b)
	if err := errors.Join(err, <-sent); err != nil || !bytes.Equal(append(got, rest...), data) {
		t.Errorf("%d of %d bytes: %v", len(got)+len(rest), len(data), err)
	}
	if lost := a.link.carrier.w.Stats().RailsLost; lost == 0 {
		t.Error("no rail was lost")
	}
	mustWrite(t, b, []byte("goes on"))
	mustRead(t, a, 7)
}

// Streams to another process carry bytes, and end at once with a reset when it is killed.
func TestPeerIsKilled(t *testing.T) {
	for _, provider := range []string{nics.Shm, nics.RoCE} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			addr, process := echoing(t, provider)
			cfg := over(t, provider)
			var all []*Conn
			for range 3 {
				c, err := Dial(t.Context(), addr, cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				all = append(all, c)
				data := make([]byte, 300_000)
				for i := range data {
					data[i] = byte(i * 7)
				}
				sent := make(chan error, 1)
				go func() {
					_, err := c.Write(data)
					sent <- err
				}()
				if got := mustRead(t, c, len(data)); !bytes.Equal(got, data) {
					t.Error("the echo differs")
				}
				if err := <-sent; err != nil {
					t.Error(err)
				}
			}
			noError(t, process.Kill())
			began := time.Now()
			for _, c := range all {
				if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("%v", err)
				}
			}
			if took := time.Since(began); took > patience {
				t.Errorf("noticed after %v", took)
			}
		})
	}
}

// Refusals: nobody listens, the backlog is full, the memory is promised, the listener is closed.
func TestRefusals(t *testing.T) {
	cfg := over(t, nics.Soft)
	cfg.Backlog, cfg.Memory = 1, leastMemory
	l := listen(t, cfg)
	first, err := Dial(t.Context(), l.Addr().String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if _, err = Dial(t.Context(), l.Addr().String(), cfg); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("beyond the backlog: %v", err)
	}
	second, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	var held []*Conn
	for {
		a, err := Dial(t.Context(), l.Addr().String(), cfg)
		if err != nil {
			if !errors.Is(err, syscall.ENOBUFS) {
				t.Errorf("beyond the memory: %v", err)
			}
			break
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, a, b.(*Conn))
	}
	if len(held) == 0 || int64(len(held)) > leastMemory/firstWindow {
		t.Errorf("%d ends of streams in %d bytes", len(held), leastMemory)
	}
	if used := first.link.carrier.hub.memory.used; used > leastMemory {
		t.Errorf("%d bytes are promised", used)
	}
	for _, c := range held {
		_ = c.Close()
	}
}

// A closed listener accepts nothing, resets what was not accepted, and leaves what was.
func TestListenerCloses(t *testing.T) {
	cfg := over(t, nics.Soft)
	l := listen(t, cfg)
	a, b := dial(t, l, cfg)
	waiting, err := Dial(t.Context(), l.Addr().String(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = waiting.Close() }()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("close: %v", err)
	}
	if _, err := waiting.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a stream that waited: %v", err)
	}
	if _, err = Dial(t.Context(), l.Addr().String(), cfg); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v", err)
	}
	mustWrite(t, a, []byte("goes on"))
	mustRead(t, b, 7)
}

// Contexts end Dial; configurations that nothing could meet are refused.
func TestBadArguments(t *testing.T) {
	cfg := over(t, nics.Soft)
	l := listen(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Dial(ctx, l.Addr().String(), cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for field, bad := range map[string]Config{"Memory": {Memory: 1}, "Backlog": {Backlog: -1},
		"Proof": {Proof: -1}, "Spin": {Spin: -7}} {
		if _, err := Dial(t.Context(), l.Addr().String(), bad); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := Listen(t.Context(), "127.0.0.1:0", bad); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", field, err)
		}
	}
	//lint:ignore SA1012 the refusal is the test
	if _, err := Dial(nil, l.Addr().String(), cfg); !errors.Is(err, verbs.ErrInvalid) { //nolint:staticcheck
		t.Errorf("%v", err)
	}
}
