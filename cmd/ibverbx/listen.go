package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"sync"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/nics"
	"ibverbx/rendezvous"
)

const (
	// greeting is how long a connection may take to begin the conversation.
	greeting = 5 * time.Second
	// maxGreeted bounds the connections that have not begun it yet, and the conversations in which
	// nobody has said yet what to measure. A further one takes the place of the one that has been
	// silent longest.
	maxGreeted = 128
	// maxWaiting bounds the clients that wait for their turn.
	maxWaiting = 64
	// waitNews is how often a waiting client is told that it waits: more often than its timeout.
	waitNews = time.Second / 2
	// maxLines is how many connections that bring no client are described one by one.
	maxLines = 10
)

// Why a client is not served.
var (
	errFull = fmt.Errorf("%d clients wait for the listening end already: try again later", maxWaiting)
	errOver = errors.New("the listening end has stopped listening")
)

// idleError is [bench.ErrInterrupted] of a listening end that had nothing to measure.
type idleError struct{}

func (idleError) Error() string        { return "interrupted while no client was there" }
func (idleError) Is(target error) bool { return target == bench.ErrInterrupted }

// listener lets all who connect to a listening end say what they want at the same time, and hands
// out one client after another: measured at a time they would disturb each other's figures.
type listener struct {
	l     *rendezvous.Listener
	c     *console
	ctx   context.Context // ends greetings
	close func()
	all   sync.WaitGroup
	news  chan struct{} // a client has come, or failed is set
	end   *endNICs

	mu      sync.Mutex
	strange int // connections so far that brought no client
	greeted []*arrival
	waiting []*waiter
	gone    []departure // not reported yet
	busy    bool        // a client is being served
	failed  error
}

// departure is a client that has gone before it was measured, and why.
type departure struct {
	conn *rendezvous.Conn
	why  error
}

// arrival is a conversation of which it is not known yet what it wants to have measured.
type arrival struct {
	conn    *rendezvous.Conn
	evicted bool
}

// waiter is a client that waits for its turn.
type waiter struct {
	*bench.Half
	turn chan struct{} // closed when it has come
	over chan struct{} // closed when nothing more is said about waiting
}

// listen begins to accept connections. end are this end's.
func listen(c *console, address string, cfg rendezvous.Config, end *endNICs) (*listener, error) {
	ctx, cancel := context.WithCancelCause(c.ctx)
	l := &listener{c: c, ctx: ctx, news: make(chan struct{}, 1), end: end}
	cfg.Greeting, cfg.MaxGreetings = min(greeting, cfg.Timeout), maxGreeted
	cfg.Refused = func(remote net.Addr, why error) { l.stranger(fmt.Errorf("%v: %w", remote, why)) }
	var err error
	if l.l, err = rendezvous.Listen(ctx, address, cfg); err != nil {
		cancel(err)
		if why := errors.Unwrap(err); why != nil {
			return nil, doubt(address, why) // without the name of the package
		}
		return nil, err
	}
	l.close = func() { cancel(errOver) }
	l.all.Go(l.accept)
	return l, nil
}

// Close ends it. Clients that still wait are told so.
func (l *listener) Close() {
	l.close()
	_ = l.l.Close()
	l.mu.Lock()
	left := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, w := range left {
		l.all.Go(func() {
			w.called()
			w.Conn.Fail(errOver)
		})
	}
	l.all.Wait()
}

// accept asks everybody who comes.
func (l *listener) accept() {
	for {
		conn, err := l.l.Accept(l.ctx)
		if err != nil {
			if l.ctx.Err() == nil {
				l.mu.Lock()
				l.failed = err
				l.mu.Unlock()
				l.tell()
			}
			return
		}
		l.all.Go(func() { l.ask(l.enter(conn)) })
	}
}

// enter makes room for a conversation.
func (l *listener) enter(conn *rendezvous.Conn) *arrival {
	g := &arrival{conn: conn}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.greeted) == maxGreeted {
		oldest := l.greeted[0]
		oldest.evicted = true
		l.all.Go(func() { _ = oldest.conn.Close() })
		l.greeted = slices.Delete(l.greeted, 0, 1)
	}
	l.greeted = append(l.greeted, g)
	return g
}

// ask learns what is to be measured.
func (l *listener) ask(g *arrival) {
	half, err := l.agree(g.conn)
	l.mu.Lock()
	l.greeted = slices.DeleteFunc(l.greeted, func(other *arrival) bool { return other == g })
	l.mu.Unlock()
	switch {
	case err == nil:
		l.admit(half)
	case l.ctx.Err() != nil:
	case g.evicted:
		l.stranger(fmt.Errorf("%v: was silent, and made room for others", g.conn.RemoteAddr()))
	default:
		l.depart(departure{g.conn, err})
	}
}

// agree receives what a client wants to have measured.
func (l *listener) agree(conn *rendezvous.Conn) (*bench.Half, error) {
	half, err := l.end.half(conn)
	if err != nil {
		conn.Fail(err)
		return nil, err
	}
	return half, half.Agree(l.ctx)
}

