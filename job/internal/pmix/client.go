package pmix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Client is this process's connection to its launcher. Its methods may be called from any
// goroutine.
type Client struct {
	lib  *library
	self proc
	size int

	mu      sync.Mutex
	running int           // calls under way
	closed  bool          // no further calls
	ended   chan struct{} // closed after the last call into the library
	failed  error         // its error then
}

// errClosed: the client is closed.
var errClosed = errors.New("the connection to PMIx is closed")

// file is the name by which the dynamic loader finds libpmix, versions 3 to 5.
const file = "libpmix.so.2"

// Open opens libpmix, and connects to the launcher named by PMIX_NAMESPACE, PMIX_RANK and further
// variables. An error is [ErrNoLibrary], one of the library, or why ctx has ended.
func Open(ctx context.Context) (*Client, error) {
	lib, err := load(file)
	if err != nil {
		return nil, err
	}
	return open(ctx, lib)
}

func open(ctx context.Context, lib *library) (*Client, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the call would stay behind
	}
	c := &Client{lib: lib, ended: make(chan struct{})}
	begun := make(chan error, 1)
	go func() { begun <- c.begin() }()
	select {
	case err := <-begun:
		if err != nil {
			return nil, err
		}
		return c, nil
	case <-ctx.Done():
		go func() {
			if <-begun == nil {
				_ = c.Close() // an error has no reader any more
			}
		}()
		return nil, fmt.Errorf("PMIx_Init: %w: the launcher does not answer", context.Cause(ctx))
	}
}

// begin connects, and asks for the number of processes.
func (c *Client) begin() (err error) {
	if c.self, err = c.lib.begin(); err != nil {
		return err
	}
	n, err := c.number(jobSize)
	switch {
	case err != nil:
	case bytes.IndexByte(c.self.nspace[:], 0) <= 0:
		err = errors.New("PMIx_Init: it gives the job no name")
	case n == 0 || c.self.rank >= n:
		err = fmt.Errorf("PMIx_Init: it has this process be rank %d of %d", c.self.rank, n)
	}
	if err != nil {
		_ = c.lib.end()
		return err
	}
	c.size = int(n)
	return nil
}

// Rank returns this process's number, from 0 on.
func (c *Client) Rank() int { return int(c.self.rank) }

// Size returns the number of processes in the job.
func (c *Client) Size() int { return c.size }

// Namespace returns the name of the job, which no other job of the launcher has.
func (c *Client) Namespace() string {
	name, _, _ := bytes.Cut(c.self.nspace[:], []byte{0})
	return string(name)
}

// Put lets all processes of the job get a value from this one, which should be rank 0. It does not
// wait for anybody.
func (c *Client) Put(_ context.Context, key string, content []byte) error {
	return c.do(func() error { return c.lib.publish(key, content) })
}

// Get returns the last value of rank 0, and waits for it until ctx ends.
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	of := &proc{nspace: c.self.nspace}
	for wait := shortest; ; wait = min(2*wait, longest) {
		content, err := c.take(ctx, of, key)
		var failed *statusError
		switch {
		case err == nil:
			return content, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: PMIx has nothing of rank 0: is libpmix on its host?",
				context.Cause(ctx))
		case !errors.As(err, &failed) || !failed.passing():
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// The time between two attempts.
const (
	shortest = 10 * time.Millisecond
	longest  = 200 * time.Millisecond
)

// passing reports whether the error only means that there is no value yet.
func (e *statusError) passing() bool {
	return e.status == errTimeout || e.status == errNotFound || e.status == errEntryNotFound
}

// take tries to get a value. When ctx ends it returns, even though the library may not.
func (c *Client) take(ctx context.Context, of *proc, key string) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	type result struct {
		content []byte
		err     error
	}
	got := make(chan result, 1)
	go func() {
		var r result
		r.err = c.do(func() error {
			a, err := c.lib.ask(of, key, true)
			if err != nil {
				return err
			}
			defer a.release()
			r.content, err = a.bytes()
			return err
		})
		got <- r
	}()
	select {
	case r := <-got:
		return r.content, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// do makes calls, unless the client is closed.
func (c *Client) do(calls func() error) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return errClosed
	}
	c.running++
	c.mu.Unlock()
	err := calls()
	c.mu.Lock()
	c.running--
	last := c.closed && c.running == 0
	c.mu.Unlock()
	if last {
		c.end()
	}
	return err
}

// number returns a number of the job.
func (c *Client) number(key string) (uint32, error) {
	a, err := c.lib.ask(&proc{c.self.nspace, rankWildcard}, key, false)
	if err != nil {
		return 0, err
	}
	defer a.release()
	return a.number()
}

// host returns the name of the host of a rank.
func (c *Client) host(rank uint32) (string, error) {
	a, err := c.lib.ask(&proc{c.self.nspace, rank}, hostName, false)
	if err != nil {
		return "", err
	}
	defer a.release()
	return a.text()
}

// LocalAddr returns the address by which processes of other hosts reach this host: the loopback
// interface's if there are none. It is nil if the launcher gives no name of another host, or there
// is no route to it.
func (c *Client) LocalAddr() (addr net.Addr) {
	var neighbour string
	_ = c.do(func() error {
		if n, err := c.number(localSize); err == nil && int(n) == c.size {
			addr = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
			return nil
		}
		here, err := c.host(c.self.rank)
		for rank := 0; rank < c.size && err == nil && neighbour == ""; rank++ {
			var there string
			if there, err = c.host(uint32(rank)); there != here {
				neighbour = there
			}
		}
		return nil // without a name there is no address
	})
	if neighbour != "" {
		return sourceAddress(neighbour)
	}
	return addr
}

// sourceAddress returns the address of this host on the route to another one. It only reads the
// routing table.
func sourceAddress(host string) net.Addr {
	d := net.Dialer{Timeout: patience}
	conn, err := d.Dial("udp", net.JoinHostPort(host, "9"))
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr()
}

// patience is how long a name look-up may take.
const patience = 2 * time.Second

// Close disconnects from the launcher once no call is under way, and waits a second for that: the
// library may never return from one that the context of Get has ended.
func (c *Client) Close() error {
	c.mu.Lock()
	last := !c.closed && c.running == 0
	c.closed = true
	c.mu.Unlock()
	if last {
		c.end()
	}
	select {
	case <-c.ended:
		return c.failed
	case <-time.After(time.Second):
		return errors.New("PMIx_Get does not return: the connection to PMIx stays open")
	}
}

// end leaves the library.
func (c *Client) end() {
	c.failed = c.lib.end()
	close(c.ended)
}
