package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"ibverbx/job"
	"ibverbx/job/etcd"
)

// A Get waits for a value, or has the last one that was put; other prefixes have others; and Close
// takes back what the process has put.
func TestStore(t *testing.T) {
	t.Parallel()
	server := running(t)
	a, b := open(t, in(t, server)), open(t, in(t, server))
	ctx := t.Context()
	for _, value := range []string{"first", "second", ""} {
		if err := a.Put(ctx, "there", []byte(value)); err != nil {
			t.Fatal(err)
		}
		if v, err := b.Get(ctx, "there"); err != nil || string(v) != value {
			t.Errorf("got %q, %v; want %q", v, err, value)
		}
	}
	var waiting sync.WaitGroup
	for range 10 {
		waiting.Go(func() {
			if v, err := b.Get(ctx, "late"); err != nil || string(v) != "now" {
				t.Errorf("got %q, %v", v, err)
			}
		})
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := b.Get(short, "late"); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), `get "/TestStore/late"`) {
		t.Errorf("a value that does not come: %v", err)
	}
	other := open(t, etcd.Config{Endpoints: []string{"http://" + server.addr}, Prefix: "/TestStore"})
	if err := other.Put(ctx, "late", []byte("of another prefix")); err != nil {
		t.Error(err)
	}
	if err := a.Put(ctx, "late", []byte("now")); err != nil {
		t.Error(err)
	}
	waiting.Wait()
	if at, err := netip.ParseAddrPort(a.LocalAddr().String()); err != nil || !at.Addr().IsLoopback() {
		t.Errorf("etcd on the loopback interface is reached from %v", a.LocalAddr())
	}
	if err := a.Close(); err != nil || a.Close() != nil {
		t.Error(err)
	}
	if keys := keys(t, server, "/TestStore/"); len(keys) > 0 {
		t.Errorf("closed, and %q is there still", keys)
	}
	if _, err := a.Get(ctx, "late"); !errors.Is(err, etcd.ErrClosed) {
		t.Errorf("get after Close: %v", err)
	}
	if err := a.Put(ctx, "late", nil); !errors.Is(err, etcd.ErrClosed) {
		t.Errorf("put after Close: %v", err)
	}
}

// raw is etcd's own client.
func raw(tb testing.TB, s *server) *clientv3.Client {
	tb.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// keys are those that etcd has under a prefix.
func keys(tb testing.TB, s *server, prefix string) (names []string) {
	tb.Helper()
	all, err := raw(tb, s).Get(context.Background(), prefix, clientv3.WithPrefix())
	if err != nil {
		tb.Fatal(err)
	}
	for _, kv := range all.Kvs {
		names = append(names, string(kv.Key))
	}
	return names
}

// Where its lease is lost a store takes another, and puts again what it had, unless somebody has
// put something else.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	server := running(t)
	client := raw(t, server)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s := open(t, in(t, server))
	for _, key := range []string{"mine", "yours"} {
		if err := s.Put(ctx, key, []byte("mine")); err != nil {
			t.Fatal(err)
		}
	}
	has, err := client.Get(ctx, "/TestLeaseLost/mine")
	if err != nil {
		t.Fatal(err)
	}
	lost := clientv3.LeaseID(has.Kvs[0].Lease)
	if _, err := client.Revoke(ctx, lost); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "/TestLeaseLost/yours", "yours"); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"mine": "mine", "yours": "yours"} {
		if v, err := s.Get(ctx, key); err != nil || string(v) != want {
			t.Errorf("%s: got %q, %v", key, v, err)
		}
	}
	has, err = client.Get(ctx, "/TestLeaseLost/mine")
	if err != nil || clientv3.LeaseID(has.Kvs[0].Lease) == lost {
		t.Errorf("the same lease, %v", err)
	}
}

