package main

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/nics"
	"ibverbx/rendezvous"
)

const (
	// greeting is how long a connection may take to begin the conversation.
	greeting = 5 * time.Second
	// maxGreeted bounds the connections that have not begun it yet.
	maxGreeted = 128
	// maxLines is how many connections that bring no client are described one by one.
	maxLines = 10
)

// errBusy is what a listening end tells a client that comes while it measures with another one.
var errBusy = errors.New("the listening end is busy with another client: try again later")

// listener accepts one client at a time and tells all others that it is busy.
type listener struct {
	*rendezvous.Listener
	c       *console
	clients chan *rendezvous.Conn
	failed  chan error   // why no more clients come
	busy    atomic.Bool  // there is a client
	strange atomic.Int64 // connections so far that brought no client
	all     sync.WaitGroup
}

func listen(c *console, address string, cfg rendezvous.Config) (*listener, error) {
	l := &listener{c: c, clients: make(chan *rendezvous.Conn, 1), failed: make(chan error, 1)}
	cfg.Greeting, cfg.MaxGreetings = min(greeting, cfg.Timeout), maxGreeted
	cfg.Refused = func(remote net.Addr, why error) { l.stranger(fmt.Errorf("%v: %w", remote, why)) }
	var err error
	if l.Listener, err = rendezvous.Listen(c.ctx, address, cfg); err != nil {
		if why := errors.Unwrap(err); why != nil {
			return nil, why // without the name of the package
		}
		return nil, err
	}
	l.all.Go(l.accept)
	return l, nil
}

// close ends it.
func (l *listener) close() {
	_ = l.Close()
	l.all.Wait()
	select {
	case conn := <-l.clients:
		_ = conn.Close()
	default:
	}
}

func (l *listener) accept() {
	for {
		conn, err := l.Accept(l.c.ctx)
		if err != nil {
			l.failed <- err
			return
		}
		if l.busy.CompareAndSwap(false, true) {
			l.clients <- conn
			continue
		}
		l.all.Go(func() { conn.Fail(errBusy) })
	}
}

// stranger reports why a connection brought no client: each of the first ones, and then their
// number whenever it has doubled.
func (l *listener) stranger(why error) {
	switch n := l.strange.Add(1); {
	case n <= maxLines:
		l.c.complain("ibverbx: %s; still listening\n", reason(why))
	case bits.OnesCount64(uint64(n)) == 1:
		l.c.complain("ibverbx: %d connections so far brought no client; still listening\n", n)
	}
}

// serve drives one end for the clients that come, one at a time, until one has been measured.
func (f *perfCmd) serve(c *console, end *endNICs) error {
	l, err := listen(c, f.Listen.address, f.conversation())
	if err != nil {
		return err
	}
	defer l.close()
	c.complain("ibverbx: listening on %v with %s\n", l.Addr(), end)
	for {
		var conn *rendezvous.Conn
		select {
		case conn = <-l.clients:
		case err := <-l.failed:
			if c.ctx.Err() != nil {
				return bench.ErrInterrupted
			}
			return err
		}
		f.outcome.document = false
		err := f.serveOne(c, end, conn)
		l.busy.Store(false)
		if c.ctx.Err() != nil || !brokeOff(err) {
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
	half, err := end.half(conn)
	if err != nil {
		conn.Fail(err)
		return err
	}
	return f.show(c, func(o bench.Observer) (*bench.Report, error) { return bench.Follow(c.ctx, half, o) })
}

// brokeOff reports whether the client caused an error: the next one can be served.
func brokeOff(err error) bool {
	var route *nics.LinkLocalError
	return bench.BrokeOff(err) || errors.As(err, &route)
}
