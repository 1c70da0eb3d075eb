package job

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Store is a place that all processes of a job can reach before they know of each other: etcd, a
// service of a launcher, another Job. See Config.Store.
//
// A key has at most 64 bytes, which are letters, digits, and "/._#-", and a value at most 600.
// Several goroutines call the methods, which return when their context ends; Join returns even if
// they do not. An error ends Join, so a store must itself wait out temporary failures, such as a
// server that restarts.
//
// A store may also have the method LocalAddr() net.Addr, which returns the address of this host
// from which it is reached.
type Store interface {
	// Put sets a value, in place of one that the key may have.
	Put(ctx context.Context, key string, value []byte) error
	// Get returns a value. If there is none yet, it waits for one.
	Get(ctx context.Context, key string) ([]byte, error)
}

var _ Store = (*Job)(nil)

// storeError is the failure of a store.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// lastWords is the time that a store has, after the context has ended, to say why it has not
// answered.
const lastWords = 200 * time.Millisecond

// askStore calls a store, and returns when ctx ends even if the store does not. The error then has
// why ctx has ended, and the store's answer to that.
func askStore(ctx context.Context, call func() ([]byte, error)) ([]byte, error) {
	type result struct {
		value []byte
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := call()
		done <- result{value, err}
	}()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		select {
		case r = <-done:
		case <-time.After(lastWords):
			r.err = ctx.Err()
		}
	}
	if r.err == nil || ctx.Err() == nil {
		return r.value, r.err
	}
	cause := context.Cause(ctx)
	switch {
	case r.err == ctx.Err(): //nolint:errorlint // that it has ended, and nothing more
		return nil, cause
	case errors.Is(r.err, cause):
		return nil, r.err
	}
	return nil, fmt.Errorf("%w: %w", cause, r.err)
}
