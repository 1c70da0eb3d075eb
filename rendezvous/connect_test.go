package rendezvous_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/rendezvous"
	"ibverbx/tagged"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// nics are software NICs, on which nothing may be open when the test ends.
func nics(tb testing.TB, n int) []verbs.Device {
	tb.Helper()
	f, err := soft.New(soft.Config{Devices: n})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil && !tb.Failed() {
			tb.Errorf("something is left open: %v", err)
		}
	})
	devices, err := f.Devices()
	if err != nil {
		tb.Fatal(err)
	}
	return devices
}

// open makes a virtual queue pair, which is closed with the test.
func open(tb testing.TB, devices []verbs.Device, cfg ibverbx.Config) *ibverbx.VirtualQP {
	tb.Helper()
	qp, err := ibverbx.Open(devices, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = qp.Close() })
	return qp
}

// listen listens on the loopback interface until the test ends.
func listen(tb testing.TB, cfg rendezvous.Config) (l *rendezvous.Listener, addr string) {
	tb.Helper()
	l, err := rendezvous.Listen(tb.Context(), "127.0.0.1:0", cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l, l.Addr().String()
}

// met are the two ends of a conversation.
func met(tb testing.TB, cfg rendezvous.Config) (a, b *rendezvous.Conn) {
	tb.Helper()
	l, addr := listen(tb, cfg)
	a, err := rendezvous.Dial(tb.Context(), addr, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = a.Close() })
	b, err = l.Accept(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = b.Close() })
	return a, b
}

// both does something at both ends at the same time.
func both(a, b func() error) (errA, errB error) {
	var all sync.WaitGroup
	all.Go(func() { errA = a() })
	errB = b()
	all.Wait()
	return errA, errB
}

