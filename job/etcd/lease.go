package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// leased returns the lease that keeps this process's values.
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

// keep keeps the lease alive. If the lease has expired, because etcd was away for longer or this
// process had no time, it takes a new one.
func (s *Store) keep(alive <-chan *clientv3.LeaseKeepAliveResponse) {
	for {
		select {
		case _, kept := <-alive: // the client keeps it alive
			if kept {
				s.link.works()
				continue
			}
		case <-s.ctx.Done():
		}
		if s.ctx.Err() != nil {
			return
		}
		s.cfg.Logger.Warn("ibverbx: etcd: the lease was lost; taking another")
		alive = s.renew()
	}
}

// longestPause bounds the time between two attempts to take a lease.
const longestPause = 5 * time.Second

// renew takes a lease, and puts the values of the lost one again, until it has done both or the
// store ends. A lease that is lost before that is replaced like any other.
func (s *Store) renew() <-chan *clientv3.LeaseKeepAliveResponse {
	said := ""
	for pause := againAfter; ; pause = min(2*pause, longestPause) {
		alive, err := s.grant(s.ctx)
		if err == nil {
			err = s.restore()
		}
		if err == nil || s.ctx.Err() != nil {
			return alive
		}
		if text := err.Error(); text != said && !passing(err) {
			s.cfg.Logger.Warn("ibverbx: etcd: there is no lease; trying again", "because", err)
			said = text
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
		}
	}
}

// restore puts the values of the lost lease again. A value that another process has put there since
// stays. It fails only if the new lease is lost as well, or the store ends.
func (s *Store) restore() error {
	s.mu.Lock()
	mine := make(map[string]string, len(s.mine))
	for name, value := range s.mine {
		mine[name] = value
	}
	s.mu.Unlock()
	for name, value := range mine {
		var there string
		err := s.retry(s.ctx, fmt.Sprintf("put %.100q", name), func() (err error) {
			there, err = s.claim(s.ctx, name, value)
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				return errLeaseLost
			}
			return err
		})
		switch {
		case s.ctx.Err() != nil || errors.Is(err, errLeaseLost):
			return err
		case err != nil:
			s.cfg.Logger.Warn("ibverbx: etcd: what the lost lease has taken is not put again", "because", err)
		case there != value && !s.has(name, there):
			s.cfg.Logger.Warn("ibverbx: etcd: another process has put what this one had", "key", name)
		}
	}
	return nil
}

// errLeaseLost ends restore.
var errLeaseLost = errors.New("the lease was lost")

// has reports whether a value is the one that this process has put last.
func (s *Store) has(name, value string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine[name] == value
}

// claim puts a value if there is none, and returns the value that is there in the end. If the same
// value is there under an earlier lease, it is this process's own, and is put again because that
// lease ends.
func (s *Store) claim(ctx context.Context, name, value string) (there string, err error) {
	lease := s.leased()
	put := clientv3.OpPut(name, value, clientv3.WithLease(lease))
	r, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(name), "=", 0)).Then(put).
		Else(clientv3.OpGet(name)).Commit()
	if err != nil || r.Succeeded {
		return value, err
	}
	kvs := r.Responses[0].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return "", errAgain
	}
	has := kvs[0]
	if string(has.Value) != value || clientv3.LeaseID(has.Lease) == lease {
		return string(has.Value), nil
	}
	r, err = s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(name), "=", has.ModRevision)).
		Then(put).Commit()
	if err == nil && !r.Succeeded {
		err = errAgain
	}
	return value, err
}
