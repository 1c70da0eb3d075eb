package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"ibverbx/job/etcd"
)

// lines is a logger's output.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// until waits for something to become true.
func until(tb testing.TB, what string, true func() bool) {
	tb.Helper()
	for end := time.Now().Add(10 * time.Second); !true(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not within 10 s", what)
		}
	}
}

// revoke takes all leases away.
func revoke(tb testing.TB, client *clientv3.Client) {
	tb.Helper()
	all, err := client.Leases(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	for _, lease := range all.Leases {
		if _, err := client.Revoke(context.Background(), lease.ID); err != nil {
			tb.Fatal(err)
		}
	}
}

// alarm raises or ends the alarm of an etcd whose database is full: it grants no leases.
func alarm(tb testing.TB, client *clientv3.Client, action pb.AlarmRequest_AlarmAction) {
	tb.Helper()
	_, err := pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(context.Background(),
		&pb.AlarmRequest{Action: action, Alarm: pb.AlarmType_NOSPACE})
	if err != nil {
		tb.Fatal(err)
	}
}

// closes closes a store, which must not take long.
func closes(tb testing.TB, s *etcd.Store) {
	tb.Helper()
	closed := make(chan struct{})
	go func() {
		_ = s.Close() // the lease is gone
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		tb.Fatal("Close does not return")
	}
}

// Etcd that refuses a lease is asked again, for as long as it takes, and Close does not wait for
// that.
func TestLeaseRefused(t *testing.T) {
	t.Parallel()
	server := own(t)
	client, ctx := raw(t, server), t.Context()
	var log lines
	cfg := in(t, server)
	cfg.Logger = log.logger()
	s, other := open(t, cfg), open(t, in(t, server))
	if err := s.Put(ctx, "mine", []byte("value")); err != nil {
		t.Fatal(err)
	}
	alarm(t, client, pb.AlarmRequest_ACTIVATE)
	revoke(t, client)
	until(t, "the refusal is logged", func() bool { return strings.Contains(log.String(), "space exceeded") })
	closes(t, other)
	alarm(t, client, pb.AlarmRequest_DEACTIVATE)
	until(t, "the value is there again", func() bool { return len(keys(t, server, cfg.Prefix)) == 1 })
	if n := strings.Count(log.String(), "\n"); n > 5 {
		t.Errorf("%d lines of log:\n%s", n, log.String())
	}
	if err := s.Close(); err != nil || len(keys(t, server, cfg.Prefix)) > 0 {
		t.Errorf("close: %v", err)
	}
}

// A lease that is lost while values are put again under it is replaced as well.
func TestLeaseLostTwice(t *testing.T) {
	t.Parallel()
	server := own(t)
	client, ctx := raw(t, server), t.Context()
	s, gone := open(t, in(t, server)), open(t, in(t, server))
	const many = 200
	for i := range many {
		if err := s.Put(ctx, fmt.Sprint(i), []byte("value")); err != nil {
			t.Fatal(err)
		}
		if err := gone.Put(ctx, fmt.Sprint("gone ", i), []byte("value")); err != nil {
			t.Fatal(err)
		}
	}
	count := func(prefix string) int { return len(keys(t, server, "/"+t.Name()+"/"+prefix)) }
	revoke(t, client)
	until(t, "values are put again", func() bool { return count("") > 0 })
	revoke(t, client)
	closes(t, gone)
	until(t, "all values are there", func() bool { return count("") == many && count("gone") == 0 })
	if err := s.Put(ctx, "later", []byte("value")); err != nil {
		t.Error(err)
	}
}

// A value that is there already when it is put again is nobody else's, and ends with the new lease.
func TestLeaseLostAndValueThere(t *testing.T) {
	t.Parallel()
	server := own(t)
	client, ctx := raw(t, server), t.Context()
	var log lines
	cfg := in(t, server)
	cfg.Logger = log.logger()
	s := open(t, cfg)
	if err := s.Put(ctx, "mine", []byte("value")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, cfg.Prefix+"mine", "value"); err != nil { // as under an earlier lease
		t.Fatal(err)
	}
	revoke(t, client)
	until(t, "the value has a lease", func() bool {
		has, err := client.Get(ctx, cfg.Prefix+"mine")
		return err == nil && len(has.Kvs) == 1 && has.Kvs[0].Lease != 0
	})
	if strings.Contains(log.String(), "another process") {
		t.Errorf("log:\n%s", log.String())
	}
	if err := s.Close(); err != nil || len(keys(t, server, cfg.Prefix)) > 0 {
		t.Errorf("close: %v", err)
	}
}

// Close may be called by several goroutines: each returns when the store is closed, with the same
// error.
func TestCloseBySeveral(t *testing.T) {
	t.Parallel()
	server := own(t)
	s := open(t, in(t, server))
	server.kill()
	var errs [4]error
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = s.Close() })
	}
	all.Wait()
	for i, err := range errs {
		if err == nil || !errors.Is(err, errs[0]) {
			t.Errorf("close %d: %v, another: %v", i, err, errs[0])
		}
	}
}