// Two virtual queue pairs are connected over a conversation, tell each other where their memory is,
// and move bytes.
func TestConnectVirtualQPs(t *testing.T) {
	a, b := met(t, rendezvous.Config{})
	devices := nics(t, 2)
	qpA, qpB := open(t, devices[:1], ibverbx.Config{}), open(t, devices[1:], ibverbx.Config{})
	dst, err := qpB.Domain().Register(make([]byte, 64), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	var remote ibverbx.RemoteMR
	errA, errB := both(func() error {
		if err := rendezvous.Connect(t.Context(), a, qpA); err != nil {
			return err
		}
		remote, err = rendezvous.Exchange(t.Context(), a, ibverbx.RemoteMR{})
		return err
	}, func() error {
		if err := rendezvous.Connect(t.Context(), b, qpB); err != nil {
			return err
		}
		_, err := rendezvous.Exchange(t.Context(), b, dst.Remote())
		return err
	})
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	if _, err := qpB.PostRecv(ibverbx.RecvWR{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := qpA.PostSend(ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMAWriteWithImm,
		Flags: verbs.SendSignaled | verbs.SendInline, Inline: []byte("from an address to a connection"),
		Remote: remote.At(0)}); err != nil {
		t.Fatal(err)
	}
	if err := qpB.CQ().Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := string(dst.Bytes()[:31]); got != "from an address to a connection" {
		t.Errorf("got %q", got)
	}
}

// Endpoints of the layers above are connected in the same way.
func TestConnectEndpointsOfLayers(t *testing.T) {
	a, b := met(t, rendezvous.Config{})
	devices := nics(t, 2)
	var of [2]struct {
		worker    *transport.Worker
		endpoint  *transport.Endpoint
		messages  *tagged.Worker
		messaging *tagged.Endpoint
	}
	for i := range of {
		dom, err := ibverbx.NewDomain(devices[i])
		if err != nil {
			t.Fatal(err)
		}
		e := &of[i]
		if e.worker, err = transport.NewWorker(dom, transport.Config{}); err != nil {
			t.Fatal(err)
		}
		if e.endpoint, err = e.worker.NewEndpoint(transport.EndpointConfig{}); err != nil {
			t.Fatal(err)
		}
		if e.messages, err = tagged.NewWorker(dom, tagged.Config{}); err != nil {
			t.Fatal(err)
		}
		if e.messaging, err = e.messages.NewEndpoint(tagged.EndpointConfig{}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := errors.Join(e.worker.Close(), e.messages.Close(), dom.Close()); err != nil {
				t.Error(err)
			}
		}()
	}
	connect := func(c *rendezvous.Conn, end int) func() error {
		return func() error {
			return errors.Join(rendezvous.Connect(t.Context(), c, of[end].endpoint),
				rendezvous.Connect(t.Context(), c, of[end].messaging))
		}
	}
	errA, errB := both(connect(a, 0), connect(b, 1))
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	errA, errB = both(func() error {
		return of[0].messaging.SendWait(t.Context(), 7, []byte("hello"))
	}, func() error {
		buf := make([]byte, 8)
		info, err := of[1].messages.RecvWait(t.Context(), 7, tagged.Exact, buf)
		if string(buf[:info.Length]) != "hello" {
			t.Errorf("received %q", buf[:info.Length])
		}
		return err
	})
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
}

// slow is an endpoint that takes its time to connect.
type slow struct {
	*ibverbx.VirtualQP
	connected chan struct{}
}

func (s slow) Connect(peer ibverbx.BusinessCard) error {
	time.Sleep(50 * time.Millisecond)
	err := s.VirtualQP.Connect(peer)
	close(s.connected)
	return err
}

// Connect returns at neither end before both are connected.
func TestConnectReturnsWhenBothAreConnected(t *testing.T) {
	a, b := met(t, rendezvous.Config{})
	devices := nics(t, 2)
	late := slow{open(t, devices[1:], ibverbx.Config{}), make(chan struct{})}
	errA, errB := both(func() error {
		err := rendezvous.Connect(t.Context(), a, open(t, devices[:1], ibverbx.Config{}))
		select {
		case <-late.connected:
		default:
			t.Error("returned before the peer was connected")
		}
		return err
	}, func() error { return rendezvous.Connect(t.Context(), b, late) })
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
}

// What does not fit is refused at both ends, each of which learns why, and the conversation ends.
func TestConnectRefusesWhatDoesNotFit(t *testing.T) {
	devices := nics(t, 2)
	elsewhere := nics(t, 1)
	dom, err := ibverbx.NewDomain(devices[0])
	if err != nil {
		t.Fatal(err)
	}
	w, err := transport.NewWorker(dom, transport.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(w.Close(), dom.Close()) }()
	ep, err := w.NewEndpoint(transport.EndpointConfig{})
	if err != nil {
		t.Fatal(err)
	}
	qp := func(c *rendezvous.Conn, devices []verbs.Device, cfg ibverbx.Config) func() error {
		return func() error { return rendezvous.Connect(t.Context(), c, open(t, devices, cfg)) }
	}
	for name, tt := range map[string]struct {
		a, b  func(c *rendezvous.Conn) func() error
		texts []string // of each of which one end says one
	}{
		"another scheme": {
			func(c *rendezvous.Conn) func() error { return qp(c, devices[:1], ibverbx.Config{}) },
			func(c *rendezvous.Conn) func() error {
				return qp(c, devices[1:], ibverbx.Config{Scheme: ibverbx.Spray})
			},
			[]string{`the peer uses "spray", this end dqplb: configure both alike`,
				`the peer uses "dqplb", this end spray: configure both alike`},
		},
		"more queue pairs": {
			func(c *rendezvous.Conn) func() error { return qp(c, devices[:1], ibverbx.Config{}) },
			func(c *rendezvous.Conn) func() error {
				return qp(c, devices[1:], ibverbx.Config{QPsPerDevice: 2})
			},
			[]string{"the peer has 2 queue pairs, this end 4: configure both alike",
				"the peer has 4 queue pairs, this end 2: configure both alike"},
		},
		"NICs of another fabric": {
			func(c *rendezvous.Conn) func() error { return qp(c, devices[:1], ibverbx.Config{}) },
			func(c *rendezvous.Conn) func() error { return qp(c, elsewhere, ibverbx.Config{}) },
			[]string{"software NIC"},
		},
		"another layer": {
			func(c *rendezvous.Conn) func() error { return qp(c, devices[:1], ibverbx.Config{}) },
			func(c *rendezvous.Conn) func() error {
				return func() error { return rendezvous.Connect(t.Context(), c, ep) }
			},
			[]string{"the peer shows transport.Card, this end ibverbx.BusinessCard: connect the same on " +
				"both sides", "the peer shows ibverbx.BusinessCard, this end transport.Card"},
		},
		"another step": {
			func(c *rendezvous.Conn) func() error { return qp(c, devices[:1], ibverbx.Config{}) },
			func(c *rendezvous.Conn) func() error { return func() error { return c.Barrier(t.Context()) } },
			[]string{`the two ends are not in step: "barrier" came in place of "card"`,
				`the two ends are not in step: "card" came in place of "barrier"`},
		},
		"a value of another type": {
			func(c *rendezvous.Conn) func() error {
				return func() error { _, err := rendezvous.Exchange(t.Context(), c, 7); return err }
			},
			func(c *rendezvous.Conn) func() error {
				return func() error { _, err := rendezvous.Exchange(t.Context(), c, "seven"); return err }
			},
			[]string{`message "value": json: cannot unmarshal`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := met(t, rendezvous.Config{})
			errA, errB := both(tt.a(a), tt.b(b))
			if errA == nil || errB == nil {
				t.Fatalf("the ends: %v, %v", errA, errB)
			}
			for _, text := range tt.texts {
				if said := errA.Error() + errB.Error(); !strings.Contains(said, text) {
					t.Errorf("no %q in\n%v\n%v", text, errA, errB)
				}
			}
			for _, err := range []error{errA, errB} {
				var op *rendezvous.OpError
				if !errors.As(err, &op) ||
					!strings.HasPrefix(err.Error(), "rendezvous: "+op.Op+" 127.0.0.1:") {
					t.Errorf("error %v", err)
				}
			}
			if err := a.Send(t.Context(), "more", nil); err == nil {
				t.Error("the conversation goes on")
			}
		})
	}
}

// A peer that goes, or falls silent, in the middle of a step ends it in time.
func TestConnectPeerGone(t *testing.T) {
	t.Parallel()
	devices := nics(t, 1)
	for name, tt := range map[string]struct {
		peer func(c *rendezvous.Conn)
		want error
	}{
		"gone": {func(c *rendezvous.Conn) { _ = c.Close() }, rendezvous.ErrLeft},
		"gone with the card": {func(c *rendezvous.Conn) {
			_ = c.Receive(t.Context(), "card", nil)
			_ = c.Close()
		}, rendezvous.ErrLeft},
		"silent": {func(c *rendezvous.Conn) {}, rendezvous.ErrTimeout},
		"says why": {func(c *rendezvous.Conn) { c.Fail(errors.New("out of NICs")) },
			&rendezvous.PeerError{Text: "out of NICs"}},
	} {
		t.Run(name, func(t *testing.T) {
			var cfg rendezvous.Config
			if name == "silent" {
				cfg = rendezvous.Config{Timeout: 300 * time.Millisecond, Greeting: time.Minute}
			}
			a, b := met(t, cfg)
			go tt.peer(b)
			err := rendezvous.Connect(t.Context(), a, open(t, devices, ibverbx.Config{}))
			var said *rendezvous.PeerError
			if !errors.Is(err, tt.want) && (!errors.As(err, &said) || said.Error() != tt.want.Error()) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// A context that ends ends the step, and the peer learns of it.
func TestConnectInterrupted(t *testing.T) {
	a, b := met(t, rendezvous.Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough of it")
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	errA, errB := both(func() error { return a.Barrier(ctx) }, func() error {
		if err := b.Receive(t.Context(), "barrier", nil); err != nil {
			return err
		}
		defer b.Close()
		return b.Receive(t.Context(), "barrier", nil)
	})
	if !errors.Is(errA, why) {
		t.Errorf("error %v, want the context's cause", errA)
	}
	var said *rendezvous.PeerError
	if !errors.As(errB, &said) || said.Text != why.Error() {
		t.Errorf("the peer's error %v", errB)
	}
}

// What cannot be meant is refused, and has no effect.
func TestBadArguments(t *testing.T) {
	var none context.Context
	a, b := met(t, rendezvous.Config{})
	_, listening := rendezvous.Listen(none, "127.0.0.1:0", rendezvous.Config{})
	_, dialing := rendezvous.Dial(none, "127.0.0.1:1", rendezvous.Config{})
	_, receiving := a.ReceiveAny(none)
	_, exchanging := rendezvous.Exchange(t.Context(), nil, 1)
	_, protocol := rendezvous.Dial(t.Context(), "127.0.0.1:1", rendezvous.Config{Protocol: "a\nb"})
	_, negative := rendezvous.Listen(t.Context(), "127.0.0.1:0", rendezvous.Config{Timeout: -1})
	_, longest := rendezvous.Listen(t.Context(), "127.0.0.1:0", rendezvous.Config{MaxMessage: 2 << 30})
	for name, err := range map[string]error{
		"listen": listening, "dial": dialing, "receive": receiving, "exchange": exchanging,
		"protocol": protocol, "negative": negative, "longest": longest,
		"send": a.Send(none, "word", nil), "no kind": a.Send(t.Context(), "", nil),
		"kind error": a.Send(t.Context(), "error", nil),
		"long kind":  a.Send(t.Context(), strings.Repeat("k", 33), nil), "barrier": a.Barrier(none),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
	errA, errB := both(func() error { return a.Barrier(t.Context()) },
		func() error { return b.Barrier(t.Context()) })
	if err := errors.Join(errA, errB); err != nil {
		t.Errorf("the conversation has ended: %v", err)
	}
}

// Values of any kind are exchanged in the order of the calls, over the same conversation.
func TestExchange(t *testing.T) {
	type hello struct {
		Name  string
		Ranks []int
	}
	a, b := met(t, rendezvous.Config{})
	end := func(c *rendezvous.Conn, mine, want hello) func() error {
		return func() error {
			for range 3 {
				theirs, err := rendezvous.Exchange(t.Context(), c, mine)
				if err != nil {
					return err
				}
				if fmt.Sprint(theirs) != fmt.Sprint(want) {
					return fmt.Errorf("got %v, want %v", theirs, want)
				}
				text, err := rendezvous.Exchange(t.Context(), c, []byte(mine.Name))
				if err != nil || string(text) != want.Name {
					return fmt.Errorf("got %q, %w", text, err)
				}
				if nothing, err := rendezvous.Exchange[*int](t.Context(), c, nil); err != nil ||
					nothing != nil {
					return fmt.Errorf("got %v, %w", nothing, err)
				}
			}
			return nil
		}
	}
	left, right := hello{"left", []int{1, 2}}, hello{"right", nil}
	if errA, errB := both(end(a, left, right), end(b, right, left)); errA != nil || errB != nil {
		t.Error(errA, errB)
	}
}

// What this end finds wrong with a message is told to the peer that has sent it, which would take
// it for dead otherwise.
func TestFaultsOfAMessageAreTold(t *testing.T) {
	l, addr := listen(t, rendezvous.Config{MaxMessage: 2000})
	heard := make(chan error, 1)
	go func() {
		c, err := rendezvous.Dial(t.Context(), addr, rendezvous.Config{})
		if err == nil {
			_, err = rendezvous.Exchange(t.Context(), c, strings.Repeat("x", 1<<19))
		}
		if err == nil {
			err = c.Barrier(t.Context()) // the other end's value was sound
		}
		heard <- err
	}()
	c, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const want = "a message of 524314 bytes: at most 2000 (Config.MaxMessage)"
	_, err = rendezvous.Exchange(t.Context(), c, "short")
	if !errors.Is(err, rendezvous.ErrProtocol) || !strings.Contains(err.Error(), want) {
		t.Errorf("the receiver says %v", err)
	}
	var told *rendezvous.PeerError
	if err := <-heard; !errors.As(err, &told) || !strings.Contains(told.Text, want) {
		t.Errorf("the sender hears %v", err)
	}
}

// An endpoint that is nil is refused, and the peer does not wait for it.
func TestNilEndpoint(t *testing.T) {
	for name, connect := range map[string]func(context.Context, *rendezvous.Conn) error{
		"nil": func(ctx context.Context, c *rendezvous.Conn) error {
			return rendezvous.Connect[int](ctx, c, nil)
		},
		"nil pointer": func(ctx context.Context, c *rendezvous.Conn) error {
			return rendezvous.Connect(ctx, c, (*ibverbx.VirtualQP)(nil))
		},
		"no reason": func(_ context.Context, c *rendezvous.Conn) error {
			c.Fail(nil)
			return verbs.ErrInvalid
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, addr := listen(t, rendezvous.Config{})
			heard := make(chan error, 1)
			go func() {
				c, err := rendezvous.Dial(t.Context(), addr, rendezvous.Config{})
				if err == nil {
					err = c.Barrier(t.Context())
				}
				heard <- err
			}()
			c, err := l.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := connect(t.Context(), c); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("error %v", err)
			}
			var told *rendezvous.PeerError
			if err := <-heard; !errors.As(err, &told) {
				t.Errorf("the peer hears %v", err)
			}
		})
	}
}
