package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// protocol names this package's protocol, and its version.
const protocol = "ibverbx-stream/1"

// hello is what the two ends tell each other first.
type hello struct {
	Unusable string `json:"unusable,omitempty"` // why this end has no NIC
	Fallback bool   `json:"fallback"`           // this end allows TCP
	TCP      string `json:"tcp,omitempty"`      // why the end that dials wants TCP
}

// maxReason is the most characters kept of a reason from the peer.
const maxReason = 300

// agreeOn returns why TCP carries the stream, empty if RDMA shall, or why nothing does.
func agreeOn(mine, theirs *hello) (why string, err error) {
	theirs.Unusable = peertext.Line(theirs.Unusable, maxReason)
	theirs.TCP = peertext.Line(theirs.TCP, maxReason)
	switch {
	case mine.Unusable != "":
		why = "this end: " + mine.Unusable
	case theirs.Unusable != "":
		why = "peer: " + theirs.Unusable
	default:
		why = cmp.Or(mine.TCP, theirs.TCP)
	}
	if why != "" && (!mine.Fallback || !theirs.Fallback) {
		return "", fmt.Errorf("%w: %s; TCP is not allowed: set Config.Fallback at both ends", ErrNoRDMA, why)
	}
	return why, nil
}

// greet exchanges hellos, and returns why TCP carries the stream; empty if RDMA shall.
func (h *hub) greet(ctx context.Context, talk *rendezvous.Conn, cfg *Config, tcp string) (string, error) {
	mine := hello{Fallback: cfg.Fallback, TCP: tcp}
	if tcp == "" {
		switch devices, err := h.host.Reaching(talk); {
		case err != nil:
			mine.Unusable = err.Error()
		case len(devices) == 0:
			mine.Unusable = "no NIC reaches the peer"
		}
	}
	theirs, err := rendezvous.Exchange(ctx, talk, mine)
	if err != nil {
		return "", err
	}
	why, err := agreeOn(&mine, &theirs)
	if err != nil {
		_ = talk.Close() // the peer comes to the same result
	}
	return why, err
}

// connect makes the link of a conversation. Both ends call it. Its errors end the conversation.
func (h *hub) connect(ctx context.Context, talk *rendezvous.Conn, cfg *Config, lis *Listener) (*link, error) {
	devices, err := h.host.Agree(ctx, talk)
	if err != nil {
		return nil, err
	}
	carrier, err := h.carrier(devices)
	if err != nil {
		talk.Fail(err)
		return nil, err
	}
	l, err := newLink(carrier, talk, cfg, lis)
	if err != nil {
		talk.Fail(err)
		return nil, errors.Join(err, carrier.give())
	}
	if err = rendezvous.Connect(ctx, talk, l.ep); err == nil {
		if err = l.prove(ctx); err != nil {
			talk.Fail(err)
		} else {
			err = talk.Barrier(ctx)
		}
	}
	if err == nil {
		err = l.failure()
	}
	if err != nil {
		_ = talk.Close()
		l.fail(err)
		<-l.failed
		l.destroy()
		return nil, err
	}
	cfg.Logger.Debug("ibverbx: stream link", "peer", l.remote, "nics", carrier.names)
	return l, nil
}

// overTCP makes the connection of a conversation the stream. Both ends call it.
func overTCP(ctx context.Context, talk *rendezvous.Conn, why string) (*Conn, error) {
	nc, err := talk.Detach(ctx)
	if err != nil {
		return nil, err
	}
	counters.tcp.Add(1)
	return &Conn{tcp: nc, why: why, local: nc.LocalAddr(), remote: nc.RemoteAddr()}, nil
}

// rendezvousConfig is the configuration of conversations.
func (c *Config) rendezvousConfig() rendezvous.Config {
	return rendezvous.Config{Protocol: protocol, TLS: c.TLS, Timeout: c.Timeout}
}

