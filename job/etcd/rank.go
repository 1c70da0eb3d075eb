package etcd

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Rank takes the lowest free rank of a job, from 0 to size-1. This process keeps it until its store
// is closed, or Config.Lease after its death. If all are taken Rank waits for a free one. All
// processes of the job must pass the same size, and call Rank once.
func (s *Store) Rank(ctx context.Context, job string, size int) (rank int, err error) {
	if job == "" || size < 1 {
		return 0, invalid("rank in job %.40q of %d processes: it must have a name, and one", job, size)
	}
	what := fmt.Sprintf("rank in job %.40q of %d processes", job, size)
	prefix := s.cfg.Prefix + "/ibverbx/rank/" + url.PathEscape(job) + "/"
	host, _ := os.Hostname() // for people who read the keys
	me := fmt.Sprintf("%s, pid %d (%s)", host, os.Getpid(), rand.Text())
	full := ""
	err = s.retry(ctx, what, func() error {
		for {
			now, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
			if err != nil {
				return err
			}
			s.link.works()
			rank, full = free(now.Kvs, prefix, size)
			if rank == size {
				_, err := s.await(ctx, prefix, now.Header.Revision, clientv3.WithPrefix())
				if err != nil {
					return err
				}
				continue
			}
			name := prefix + strconv.Itoa(rank)
			holder, err := s.claim(ctx, name, me)
			switch {
			case err != nil:
				return err
			case holder == me: // perhaps by a request whose answer was lost
				s.mu.Lock()
				s.mine[name] = me
				s.mu.Unlock()
				return nil
			}
		}
	})
	if err != nil && full != "" {
		err = fmt.Errorf("%w: all are taken: %s: does the job run already, or has a process died less than "+
			"%v ago?", err, full, s.cfg.Lease)
	}
	return rank, err
}

// free returns the lowest free rank, or size and the holders.
func free(taken []*mvccpb.KeyValue, prefix string, size int) (rank int, full string) {
	has := map[string]bool{}
	var who []string
	for _, kv := range taken {
		number := strings.TrimPrefix(string(kv.Key), prefix)
		has[number] = true
		holder, _, _ := strings.Cut(string(kv.Value), " (")
		who = append(who, fmt.Sprintf("%.10s by %.60q", number, holder))
	}
	for rank = range size {
		if !has[strconv.Itoa(rank)] {
			return rank, ""
		}
	}
	if most := 4; len(who) > most {
		who = append(who[:most], "...")
	}
	return size, strings.Join(who, ", ")
}
