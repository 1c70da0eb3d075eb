package job_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"ibverbx/job"
	"ibverbx/rendezvous"
)

// mutual is a configuration for all processes of a job, with a certificate of their own, which is
// for the host of its address.
func mutual(tb testing.TB, address string) *tls.Config {
	tb.Helper()
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		tb.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "job"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{at.Addr().AsSlice()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(certificate)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS13}
}

// With TLS the processes of a job meet, and one without, or with another certificate, is kept out:
// the job comes together without it.
func TestTLS(t *testing.T) {
	t.Parallel()
	cfg := config(t, 3)
	cfg.TLS = mutual(t, cfg.Address)
	plain, other := cfg, cfg
	plain.TLS, other.TLS = nil, mutual(t, cfg.Address)
	plain.Rank, other.Rank = 1, 1
	kept := make(chan error, 2)
	allRight(t, each(t, ranks(cfg), func(ctx context.Context, j *job.Job) error {
		if j.Rank() == 2 {
			for _, stranger := range []job.Config{plain, other} {
				_, err := job.Join(ctx, stranger)
				kept <- err
			}
		}
		return errors.Join(gathers(ctx, j), j.Barrier(ctx))
	}))
	if t.Failed() {
		return // nobody may have tried
	}
	for range 2 {
		if err := <-kept; !errors.Is(err, rendezvous.ErrTLS) {
			t.Errorf("a process without the certificate: %v", err)
		}
	}
}