// Dial opens a stream to a [Listener] at addr, HOST:PORT. ctx limits Dial itself, not the stream.
// The first Dial makes the link, with cfg, and later ones with the same Host and TLS share it. The
// error is a [*net.OpError], except for an invalid Config: that is verbs.ErrInvalid.
func Dial(ctx context.Context, addr string, cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err == nil && ctx == nil {
		err = fmt.Errorf("stream: dial: %w: the context is nil", verbs.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	h, err := join(&cfg)
	if err == nil {
		defer h.leave()
		var c *Conn
		if c, err = h.dial(ctx, dialKey{addr, cfg.TLS}, &cfg); err == nil {
			return c, nil
		}
	}
	if isTimeout(ctx, err) {
		err = timeoutError{err}
	}
	return nil, &net.OpError{Op: "dial", Net: "rdma", Addr: address(addr), Err: err}
}

// timeoutError is an error of Dial that a limit of time has caused.
type timeoutError struct{ error }

func (e timeoutError) Unwrap() error { return e.error }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

// isTimeout reports whether the deadline of Dial's context, or Config.Timeout, has caused an error.
func isTimeout(ctx context.Context, err error) bool {
	var slow net.Error
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, rendezvous.ErrTimeout) ||
		errors.Is(err, context.DeadlineExceeded) || errors.As(err, &slow) && slow.Timeout()
}

// address is an address as the program has written it.
type address string

func (a address) Network() string { return "rdma" }
func (a address) String() string  { return string(a) }

// meetOrFallBack meets the peer, a second time if the first ends without RDMA and TCP is allowed.
func (h *hub) meetOrFallBack(ctx context.Context, key dialKey, cfg *Config) (*Conn, *link, error) {
	c, l, err := h.meet(ctx, key, cfg, "")
	var failed linkError
	if errors.As(err, &failed) && cfg.Fallback && ctx.Err() == nil {
		why := failed.err.Error()
		switch c, _, err = h.meet(ctx, key, cfg, why); {
		case errors.Is(err, ErrNoRDMA):
			err = linkError{err, failed.err} // its text has the reason
		case err != nil:
			err = fmt.Errorf("%w; before that: %w", err, failed)
		}
	}
	if c != nil && h.refuse(key, c.why) {
		cfg.Logger.Info("ibverbx: TCP carries the streams", "peer", key.addr, "because", c.why)
	}
	return c, l, err
}

// linkError reports that two processes have met, but no link came up.
type linkError struct {
	err   error
	first error // why, if err says it in words of the peer's; or nil
}

func (e linkError) Error() string { return e.err.Error() }

func (e linkError) Unwrap() []error {
	if e.first == nil {
		return []error{e.err}
	}
	return []error{e.err, e.first}
}

// Is makes it an ErrNoRDMA.
func (e linkError) Is(target error) bool { return target == ErrNoRDMA }

// meet meets the peer and makes a link, or, if tcp or one of the ends says why, a stream over TCP.
func (h *hub) meet(ctx context.Context, key dialKey, cfg *Config, tcp string) (*Conn, *link, error) {
	talk, err := rendezvous.Dial(ctx, key.addr, cfg.rendezvousConfig())
	var refused *net.OpError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED) && errors.As(err, &refused):
		return nil, nil, fmt.Errorf("%w: nobody listens there", refused.Err)
	case err != nil:
		return nil, nil, err
	}
	why, err := h.greet(ctx, talk, cfg, tcp)
	switch {
	case err != nil:
		return nil, nil, err
	case why != "":
		c, err := overTCP(ctx, talk, why)
		return c, nil, err
	}
	l, err := h.connect(ctx, talk, cfg, nil)
	if err != nil {
		return nil, nil, linkError{err: err}
	}
	return nil, l, nil
}

// Listener accepts streams: a [net.Listener].
type Listener struct {
	cfg     Config
	hub     *hub
	lis     *rendezvous.Listener
	waiting chan *Conn
	meeting chan struct{} // has a value for each conversation that is not a link or a stream yet
	closed  chan struct{}
	serving sync.WaitGroup
	stop    context.CancelFunc

	mu     sync.Mutex
	shut   bool            // Close was called
	ending bool            // no stream is taken any more
	err    error           // of the accepting goroutine
	said   map[string]bool // peers that the log has named
}

// Listen listens at addr, HOST:PORT; an empty host means all addresses, and port 0 any free port.
// ctx limits Listen itself. Errors are as for [Dial].
func Listen(ctx context.Context, addr string, cfg Config) (*Listener, error) {
	cfg, err := cfg.withDefaults()
	if err == nil && ctx == nil {
		err = fmt.Errorf("stream: listen: %w: the context is nil", verbs.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	h, err := join(&cfg)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "rdma", Addr: address(addr), Err: err}
	}
	lis, err := rendezvous.Listen(ctx, addr, cfg.rendezvousConfig())
	if err != nil {
		h.leave()
		return nil, &net.OpError{Op: "listen", Net: "rdma", Addr: address(addr), Err: err}
	}
	l := &Listener{cfg: cfg, hub: h, lis: lis, waiting: make(chan *Conn, cfg.Backlog),
		closed: make(chan struct{}), meeting: make(chan struct{}, maxMeeting), said: map[string]bool{}}
	var run context.Context
	run, l.stop = context.WithCancel(context.Background())
	l.serving.Add(1)
	go l.run(run)
	return l, nil
}

