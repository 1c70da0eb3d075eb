package rendezvous

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Listener greets all clients at the same time, and hands out the conversations. You may call its
// methods from any goroutine.
type Listener struct {
	nl     net.Listener
	cfg    Config
	tls    *tls.Config
	ctx    context.Context // ends greetings
	cancel context.CancelCauseFunc
	all    sync.WaitGroup
	ready  chan struct{} // signals that a conversation waits for Accept
	room   chan struct{} // signals that a greeting is over
	failed chan struct{} // closed when no more connections are accepted; failure says why

	mu      sync.Mutex
	greeted []*arrival // in the order of arrival
	waiting []*Conn    // conversations that wait for Accept
	failure error
}

// arrival is a connection that has not begun a conversation.
type arrival struct {
	nc      net.Conn
	since   time.Time
	evicted bool // guarded by the mutex of the listener
}

// grace is how long a connection may take to begin a conversation while others wait for its place.
const grace = time.Second

// errStopped ends conversations that were not accepted, errEvicted a connection that was dropped
// while it was greeted.
var (
	errStopped = errors.New("the listening end has stopped listening")
	errEvicted = fmt.Errorf("%w: it began no conversation, and made room for others", ErrTimeout)
)

// Listen listens at addr, HOST:PORT. An empty host means all addresses, and port 0 any free port:
// see [Listener.Addr]. ctx limits Listen itself, not the listener. Errors are an [*OpError], except
// for an invalid Config: that error names the field and is [verbs.ErrInvalid].
func Listen(ctx context.Context, addr string, cfg Config) (*Listener, error) {
	cfg, err := cfg.withDefaults(true)
	switch {
	case err != nil:
		return nil, err
	case ctx == nil:
		return nil, &OpError{"listen", addr, errNoContext}
	}
	var lc net.ListenConfig
	nl, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, &OpError{"listen", addr, err}
	}
	return serve(nl, cfg), nil
}

// serve greets the connections that a net.Listener accepts.
func serve(nl net.Listener, cfg Config) *Listener {
	l := &Listener{nl: nl, cfg: cfg, ready: make(chan struct{}, 1), room: make(chan struct{}, 1),
		failed: make(chan struct{})}
	if cfg.TLS != nil {
		l.tls = modern(cfg.TLS)
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.all.Go(l.accept)
	return l
}

// Addr returns the address at which the listener listens.
func (l *Listener) Addr() net.Addr { return l.nl.Addr() }

// Accept waits for the next conversation until ctx ends. Errors are an [*OpError]. The error of a
// closed listener is ErrClosed; any other error, except the context's, means that there will be no
// more conversations.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	c, err := l.next(ctx)
	if err != nil {
		return nil, &OpError{"accept", l.nl.Addr().String(), err}
	}
	c.run()
	return c, nil
}

// next waits for a conversation, which is not being read yet. It returns all waiting conversations
// before it reports that there will be no more.
func (l *Listener) next(ctx context.Context) (*Conn, error) {
	if ctx == nil {
		return nil, errNoContext
	}
	for {
		if c := l.take(); c != nil {
			return c, nil
		}
		select {
		case <-l.ready:
			continue
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-l.ctx.Done():
		case <-l.failed:
		}
		if l.ctx.Err() != nil {
			return nil, ErrClosed
		}
		if c := l.take(); c != nil {
			return c, nil
		}
		return nil, l.failure
	}
}

// take removes and returns the conversation that has waited longest, or nil.
func (l *Listener) take() *Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return nil
	}
	c := l.waiting[0]
	l.waiting = slices.Delete(l.waiting, 0, 1)
	if len(l.waiting) > 0 {
		l.wake()
	}
	return c
}

// wake makes one waiting Accept look again.
func (l *Listener) wake() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// Close ends the listener, within 100 ms. Conversations that were not accepted end with a message;
// the others go on.
func (l *Listener) Close() error {
	l.cancel(errStopped)
	err := l.nl.Close()
	l.all.Wait()
	var telling sync.WaitGroup
	for c := l.take(); c != nil; c = l.take() {
		c.run()
		telling.Go(func() { c.fail(errStopped, shortFailTimeout) })
	}
	telling.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// accept greets every connection.
func (l *Listener) accept() {
	defer close(l.failed)
	for pause := time.Duration(0); ; {
		nc, err := l.nl.Accept()
		switch {
		case err == nil:
			pause = 0
			a := &arrival{nc: nc, since: time.Now()}
			if l.enter(a) {
				l.all.Go(func() { l.greet(a) })
			}
		case l.ctx.Err() != nil:
			l.failure = ErrClosed
			return
		case exhausted(err): // temporary
			pause = min(max(2*pause, 10*time.Millisecond), time.Second)
			l.sleep(pause)
		default:
			l.failure = err
			return
		}
	}
}

// exhausted reports whether an error only means that too much is open at the moment.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM) ||
		errors.Is(err, syscall.ECONNABORTED)
}

