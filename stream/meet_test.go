package stream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// strangers are the configurations of two ends that no NIC joins: each has software NICs of its
// own.
func strangers(tb testing.TB, fallback bool) (here, there Config) {
	here, there = over(tb, nics.Soft), over(tb, nics.Soft)
	here.Fallback, there.Fallback = fallback, fallback
	return here, there
}

// Where no NIC joins two ends, TCP carries the streams if both allow it. Carrier, the counters and
// one line in the log say so.
func TestTCPInstead(t *testing.T) {
	here, there := strangers(t, true)
	var text lines
	here.Logger = slog.New(slog.NewTextHandler(&text, nil))
	l := listen(t, there)
	before := Counts().TCP
	for range 3 {
		a, err := Dial(t.Context(), l.Addr().String(), here)
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*Conn{a, b.(*Conn)} {
			if got := c.Carrier(); got.Kind != "tcp" || got.Reason == "" || got.NICs != nil {
				t.Errorf("%+v", got)
			}
		}
		mustWrite(t, a, []byte("hello"))
		if err := errors.Join(a.SetLinger(5), a.CloseWrite(), b.(*Conn).SetLinger(5)); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(b); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
		_, _ = a.Close(), b.Close()
	}
	if n := Counts().TCP - before; n != 6 {
		t.Errorf("%d ends are counted", n)
	}
	if n := strings.Count(text.String(), "TCP carries the streams"); n != 1 {
		t.Errorf("%d lines:\n%s", n, text.String())
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Streams over TCP have the semantics of a net.Conn, too.
func TestTCPConn(t *testing.T) {
	here, there := strangers(t, true)
	l := listen(t, there)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := dial(t, l, here)
		return a, b, func() { _ = a.Close(); _ = b.Close() }, nil
	})
}

// A queue pair that comes up and carries no word is not usable: TCP takes its place after
// Config.Proof, if both allow it, and otherwise Dial says what happened.
func TestProof(t *testing.T) {
	cfg := over(t, nics.Soft)
	cfg.Host.Provider().(*soft.Fabric).Device(0).SetLink(false)
	cfg.Proof = 50 * time.Millisecond
	var text lines
	listening := cfg
	listening.Logger = slog.New(slog.NewTextHandler(&text, nil))
	alone := listen(t, listening)
	for range 2 {
		cfg.Fallback = !cfg.Fallback // that it is allowed here alone changes nothing
		_, err := Dial(t.Context(), alone.Addr().String(), cfg)
		if !errors.Is(err, ErrNoRDMA) || strings.Count(err.Error(), "carried no word") != 1 {
			t.Fatalf("over a NIC whose cable is pulled: %v", err)
		}
	}
	until(t, "the listener says so, once", func() bool {
		return strings.Count(text.String(), "no stream link") == 1
	})
	cfg.Fallback = true
	a, b := dial(t, listen(t, cfg), cfg)
	mustWrite(t, a, []byte("hello"))
	mustRead(t, b, 5)
	if got := a.Carrier(); got.Kind != "tcp" || got.Reason == "" {
		t.Errorf("%+v", got)
	}
}

// TCP is never taken where an end does not allow it, and the error says why there is no RDMA.
func TestTCPIsNotAllowed(t *testing.T) {
	here, there := strangers(t, true)
	there.Fallback = false
	l := listen(t, there)
	before := Counts().TCP
	if c, err := Dial(t.Context(), l.Addr().String(), here); !errors.Is(err, ErrNoRDMA) ||
		!strings.Contains(err.Error(), "Config.Fallback") {
		t.Errorf("%v, %v", c, err)
	}
	here.Fallback = false
	if c, err := Dial(t.Context(), l.Addr().String(), here); err == nil || c != nil {
		t.Errorf("%v, %v", c, err)
	}
	if n := Counts().TCP - before; n != 0 {
		t.Errorf("%d ends over TCP", n)
	}
}

// What the two say of themselves decides: RDMA if both can, TCP if one cannot and both allow it.
func TestAgreement(t *testing.T) {
	can, cannot := hello{Fallback: true}, hello{Fallback: true, Unusable: "no port\x1b is up"}
	for _, c := range []struct {
		mine, theirs hello
		why          string
		err          error
	}{
		{can, can, "", nil},
		{hello{}, hello{}, "", nil},
		{cannot, can, "this end: no port", nil},
		{can, cannot, "peer: no port", nil},
		{can, hello{Fallback: true, TCP: "carried no word"}, "carried no word", nil},
		{hello{}, cannot, "", ErrNoRDMA},
		{cannot, hello{}, "", ErrNoRDMA},
	} {
		why, err := agreeOn(&c.mine, &c.theirs)
		if !strings.HasPrefix(why, c.why) || (why == "") != (c.why == "") || !errors.Is(err, c.err) {
			t.Errorf("%+v and %+v: %q, %v", c.mine, c.theirs, why, err)
		}
		if strings.Contains(why, "\x1b") && c.theirs.Unusable != "" {
			t.Errorf("%q", why)
		}
	}
}

