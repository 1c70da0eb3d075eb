package rendezvous_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	a.cert = &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// pool trusts the authority alone.
func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// issue makes a certificate of a name for the loopback interface, as change has it.
func (a *authority) issue(name string, change func(*x509.Certificate)) []tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if change != nil {
		change(cert)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
}

func expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// With certificates at both ends each knows who the other is, and cards travel inside of TLS.
func TestTLS(t *testing.T) {
	ca := newAuthority(t, "ours")
	listening := rendezvous.Config{TLS: &tls.Config{Certificates: ca.issue("rank 0", nil),
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool()}}
	dialling := rendezvous.Config{TLS: &tls.Config{Certificates: ca.issue("rank 1", nil), RootCAs: ca.pool()}}
	l, addr := listen(t, listening)
	a, err := rendezvous.Dial(t.Context(), addr, dialling)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if listening.TLS.MinVersion != 0 || dialling.TLS.MinVersion != 0 || dialling.TLS.ServerName != "" {
		t.Error("the program's own configuration has been changed")
	}
	for end, c := range map[string]*rendezvous.Conn{"rank 0": a, "rank 1": b} {
		state := c.TLS()
		if state == nil || state.Version != tls.VersionTLS13 ||
			state.PeerCertificates[0].Subject.CommonName != end {
			t.Errorf("the peer of %s is not known: %+v", end, state)
		}
	}
	devices := nics(t, 2)
	errA, errB := both(
		func() error { return rendezvous.Connect(t.Context(), a, open(t, devices[:1], ibverbx.Config{})) },
		func() error { return rendezvous.Connect(t.Context(), b, open(t, devices[1:], ibverbx.Config{})) })
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	// What an end says last arrives through TLS too.
	go a.Fail(errors.New("out of ink"))
	<-b.Done()
	var said *rendezvous.PeerError
	if err := b.Err(); !errors.As(err, &said) || said.Text != "out of ink" {
		t.Errorf("error %v", err)
	}
	if a, err = rendezvous.Dial(t.Context(), addr, dialling); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = a.Close()
	_, err = c.Next(t.Context())
	if !errors.Is(err, rendezvous.ErrLeft) {
		t.Errorf("the peer has closed: %v", err)
	}
}

// A certificate that is wrong, expired or missing, at either end, is refused: both ends say so, in
// words that tell what to mend, and nothing else of the conversation takes place.
func TestTLSRefusals(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	good := ours.issue("good", nil)
	listening := func(cert []tls.Certificate, mutual bool) *tls.Config {
		c := &tls.Config{Certificates: cert}
		if mutual {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, ours.pool()
		}
		return c
	}
	dialling := func(cert []tls.Certificate) *tls.Config {
		return &tls.Config{Certificates: cert, RootCAs: ours.pool()}
	}
	otherHost := func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} }
	for name, tt := range map[string]struct {
		listening, dialling   *tls.Config
		listenSays, dialsSays string // what each end says
	}{
		"the listener's is of another authority": {listening(theirs.issue("x", nil), false), dialling(nil),
			"the peer refuses this end: tls: ",
			"the peer's certificate is refused: tls: failed to verify certificate: x509: certificate " +
				"signed by unknown authority"},
		"the listener's has expired": {listening(ours.issue("x", expired), false), dialling(nil),
			"the peer refuses this end: tls: ", "x509: certificate has expired or is not yet valid"},
		"the listener's is of another host": {listening(ours.issue("x", otherHost), false), dialling(nil),
			"the peer refuses this end: tls: ", "x509: certificate is valid for 192.0.2.1, not 127.0.0.1"},
		"the dialling end has none": {listening(good, true), dialling(nil),
			"tls: client didn't provide a certificate",
			"the peer refuses this end: tls: certificate required: see " +
				"the certificate of this end, and those that the peer trusts"},
		"the dialling end's is of another authority": {listening(good, true),
			dialling(theirs.issue("x", nil)),
			"", "the peer refuses this end: tls: "},
		"the dialling end's has expired": {listening(good, true), dialling(ours.issue("x", expired)),
			"x509: certificate has expired", "the peer refuses this end: tls: expired certificate"},
		"the dialling end has no TLS": {listening(good, false), nil,
			"the peer speaks ibverbx without TLS: set Config.TLS at both ends or at none",
			"the peer begins with TLS, and this end has none: set Config.TLS at both ends or at none"},
		"the listener has no TLS": {nil, dialling(nil),
			"the peer begins with TLS, and this end has none",
			"the peer speaks ibverbx without TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			why := make(chan error, 1)
			l, addr := listen(t, rendezvous.Config{TLS: tt.listening,
				Refused: func(_ net.Addr, err error) { why <- err }})
			c, err := rendezvous.Dial(t.Context(), addr, rendezvous.Config{TLS: tt.dialling})
			if err == nil {
				_ = c.Close()
			}
			if !errors.Is(err, rendezvous.ErrTLS) || !strings.Contains(err.Error(), tt.dialsSays) {
				t.Errorf("the dialling end: %v, want %q", err, tt.dialsSays)
			}
			if err := <-why; !errors.Is(err, rendezvous.ErrTLS) ||
				!strings.Contains(err.Error(), tt.listenSays) {
				t.Errorf("the listening end: %v, want %q", err, tt.listenSays)
			}
			t.Logf("%v", err)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A connection that breaks during the handshake is no matter of TLS: whoever dials may try again.
func TestTLSBroken(t *testing.T) {
	ca := newAuthority(t, "ours")
	for name, end := range map[string]func(*net.TCPConn) error{
		"at once": (*net.TCPConn).Close,
		"reset": func(nc *net.TCPConn) error {
			return errors.Join(nc.SetLinger(0), nc.Close())
		},
		"within a record": func(nc *net.TCPConn) error {
			_, err := nc.Write([]byte("\x16\x03\x03"))
			return errors.Join(err, nc.CloseWrite())
		},
	} {
		t.Run(name, func(t *testing.T) {
			nl, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer nl.Close()
			var serving sync.WaitGroup
			defer serving.Wait()
			serving.Go(func() {
				nc, err := nl.AcceptTCP()
				if err == nil {
					defer nc.Close()
					_, err = io.ReadFull(nc, make([]byte, 100)) // of its hello
				}
				if err = errors.Join(err, end(nc)); err != nil {
					t.Error(err)
				}
			})
			_, err = rendezvous.Dial(t.Context(), nl.Addr().String(),
				rendezvous.Config{TLS: &tls.Config{RootCAs: ca.pool()}})
			if !errors.Is(err, rendezvous.ErrGone) || errors.Is(err, rendezvous.ErrTLS) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// 250 processes with certificates connect at once, beside 1,000 strangers without.
func TestTLSManyAtOnceBesideStrangers(t *testing.T) {
	const clients = 250
	ca := newAuthority(t, "ours")
	long := 60 * time.Second
	l, addr := listen(t, rendezvous.Config{Timeout: long, Greeting: long, TLS: &tls.Config{
		Certificates: ca.issue("listener", nil), ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: ca.pool()}})
	cfg := rendezvous.Config{Timeout: long,
		TLS: &tls.Config{Certificates: ca.issue("client", nil), RootCAs: ca.pool()}}
	strangers(t, addr, 1000)
	start := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var serving, coming sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				if err := c.Barrier(t.Context()); err != nil {
					t.Error("the listening end:", err)
				}
			})
		}
	})
	for range clients {
		coming.Go(func() {
			dialAgain(t, addr, cfg, func(c *rendezvous.Conn) error {
				return errors.Join(c.Barrier(t.Context()), c.Close())
			})
		})
	}
	coming.Wait()
	stop()
	serving.Wait()
	t.Logf("%d connected in %v", clients, time.Since(start))
}

// Strangers at a port with TLS are told from peers, and why they were refused is known.
func TestTLSStrangers(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	for name, tt := range map[string]struct {
		says string
		want error
		text string
	}{
		"HTTP": {"GET / HTTP/1.1\r\n\r\n", rendezvous.ErrTLS,
			`the peer speaks neither TLS nor ibverbx: it began with "GET /"`},
		"silence": {"", rendezvous.ErrTimeout, "waited 200ms for its greeting"},
		"half":    {"\x16\x03\x01\x02\x00\x01", rendezvous.ErrTimeout, "waited 200ms for its greeting"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := refuse(t, tt.says, tt.want, rendezvous.Config{
				TLS: &tls.Config{Certificates: ca.issue("rank 0", nil)}})
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error %v, want %v with %q", err, tt.want, tt.text)
			}
		})
	}
}