// sleep waits until a greeting is over, or for some time.
func (l *Listener) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.room:
	case <-l.ctx.Done():
	}
}

// enter waits for a place for a connection. If all are taken for longer than grace, the oldest
// unfinished greeting is dropped. Further connections wait in the kernel meanwhile. It returns
// false once the listener is closed.
func (l *Listener) enter(a *arrival) bool {
	for l.ctx.Err() == nil {
		l.mu.Lock()
		if len(l.greeted) < l.cfg.MaxGreetings {
			l.greeted = append(l.greeted, a)
			l.mu.Unlock()
			return true
		}
		oldest := l.greeted[0]
		left := grace - time.Since(oldest.since)
		if left <= 0 {
			l.evict(oldest)
		}
		l.mu.Unlock()
		if left > 0 {
			l.sleep(left)
		}
	}
	_ = a.nc.Close()
	return false
}

// evict drops a connection to free its place. The caller holds mu.
func (l *Listener) evict(a *arrival) {
	a.evicted = true
	_ = a.nc.Close()
	l.remove(a)
}

// remove removes a connection from the list. The caller holds mu.
func (l *Listener) remove(a *arrival) {
	l.greeted = slices.DeleteFunc(l.greeted, func(other *arrival) bool { return other == a })
}

// greet begins a conversation over a new connection.
func (l *Listener) greet(a *arrival) {
	nc := a.nc
	if l.tls != nil {
		nc = tls.Server(nc, l.tls)
	}
	c, err := begin(l.ctx, nc, l.cfg)
	if err == nil {
		err = l.offerOrRefuse(a, c)
	}
	if l.freePlace(a) && c == nil {
		err = errEvicted
	}
	if err != nil && l.ctx.Err() == nil && l.cfg.Refused != nil {
		l.cfg.Refused(nc.RemoteAddr(), err)
	}
}

// offerOrRefuse queues a conversation for Accept, unless it was evicted. If there is no room it
// ends the conversation, which keeps its place until then.
func (l *Listener) offerOrRefuse(a *arrival, c *Conn) error {
	done, err := l.offer(a, c)
	if err != nil || done {
		return err
	}
	err = fmt.Errorf("%w: %d conversations wait for the listening end already", ErrBusy, l.cfg.MaxWaiting)
	c.run()
	stop := context.AfterFunc(l.ctx, func() { _ = c.Close() })
	defer stop()
	c.Fail(err)
	return err
}

// offer queues a conversation for Accept if there is room. From then on it cannot be evicted.
func (l *Listener) offer(a *arrival, c *Conn) (done bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.evicted {
		return false, errEvicted // its connection is closed
	}
	if len(l.waiting) == l.cfg.MaxWaiting {
		return false, nil
	}
	c.taken = make(chan struct{})
	l.waiting = append(l.waiting, c)
	l.remove(a)
	l.wake()
	go l.watch(c)
	return true, nil
}

// watch watches a conversation until Accept takes it, and drops it if the peer goes first without
// having sent anything. It reads at most a small buffer, from which the conversation then
// continues.
func (l *Listener) watch(c *Conn) {
	_, err := c.r.Peek(1)
	if head, _ := c.r.Peek(c.r.Buffered()); err == nil && bytes.HasPrefix(head, make([]byte, lengthLen)) {
		err = ErrLeft
	}
	if err != nil && l.drop(c) {
		_ = c.nc.Close()
		if l.cfg.Refused != nil {
			l.cfg.Refused(c.RemoteAddr(), fmt.Errorf("%w before it was accepted", c.explain(err, 0, "")))
		}
		return
	}
	<-c.taken
	c.listen()
}

// drop removes a conversation from those that wait for Accept, and reports whether it was there.
func (l *Listener) drop(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return true
}

// freePlace frees the place of a connection, and reports whether it was evicted.
func (l *Listener) freePlace(a *arrival) (evicted bool) {
	l.mu.Lock()
	l.remove(a)
	evicted = a.evicted
	l.mu.Unlock()
	select {
	case l.room <- struct{}{}:
	default:
	}
	return evicted
}
