package main

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

const (
	// greeting is how long a connection may take to begin the conversation and to say its NICs.
	greeting = 5 * time.Second
	// maxLines is how many connections without a client are described one by one.
	maxLines = 10
)

// errBusy goes to a client that connects during a measurement with another one.
var errBusy = errors.New("the listening end is busy with another client: try again later")

// listen listens for clients. It reports why a connection brought none: for each of the first
// connections, and then their number whenever it has doubled.
func (f *perfCmd) listen(c *console) (*rendezvous.Listener, error) {
	cfg := f.conversation()
	cfg.Greeting = min(greeting, cfg.Timeout)
	var strange atomic.Int64
	cfg.Refused = func(remote net.Addr, why error) {
		switch n := strange.Add(1); {
		case n <= maxLines:
			c.complain("ibverbx: %v: %s; still listening\n", remote, reason(why))
		case bits.OnesCount64(uint64(n)) == 1:
			c.complain("ibverbx: %d connections so far brought no client; still listening\n", n)
		}
	}
	l, err := rendezvous.Listen(c.ctx, f.Listen.address, cfg)
	return l, cmp.Or(errors.Unwrap(err), err) // without the name of the package
}

// serve drives one end for its clients, one at a time, until one has been measured. It tells all
// others that it is busy.
func (f *perfCmd) serve(c *console, end *endNICs) error {
	l, err := f.listen(c)
	if err != nil {
		return err
	}
	var refusals sync.WaitGroup
	defer refusals.Wait()
	defer func() { _ = l.Close() }()
	c.complain("ibverbx: listening on %v with %s\n", l.Addr(), end)
	for {
		conn, err := l.Accept(c.ctx)
		if c.ctx.Err() != nil && err != nil {
			return bench.ErrInterrupted
		}
		if err != nil {
			return err
		}
		busy, free := context.WithCancel(c.ctx)
		var others sync.WaitGroup
		others.Go(func() {
			for {
				other, err := l.Accept(busy)
				if err != nil {
					return
				}
				refusals.Go(func() { other.Fail(errBusy) })
			}
		})
		f.outcome.document = false
		err = f.serveOne(c, end, conn)
		free()
		others.Wait()
		route := errors.As(err, new(*nics.LinkLocalError)) || errors.Is(err, verbs.ErrUnreachable)
		if c.ctx.Err() != nil || !bench.BrokeOff(err) && !route {
			return err
		}
		c.complain("ibverbx: %v: %s; still listening\n", conn.RemoteAddr(), reason(err))
		if err := f.document(c, err); err != nil {
			return err
		}
	}
}

// serveOne measures with a client.
func (f *perfCmd) serveOne(c *console, end *endNICs, conn *rendezvous.Conn) error {
	soon, cancel := context.WithTimeoutCause(c.ctx, greeting, rendezvous.ErrTimeout)
	half, err := end.half(soon, conn)
	cancel()
	if err != nil {
		return err
	}
	return f.show(c, func(o bench.Observer) (*bench.Report, error) { return bench.Follow(c.ctx, half, o) })
}
