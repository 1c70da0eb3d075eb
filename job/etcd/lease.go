package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// leased is the lease that keeps what this process puts.
func (s *Store) leased() clientv3.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease
}

// grant takes a lease, and keeps it alive until the store ends: the channel is closed once it is
// lost.
func (s *Store) grant(ctx context.Context) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	granted, err := s.client.Grant(ctx, int64(s.cfg.Lease/time.Second))
	if err != nil {
		return nil, err
	}
	s.link.works()
	s.mu.Lock()
	s.lease = granted.ID
	s.mu.Unlock()
	return s.client.KeepAlive(s.ctx, granted.ID)
}

// keep keeps a lease, and takes another where it is lost: etcd was not there for longer, or this
// process had no time.
func (s *Store) keep(alive <-chan *clientv3.LeaseKeepAliveResponse) {
	for s.ctx.Err() == nil {
		for range alive { // the client sends what keeps it
		}
		if s.ctx.Err() != nil {
			return
		}
		s.cfg.Logger.Warn("ibverbx: etcd: the lease was lost; taking another")
		_ = s.retry(s.ctx, "grant", func() (err error) { // it ends with the store alone
			alive, err = s.grant(s.ctx)
			return err
		})
		s.restore()
	}
}

// restore puts again what the lost lease has taken with it. What somebody else has put there since
// stays.
func (s *Store) restore() {
	s.mu.Lock()
	mine := make(map[string]string, len(s.mine))
	for name, value := range s.mine {
		mine[name] = value
	}
	s.mu.Unlock()
	for name, value := range mine {
		var put bool
		err := s.retry(s.ctx, "put", func() (err error) {
			put, _, err = s.claim(s.ctx, name, value)
			return err
		})
		if err == nil && !put {
			s.cfg.Logger.Warn("ibverbx: etcd: another process has put what this one had", "key", name)
		}
	}
}