// Conversations that go no further wait at the door: a bounded number of them are being met, and
// when they leave, others have their turn.
func TestStrangersAreBounded(t *testing.T) {
	cfg := over(t, nics.Soft)
	l := listen(t, cfg)
	var all []*rendezvous.Conn
	for range maxMeeting + 3 {
		talk, err := rendezvous.Dial(t.Context(), l.Addr().String(), rendezvous.Config{Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, talk)
	}
	until(t, "as many strangers as may are met", func() bool { return len(l.meeting) == maxMeeting })
	dialled := make(chan error, 1)
	go func() {
		c, err := Dial(t.Context(), l.Addr().String(), cfg)
		if err == nil {
			err = c.Close()
		}
		dialled <- err
	}()
	for _, talk := range all {
		_ = talk.Close()
	}
	if err := <-dialled; err != nil {
		t.Error(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// A Dial that takes too long has Timeout, whichever limit has ended it, and those that wait for it
// share its end: they do not try one after the other.
func TestDialTimesOut(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	noError(t, err)
	defer func() { _ = silent.Close() }()
	cfg := over(t, nics.Soft)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	quick := cfg
	quick.Timeout = 20 * time.Millisecond
	for name, dial := range map[string]func() (*Conn, error){
		"context": func() (*Conn, error) { return Dial(short, silent.Addr().String(), cfg) },
		"Config":  func() (*Conn, error) { return Dial(t.Context(), silent.Addr().String(), quick) },
		"another call's": func() (*Conn, error) {
			h, err := join(&cfg)
			noError(t, err)
			defer h.leave()
			made := make(chan struct{})
			close(made)
			h.mu.Lock()
			h.dials[dialKey{"192.0.2.1:9", nil}] = &dialing{made: made, err: rendezvous.ErrTimeout}
			h.mu.Unlock()
			return Dial(t.Context(), "192.0.2.1:9", cfg)
		},
	} {
		_, err := dial()
		var slow net.Error
		if !errors.As(err, &slow) || !slow.Timeout() {
			t.Errorf("%s: %v", name, err)
		}
		if name == "context" && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing works over a Host that is closed, and the error says so.
func TestClosedHost(t *testing.T) {
	host, err := nics.Open(nics.Config{Provider: nics.Soft})
	noError(t, err)
	noError(t, host.Close())
	if _, err := Listen(t.Context(), "127.0.0.1:0", Config{Host: host}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("listen: %v", err)
	}
	if _, err := Dial(t.Context(), "127.0.0.1:9", Config{Host: host}); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("dial: %v", err)
	}
}

// A worker serves so many links; for further peers there is another one.
func TestManyPeers(t *testing.T) {
	cfg, err := over(t, nics.Soft).withDefaults()
	noError(t, err)
	h, err := join(&cfg)
	noError(t, err)
	defer h.leave()
	h.most = 2
	for range 3 {
		a, b := dial(t, listen(t, cfg), cfg)
		mustWrite(t, a, []byte("hello"))
		mustRead(t, b, 5)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.carriers); n != 3 {
		t.Errorf("%d workers serve three links of two ends each", n)
	}
}

// That TCP has once carried the streams to a peer does not keep a Dial off a link that is there.
func TestLinkOutlivesRefusal(t *testing.T) {
	cfg := over(t, nics.Soft)
	cfg.Fallback = true
	l := listen(t, cfg)
	a, _ := dial(t, l, cfg)
	a.link.carrier.hub.refuse(dialKey{l.Addr().String(), nil}, "it had no NIC then")
	if b, _ := dial(t, l, cfg); b.Carrier().Kind != "rdma" {
		t.Errorf("%+v", b.Carrier())
	}
}

// A link that is not used closes after Config.IdleLinks, and the next Dial makes another one.
func TestIdleLinkCloses(t *testing.T) {
	cfg := over(t, nics.Soft)
	cfg.IdleLinks = 10 * time.Millisecond
	l := listen(t, cfg)
	a, b := dial(t, l, cfg)
	first := a.link
	_, _ = a.Close(), b.Close()
	select {
	case <-first.failed:
	case <-time.After(patience):
		t.Fatal("the link is kept")
	}
	a, b = dial(t, l, cfg)
	mustWrite(t, a, []byte("again"))
	mustRead(t, b, 5)
}

// Chunks that a writer does not use go back, and are granted again when they are needed.
func TestUnusedChunksGoBack(t *testing.T) {
	cfg := over(t, nics.Soft)
	cfg.IdleLinks = 10 * time.Millisecond // also how often a link looks around
	a, b := pair(t, cfg)
	for range 2 {
		go func() { _, _ = a.Write(make([]byte, 1<<20)) }()
		mustRead(t, b, 1<<20)
		until(t, "all chunks come back", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.in.chunks == 0
		})
	}
	b.link.pool.mu.Lock()
	defer b.link.pool.mu.Unlock()
	if free, all := len(b.link.pool.free), len(b.link.pool.chunks); free != all || all == 0 {
		t.Errorf("%d of %d chunks are free", free, all)
	}
}

// The conversation is TLS if the program says so, and so is a stream over TCP.
func TestTLS(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	here, there := strangers(t, true)
	there.TLS = &tls.Config{Certificates: certified.TLS.Certificates}
	here.TLS = &tls.Config{RootCAs: roots}
	a, b := dial(t, listen(t, there), here)
	mustWrite(t, a, []byte("secret"))
	mustRead(t, b, 6)
	if _, ok := a.tcp.(*tls.Conn); !ok {
		t.Errorf("%T", a.tcp)
	}
	noError(t, errors.Join(a.SetLinger(5), b.SetLinger(-1)))
	here.TLS = nil
	if _, err := Dial(t.Context(), b.LocalAddr().String(), here); err == nil {
		t.Error("a stranger without TLS gets a stream")
	}
}

// A listener that accepts no longer, because the system refuses, is closed like any other.
func TestCloseAfterAcceptFailed(t *testing.T) {
	host := newHost(t, nics.Config{Provider: nics.Soft})
	l, err := Listen(t.Context(), "127.0.0.1:0", Config{Host: host})
	noError(t, err)
	l.end(syscall.EMFILE)
	if _, err := l.Accept(); !errors.Is(err, syscall.EMFILE) {
		t.Errorf("accept: %v", err)
	}
	noError(t, l.Close())
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	noError(t, CloseIdle(t.Context(), host))
}