// A listener without a certificate could greet nobody: it is refused.
func TestTLSWithoutACertificate(t *testing.T) {
	_, err := rendezvous.Listen(t.Context(), "127.0.0.1:0", rendezvous.Config{TLS: &tls.Config{}})
	if err == nil || !strings.Contains(err.Error(), "a listener needs Certificates or GetCertificate") {
		t.Errorf("error %v", err)
	}
}

// A MaxVersion below the MinVersion that stands where none is set is an error that says so, at both
// ends; with a MinVersion it is as crypto/tls has it.
func TestTLSBelow13(t *testing.T) {
	ca := newAuthority(t, "ours")
	old := &tls.Config{Certificates: ca.issue("rank 0", nil), RootCAs: ca.pool(),
		MaxVersion: tls.VersionTLS12}
	_, listening := rendezvous.Listen(t.Context(), "127.0.0.1:0", rendezvous.Config{TLS: old})
	_, dialling := rendezvous.Dial(t.Context(), "127.0.0.1:1", rendezvous.Config{TLS: old})
	for _, err := range []error{listening, dialling} {
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(),
			"TLS.MaxVersion TLS 1.2, and no MinVersion, which is TLS 1.3 then") {
			t.Errorf("error %v", err)
		}
	}
	old.MinVersion = tls.VersionTLS12
	l, addr := listen(t, rendezvous.Config{TLS: old})
	c, err := rendezvous.Dial(t.Context(), addr, rendezvous.Config{TLS: old})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	accepted, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if state := c.TLS(); state.Version != tls.VersionTLS12 {
		t.Errorf("version %x", state.Version)
	}
}

// Close does not wait for long to take leave of a peer that takes nothing.
func TestTLSCloseWithAStuckPeer(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, "ours")
	cfg := rendezvous.Config{TLS: &tls.Config{Certificates: ca.issue("rank 0", nil), RootCAs: ca.pool()},
		Timeout: 300 * time.Millisecond, Greeting: 10 * time.Second}
	l, addr := listen(t, cfg)
	c, err := rendezvous.Dial(t.Context(), addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	stuck, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	for body := strings.Repeat("x", 1<<19); err == nil; {
		err = c.Send(t.Context(), "word", body)
	}
	if !errors.Is(err, rendezvous.ErrTimeout) {
		t.Errorf("error %v", err)
	}
	begun := time.Now()
	err = c.Close()
	if took := time.Since(begun); err != nil || took > 4*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
}
