package etcd_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx/job/etcd"
)

// authority is a certificate authority of its own, and a certificate for 127.0.0.1 that it is
// itself.
type authority struct {
	own  tls.Certificate
	pool *x509.CertPool
	cert string // file
	key  string // file
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err1 := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	pkcs8, err2 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	a := &authority{pool: x509.NewCertPool()}
	dir := tb.TempDir()
	a.cert, a.key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	a.pool.AppendCertsFromPEM(certPEM)
	a.own, err = tls.X509KeyPair(certPEM, keyPEM)
	err1, err2 = os.WriteFile(a.cert, certPEM, 0o600), os.WriteFile(a.key, keyPEM, 0o600)
	if err := errors.Join(err, err1, err2); err != nil {
		tb.Fatal(err)
	}
	return a
}

// With TLS both ends show certificates; what does not fit is said.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	server := own(t, ours.cert, ours.key, ours.cert)
	right := &tls.Config{RootCAs: ours.pool, Certificates: []tls.Certificate{ours.own}}
	for _, scheme := range []string{"", "https://"} {
		s := open(t, etcd.Config{Endpoints: []string{scheme + server.addr}, TLS: right})
		if err := s.Put(t.Context(), "key", []byte("value")); err != nil {
			t.Error(err)
		}
		if v, err := s.Get(t.Context(), "key"); err != nil || string(v) != "value" {
			t.Errorf("got %q, %v", v, err)
		}
	}
	for name, test := range map[string]struct {
		endpoint string
		tls      *tls.Config
		says     string
	}{
		"an authority that is not known": {server.addr, &tls.Config{RootCAs: theirs.pool,
			Certificates: right.Certificates}, "certificate signed by unknown authority"},
		"those of a browser": {"https://" + server.addr, nil, "certificate signed by unknown authority"},
		"another host": {server.addr, &tls.Config{RootCAs: ours.pool, Certificates: right.Certificates,
			ServerName: "etcd"}, "wanted to match etcd"},
		"no certificate": {server.addr, &tls.Config{RootCAs: ours.pool},
			"etcd refuses the certificate in Config.TLS, or misses one"},
		"a certificate that etcd does not know": {server.addr, &tls.Config{RootCAs: ours.pool,
			Certificates: []tls.Certificate{theirs.own}},
			"etcd refuses the certificate in Config.TLS, or misses one"},
		"no TLS here":       {server.addr, nil, "if etcd wants TLS set Config.TLS"},
		"no TLS there":      {running(t).addr, right, "etcd may speak no TLS there, and this end does"},
		"http:// and a TLS": {"http://" + server.addr, right, "write https:// or HOST:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{test.endpoint}, TLS: test.tls,
				Wait: 800 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, etcd.ErrConfig) ||
				!strings.Contains(fmt.Sprint(err), test.says) {
				t.Errorf("got %v, want %q", err, test.says)
			}
		})
	}
}

// An etcd that knows its users refuses a wrong password at once, and what a user may not do.
func TestUsers(t *testing.T) {
	t.Parallel()
	server := own(t)
	client, ctx := raw(t, server), t.Context()
	_, err1 := client.RoleAdd(ctx, "root")
	_, err2 := client.UserAdd(ctx, "root", "secret")
	_, err3 := client.UserGrantRole(ctx, "root", "root")
	_, err4 := client.UserAdd(ctx, "guest", "word")
	_, err5 := client.AuthEnable(ctx)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	cfg := etcd.Config{Endpoints: []string{server.addr}, Username: "root", Password: "secret"}
	s := open(t, cfg)
	if err := s.Put(ctx, "key", []byte("value")); err != nil {
		t.Error(err)
	}
	cfg.Password = "guess"
	if _, err := etcd.Open(ctx, cfg); err == nil || !strings.Contains(err.Error(), "authentication failed") {
		t.Errorf("a wrong password: %v", err)
	}
	cfg.Username, cfg.Password = "guest", "word"
	guest := open(t, cfg)
	want := `get "key" at ` + server.addr + ": etcdserver: permission denied"
	if _, err := guest.Get(ctx, "key"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a user who may do nothing: %v", err)
	}
}
