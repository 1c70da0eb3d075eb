package stream

import (
	"bytes"
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
		if err := errors.Join(a.SetLinger(5), a.CloseWrite()); err != nil {
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
	if _, err := Dial(t.Context(), listen(t, cfg).Addr().String(), cfg); err == nil {
		t.Fatal("a link over a NIC whose cable is pulled")
	}
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