// Addr returns the address at which the listener listens.
func (l *Listener) Addr() net.Addr { return l.lis.Addr() }

// Accept waits for the next stream, a *[Conn].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.waiting:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "rdma", Addr: l.Addr(), Err: l.failure()}
	}
}

func (l *Listener) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.err, net.ErrClosed)
}

// Close ends the listener. Streams that were accepted go on; those that were not are reset.
func (l *Listener) Close() error {
	l.mu.Lock()
	again := l.shut
	l.shut = true
	l.mu.Unlock()
	if again {
		return &net.OpError{Op: "close", Net: "rdma", Addr: l.Addr(), Err: net.ErrClosed}
	}
	l.end(nil)
	l.stop()
	err := l.lis.Close()
	l.serving.Wait()
	l.hub.leave()
	return err
}

// end refuses further streams. The first reason counts.
func (l *Listener) end(why error) {
	l.mu.Lock()
	if !l.ending {
		l.ending, l.err = true, why
		close(l.closed)
	}
	l.mu.Unlock()
	for {
		select {
		case c := <-l.waiting:
			if c.tcp != nil {
				_ = c.tcp.Close()
				continue
			}
			c.reset()
		default:
			return
		}
	}
}

// offer queues a stream for Accept, or returns why it does not.
func (l *Listener) offer(c *Conn) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		return "the listener is closed"
	}
	select {
	case l.waiting <- c:
		return ""
	default:
		return fmt.Sprintf("%d streams wait for Accept: Config.Backlog", cap(l.waiting))
	}
}

// run accepts conversations.
func (l *Listener) run(ctx context.Context) {
	defer l.serving.Done()
	for {
		select {
		case l.meeting <- struct{}{}: // while it is full, package rendezvous keeps peers waiting
		case <-ctx.Done():
			return
		}
		talk, err := l.lis.Accept(ctx)
		if err != nil {
			if !errors.Is(err, rendezvous.ErrClosed) && ctx.Err() == nil {
				l.end(err)
			}
			return
		}
		l.serving.Add(1)
		go l.serve(ctx, talk)
	}
}

// serve makes the link of a conversation, and watches it.
func (l *Listener) serve(ctx context.Context, talk *rendezvous.Conn) {
	connecting := false
	func() {
		defer l.serving.Done()
		why, err := l.hub.greet(ctx, talk, &l.cfg, "")
		switch {
		case err != nil:
		case why != "":
			l.acceptTCP(ctx, talk, why)
		default:
			l.hub.enter()
			connecting = true
		}
	}()
	if !connecting {
		<-l.meeting
		return
	}
	// The end that dialled may already use the link: it is not given up if the listener closes now.
	made, err := l.hub.connect(context.WithoutCancel(ctx), talk, &l.cfg, l)
	<-l.meeting
	if err != nil {
		l.hub.leave()
		if host := hostOf(talk.RemoteAddr()); l.isNew(host) {
			l.cfg.Logger.Warn("ibverbx: no stream link", "peer", host, "because", err)
		}
		return
	}
	made.serve()
}

// hostOf returns the host of an address.
func hostOf(addr net.Addr) string {
	host, _, _ := net.SplitHostPort(addr.String())
	return host
}

// isNew reports whether the log has not named a peer yet.
func (l *Listener) isNew(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	said := l.said[host]
	if len(l.said) == maxSaid {
		clear(l.said)
	}
	l.said[host] = true
	return !said
}

// maxMeeting bounds the conversations of a listener that are not a link or a stream yet.
const maxMeeting = 256

// maxSaid bounds the peers of which a listener knows that the log has named them.
const maxSaid = 1024

// acceptTCP queues a stream over TCP for Accept.
func (l *Listener) acceptTCP(ctx context.Context, talk *rendezvous.Conn, why string) {
	c, err := overTCP(ctx, talk, why)
	if err != nil {
		return
	}
	if host := hostOf(c.remote); l.isNew(host) {
		l.cfg.Logger.Info("ibverbx: TCP carries the streams", "peer", host, "because", why)
	}
	if l.offer(c) != "" {
		_ = c.tcp.Close()
	}
}