// depart has next report a departure: of so many clients as may wait.
// Of more it is said as of strangers.
func (l *listener) depart(d departure) {
	l.mu.Lock()
	many := len(l.gone) == maxWaiting
	if !many {
		l.gone = append(l.gone, d)
	}
	l.mu.Unlock()
	if many {
		l.stranger(fmt.Errorf("%v: %w", d.conn.RemoteAddr(), d.why))
		return
	}
	l.tell()
}

// stranger reports why a connection brought no client: each of the first ones, and then their
// number whenever it has doubled.
func (l *listener) stranger(why error) {
	l.mu.Lock()
	l.strange++
	n := l.strange
	l.mu.Unlock()
	switch {
	case n <= maxLines:
		l.c.complain("ibverbx: %s; still listening\n", reason(why))
	case bits.OnesCount(uint(n)) == 1:
		l.c.complain("ibverbx: %d connections so far brought no client; still listening\n", n)
	}
}

// admit lets a client wait for its turn.
func (l *listener) admit(half *bench.Half) {
	w := &waiter{half, make(chan struct{}), make(chan struct{})}
	l.mu.Lock()
	switch {
	case l.ctx.Err() != nil:
		l.mu.Unlock()
		w.Conn.Fail(errOver)
		return
	case len(l.waiting) == maxWaiting:
		l.mu.Unlock()
		w.Conn.Fail(errFull)
		return
	}
	l.waiting = append(l.waiting, w)
	l.mu.Unlock()
	l.tell()
	l.keep(w)
}

// keep tells a client periodically that it waits.
func (l *listener) keep(w *waiter) {
	defer close(w.over)
	news := time.NewTicker(waitNews)
	defer news.Stop()
	for {
		l.mu.Lock()
		ahead := slices.Index(l.waiting, w)
		if l.busy && ahead >= 0 {
			ahead++
		}
		l.mu.Unlock()
		if ahead > 0 && bench.SayWait(l.ctx, w.Conn, ahead) != nil {
			return // its caller learns why
		}
		select {
		case <-w.turn:
			return
		case <-w.Conn.Done():
			l.leave(w)
			return
		case <-l.ctx.Done():
			return
		case <-news.C:
		}
	}
}

// leave removes a client that has gone from the queue.
func (l *listener) leave(w *waiter) {
	l.mu.Lock()
	before := len(l.waiting)
	l.waiting = slices.DeleteFunc(l.waiting, func(other *waiter) bool { return other == w })
	gone := len(l.waiting) < before
	l.mu.Unlock()
	if gone && l.ctx.Err() == nil {
		l.stranger(fmt.Errorf("%v: while it waited: %w", w.Conn.RemoteAddr(), w.Conn.Err()))
		_ = w.Conn.Close()
	}
}

// called ends the waiting of a client.
func (w *waiter) called() {
	close(w.turn)
	<-w.over
}

// tell wakes next.
func (l *listener) tell() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// next waits for a client, for as long as it takes. Departures come first, without a client.
func (l *listener) next() (half *bench.Half, gone departure, err error) {
	for {
		l.mu.Lock()
		if l.busy = false; len(l.gone) != 0 {
			gone = l.gone[0]
			l.gone = slices.Delete(l.gone, 0, 1)
			l.mu.Unlock()
			return nil, gone, nil
		}
		if l.busy = len(l.waiting) != 0; l.busy {
			w := l.waiting[0]
			l.waiting = slices.Delete(l.waiting, 0, 1)
			l.mu.Unlock()
			w.called()
			return w.Half, gone, nil
		}
		err := l.failed
		l.mu.Unlock()
		if err != nil {
			return nil, gone, err
		}
		select {
		case <-l.news:
		case <-l.ctx.Done():
			return nil, gone, idleError{}
		}
	}
}

// serve drives one end for the clients that come, one after another: with --keep until it is
// interrupted, else until one has been measured.
func (f *perfCmd) serve(c *console, end *endNICs) error {
	l, err := listen(c, f.Listen.address, f.conversation(), end)
	if err != nil {
		return err
	}
	defer l.Close()
	c.complain("ibverbx: listening on %v with %s\n", l.l.Addr(), end)
	for {
		f.outcome.document = false
		half, gone, err := l.next()
		if err != nil {
			return err
		}
		conn, err := gone.conn, gone.why
		if half != nil {
			conn = half.Conn
			err = f.show(c, func(o bench.Observer) (*bench.Report, error) {
				return bench.Follow(c.ctx, half, o)
			})
		}
		if c.ctx.Err() != nil || !f.Keep && !brokeOff(err) {
			return err
		}
		how := "measured"
		if err != nil {
			how = reason(err)
		}
		c.complain("ibverbx: %v: %s; still listening\n", conn.RemoteAddr(), how)
		if err != nil {
			if err := f.document(c, err); err != nil {
				return err
			}
		}
	}
}

// brokeOff reports whether the client caused an error: the next one can be served.
func brokeOff(err error) bool {
	var route *nics.LinkLocalError
	return bench.BrokeOff(err) || errors.As(err, &route)
}
