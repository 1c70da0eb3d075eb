package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ibverbx/job"
)

// ErrClosed means that the store is closed.
var ErrClosed = errors.New("the store is closed")

// Store is a part of etcd as a [job.Store]. Its methods may be called from any goroutine.
type Store struct {
	cfg    Config
	link   *link
	client *clientv3.Client
	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	all    sync.WaitGroup

	closing sync.Once
	closed  error // of Close

	mu    sync.Mutex
	lease clientv3.LeaseID
	mine  map[string]string // the values of this process, to put them again if the lease is lost
}

var _ job.Store = (*Store)(nil)

// Open connects to etcd, and takes a lease there that this process keeps until Close. It waits for
// etcd until ctx ends, and for Config.Wait at most.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, link: &link{logger: cfg.Logger, tls: cfg.TLS}, mine: map[string]string{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	ctx, cancel := context.WithTimeout(ctx, cfg.Wait)
	defer cancel()
	alive, err := s.open(ctx)
	if err != nil {
		s.cancel()
		if s.client != nil {
			_ = s.client.Close() // an error changes nothing
		}
		return nil, err
	}
	s.all.Go(func() { s.keep(alive) })
	return s, nil
}

// open makes the client, and takes a lease.
func (s *Store) open(ctx context.Context) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	made := make(chan error, 1)
	go func() { // with a user name it requests a token, without a context
		client, err := clientv3.New(clientv3.Config{Endpoints: s.cfg.Endpoints, TLS: s.cfg.TLS,
			Username: s.cfg.Username, Password: s.cfg.Password,
			DialTimeout:       2 * s.cfg.Wait, // ctx ends before
			DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
			DialOptions: s.link.options(), Logger: zap.NewNop(), Context: s.ctx})
		s.client = client
		made <- err
	}()
	var err error
	select {
	case err = <-made:
	case <-ctx.Done():
		s.cancel()
		err = cmp.Or(ctx.Err(), <-made)
	}
	var alive <-chan *clientv3.LeaseKeepAliveResponse
	if err == nil {
		alive, err = s.grant(ctx)
	}
	if err != nil {
		return nil, s.explain(ctx, "open", err)
	}
	return alive, nil
}

// LocalAddr returns the address of this host by which it reaches etcd, at which rank 0 of a
// [job.Job] listens.
func (s *Store) LocalAddr() net.Addr {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.link.local
}

// Put sets a value, until the store is closed, or this process has died.
func (s *Store) Put(ctx context.Context, key string, value []byte) error {
	name := s.cfg.Prefix + key
	s.mu.Lock()
	s.mine[name] = string(value)
	s.mu.Unlock()
	return s.retry(ctx, fmt.Sprintf("put %.100q", name), func() error {
		_, err := s.client.Put(ctx, name, string(value), clientv3.WithLease(s.leased()))
		return err
	})
}

// Get returns a value, and waits for it if there is none.
func (s *Store) Get(ctx context.Context, key string) (value []byte, err error) {
	name := s.cfg.Prefix + key
	err = s.retry(ctx, fmt.Sprintf("get %.100q", name), func() error {
		now, err := s.client.Get(ctx, name)
		if err != nil {
			return err
		}
		s.link.works()
		if len(now.Kvs) == 0 {
			kv, err := s.await(ctx, name, now.Header.Revision)
			if err != nil {
				return err
			}
			now.Kvs = append(now.Kvs, kv)
		}
		value = now.Kvs[0].Value
		return nil
	})
	return value, err
}

// errAgain means that a watch must be repeated.
var errAgain = errors.New("the watch has ended")

// await waits for the first event after a revision: of a key, or with options of several.
func (s *Store) await(ctx context.Context, name string, after int64, options ...clientv3.OpOption) (
	*mvccpb.KeyValue, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel() // ends the watch
	for seen := range s.client.Watch(ctx, name, append(options, clientv3.WithRev(after+1))...) {
		if err := seen.Err(); err != nil {
			if seen.CompactRevision != 0 { // the events in between are gone
				return nil, errAgain
			}
			return nil, err
		}
		if len(seen.Events) > 0 {
			return seen.Events[0].Kv, nil
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, errAgain
}

// againAfter is the pause before a request is made again.
const againAfter = 200 * time.Millisecond

// retry repeats a request until it is answered, or ctx ends.
func (s *Store) retry(ctx context.Context, what string, request func() error) error {
	for {
		err := s.ctx.Err()
		if err == nil {
			err = request()
		}
		switch {
		case err == nil:
			s.link.works()
			return nil
		case ctx.Err() != nil || s.ctx.Err() != nil || !passing(err):
			return s.explain(ctx, what, err)
		}
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
		case <-s.ctx.Done():
		}
	}
}

// passing reports whether a request may get another answer a moment later.
func passing(err error) bool {
	var e rpctypes.EtcdError
	return errors.Is(err, errAgain) || status.Code(err) == codes.Unavailable ||
		errors.As(err, &e) && e.Code() == codes.Unavailable ||
		errors.Is(err, rpctypes.ErrLeaseNotFound) // keep takes another lease
}

// explain adds the request, and its obstacle, to an error.
func (s *Store) explain(ctx context.Context, what string, err error) error {
	where := strings.Join(s.cfg.Endpoints, ", ")
	last := s.link.why()
	switch {
	case ctx.Err() != nil && last != nil:
		return fmt.Errorf("etcd: %s at %s: %w: %w", what, where, context.Cause(ctx), last)
	case ctx.Err() != nil && what == "open":
		return fmt.Errorf("etcd: %s %s: %w: it does not answer", what, where, context.Cause(ctx))
	case ctx.Err() != nil:
		return fmt.Errorf("etcd: %s at %s: %w", what, where, context.Cause(ctx))
	case s.ctx.Err() != nil:
		return fmt.Errorf("etcd: %s: %w", what, ErrClosed)
	}
	return fmt.Errorf("etcd: %s at %s: %w", what, where, err)
}

// parting is the time that Close waits for etcd.
const parting = time.Second

// Close removes this process's values, and ends the connections. An etcd that does not answer
// removes them itself, Config.Lease later. Any goroutine may call it again: each call returns the
// same.
func (s *Store) Close() error {
	s.closing.Do(func() { s.closed = s.close() })
	return s.closed
}

func (s *Store) close() error {
	s.cancel()
	ended := make(chan struct{})
	go func() {
		s.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(parting):
	}
	ctx, cancel := context.WithTimeout(context.Background(), parting)
	defer cancel()
	_, err := s.client.Revoke(ctx, s.leased())
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("etcd: close: what this process has put stays for %v: %w", s.cfg.Lease,
			s.explain(ctx, "revoke", err))
	}
	return errors.Join(err, s.client.Close())
}
