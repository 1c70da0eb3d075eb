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
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"strings"
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

// Rank 0 says whom it has turned away while it waited, and logs it.
func TestTurnedAway(t *testing.T) {
	t.Parallel()
	patiently(t, time.Second, func(wait time.Duration) error {
		cfg := config(t, 3)
		cfg.TLS, cfg.Wait = mutual(t, cfg.Address), wait
		var log strings.Builder // written by rank 0 alone
		cfgs := ranks(cfg)
		cfgs[0].Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfgs[2].TLS = nil
		for rank, err := range each(t, cfgs, nil)[:2] {
			for _, want := range []string{"rank 2 of 3 is missing", "was turned away", "without TLS"} {
				if !errors.Is(err, job.ErrAbsent) || !strings.Contains(fmt.Sprint(err), want) {
					return fmt.Errorf("rank %d: %w, want %q", rank, err, want)
				}
			}
		}
		if n := strings.Count(log.String(), "turned a connection away"); n < 1 || n > 10 {
			return fmt.Errorf("%d lines:\n%s", n, log.String())
		}
		return nil
	})
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