// A Get waits for etcd as well, which comes back.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := own(t)
	s, ctx := open(t, in(t, server)), t.Context()
	if err := s.Put(ctx, "early", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		v, err := s.Get(ctx, "late")
		if err == nil && string(v) != "now" {
			err = fmt.Errorf("got %q", v)
		}
		got <- err
	}()
	server.kill()
	put := make(chan error, 1)
	go func() { put <- s.Put(ctx, "late", []byte("now")) }()
	server.start(t)
	for _, done := range []chan error{put, got} {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it does not find etcd again")
		}
	}
	if v, err := s.Get(ctx, "early"); err != nil || string(v) != "kept" {
		t.Errorf("got %q, %v", v, err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := s.Get(short, "never"); !errors.Is(err, context.DeadlineExceeded) ||
		!strings.HasSuffix(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("after it is back: %v", err)
	}
}

// A Get that waits in vain says nothing of an etcd that was gone, and is back.
func TestServerWasGone(t *testing.T) {
	t.Parallel()
	server := own(t)
	s, ctx := open(t, in(t, server)), t.Context()
	short, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	got := make(chan error, 1)
	go func() {
		_, err := s.Get(short, "never")
		got <- err
	}()
	time.Sleep(300 * time.Millisecond) // it watches, most likely; if not the test shows less
	server.kill()
	server.start(t)
	if err := <-got; !errors.Is(err, context.DeadlineExceeded) ||
		!strings.HasSuffix(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("got %v", err)
	}
}

// Etcd that goes while a job waits is what Join tells of, when it has waited.
func TestServerGoes(t *testing.T) {
	t.Parallel()
	server := own(t)
	s := open(t, in(t, server))
	joined := make(chan error, 1)
	go func() {
		_, err := job.Join(t.Context(), job.Config{Rank: 1, Size: 2, Job: "x", Store: s, Wait: time.Second})
		joined <- err
	}()
	server.kill()
	err := <-joined
	for _, want := range []string{"waited 1s", server.addr, "connection refused",
		`the store has given no address of rank 0 as "/ibverbx/job/x"`} {
		if !errors.Is(err, job.ErrAbsent) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	began := time.Now()
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "stays for 2s") {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// Open says what is wrong with etcd, or with what it was told.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	none := nobody(t)
	silent := silence(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	at := func(endpoints ...string) etcd.Config { return etcd.Config{Endpoints: endpoints} }
	withPassword, halfUser := at(none), at(none)
	withPassword.Username, withPassword.Password = "u", "p"
	halfUser.Username = "u"
	halfSeconds, second, negative := at(none), at(none), at(none)
	halfSeconds.Lease, second.Lease, negative.Wait = 2500*time.Millisecond, time.Second, -1
	late, wrong := context.DeadlineExceeded, etcd.ErrConfig
	refused := "dial tcp " + none + ": connect: connection refused"
	for name, test := range map[string]struct {
		ctx  context.Context
		cfg  etcd.Config
		is   error
		says string
	}{
		"nobody":                  {t.Context(), at(none), late, "open at " + none + ": " + late.Error()},
		"nobody, with a password": {t.Context(), withPassword, late, refused},
		"nobody, as it is":        {t.Context(), at(none), late, refused},
		"nobody of two":           {t.Context(), at(none, "http://"+none), late, refused},
		"silence": {t.Context(), at(silent), late,
			"open " + silent + ": context deadline exceeded: it does not answer"},
		"a context that has ended": {ended, at(none), context.Canceled, none},
		"no endpoint":              {t.Context(), at(), wrong, "no Endpoints"},
		"no port":                  {t.Context(), at("etcd"), wrong, "must be HOST:PORT"},
		"another scheme":           {t.Context(), at("ftp://etcd:1"), wrong, "must be HOST:PORT"},
		"both":                     {t.Context(), at("http://a:1", "https://a:1"), wrong, "write all alike"},
		"half a user":              {t.Context(), halfUser, wrong, "Password"},
		"half seconds":             {t.Context(), halfSeconds, wrong, "whole seconds"},
		"a second":                 {t.Context(), second, wrong, "at least 2"},
		"negative":                 {t.Context(), negative, wrong, "Wait"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.cfg.Wait == 0 {
				test.cfg.Wait = 700 * time.Millisecond
			}
			began := time.Now()
			test.cfg.Logger = slog.New(slog.DiscardHandler)
			s, err := etcd.Open(test.ctx, test.cfg)
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, test.is) || !strings.Contains(fmt.Sprint(err), test.says) {
				t.Errorf("got %v, want %q", err, test.says)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
