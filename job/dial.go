package job

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"ibverbx/rendezvous"
)

// self is this process.
func self(rank int) Process {
	host, _ := os.Hostname() // the address is known as well
	return Process{Rank: rank, Host: host, PID: os.Getpid()}
}

// dial connects to rank 0, which may not be there yet: nothing listens, its name does not resolve,
// or the store has the entry of an earlier run.
func dial(ctx context.Context, p *Place, cfg *Config) (*member, error) {
	began, told, stored := time.Now(), false, cfg.Store != nil
	var last error
	for {
		m, err := attempt(ctx, p, cfg)
		switch {
		case err == nil:
			return m, nil
		case !stored && errors.Is(err, rendezvous.ErrVersion):
			return nil, fmt.Errorf("%w: another job, or another program, has rank 0's port, and not job "+
				"%q: %w", ErrMismatch, p.Job, err)
		case ctx.Err() != nil:
			if last == nil && stored {
				last = err
			}
			return nil, missing(ctx, last)
		case !passing(err, stored, time.Since(began)):
			return nil, err
		}
		last = err
		if !told && time.Since(began) > patienceOfLogs {
			cfg.Logger.Info("ibverbx: job: waiting for rank 0", "address", p.Address, "because", err)
			told = true
		}
		if time.Since(began) > cfg.Patience {
			tellMissing(p, 0)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause(time.Since(began))):
		}
	}
}

// attempt connects to rank 0, and returns once rank 0 has accepted this process, or ctx ends.
func attempt(ctx context.Context, p *Place, cfg *Config) (*member, error) {
	conn, err := reach(ctx, p, cfg)
	if err != nil {
		return nil, err
	}
	m, err := talk(ctx, p, cfg, conn)
	if err != nil {
		return nil, err
	}
	select {
	case <-m.met:
	case <-ctx.Done(): // rank 0 has some more time to say why
	case <-m.gone:
		if why := m.reason(); errors.Is(why, rendezvous.ErrBusy) {
			return nil, why
		}
	}
	return m, nil
}

// missing returns the error for a rank 0 that is not there when ctx ends, with that of the last
// attempt.
func missing(ctx context.Context, last error) error {
	switch cause := context.Cause(ctx); {
	case last == nil:
		return cause
	case errors.Is(last, cause):
		return last
	default:
		return fmt.Errorf("%w: rank 0 is not there: %w", cause, last)
	}
}

// reach connects to rank 0; with a store, at the address that the store has now.
func reach(ctx context.Context, p *Place, cfg *Config) (*rendezvous.Conn, error) {
	if cfg.Store == nil {
		conn, err := rendezvous.Dial(ctx, p.Address, conversation(p, cfg))
		return conn, withoutAdvice(err)
	}
	e, err := findEntry(ctx, p, cfg.Store)
	if err != nil {
		return nil, err
	}
	p.Address, p.incarnation = e.Address, e.Incarnation
	conn, err := rendezvous.Dial(ctx, p.Address, conversation(p, cfg))
	if err != nil {
		return nil, e.missed(withoutAdvice(err))
	}
	return conn, nil
}

// withoutAdvice returns an error of rendezvous.Dial without its advice to retry: Join retries.
func withoutAdvice(err error) error {
	var refused *net.OpError
	if errors.Is(err, syscall.ECONNREFUSED) && errors.As(err, &refused) {
		return fmt.Errorf("%w: nobody listens there", refused)
	}
	return err
}

// patienceOfLogs is the time after which Join logs the processes that it waits for.
const patienceOfLogs = 10 * time.Second

// pause returns the time until the next attempt to find rank 0.
func pause(since time.Duration) time.Duration {
	return min(max(since/8, 20*time.Millisecond), time.Second)
}
