package stream

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"ibverbx"
	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/transport"
)

// link is one endpoint for all streams between two processes, in the direction in which they were
// dialled.
//
// Locks are taken in this order: Conn.mu, link.mu, and then those of the memory and the worker.
// Handlers, which the worker calls with no lock held, take them like everybody else.
type link struct {
	carrier *carrier
	cfg     *Config
	talk    *rendezvous.Conn // open as long as the link
	ep      *transport.Endpoint
	lis     *Listener // accepts the streams; nil at the end that dials
	local   net.Addr
	remote  net.Addr
	// ordered reports that there is one queue pair: what is posted later arrives later.
	ordered bool
	short   int // longest payload of a message that is sent inline, bytes
	bcopy   int // longest payload of any message, bytes
	pool    chunkPool
	staged  int // pieces that it has of carrier.stage, whose mu guards it

	up      atomic.Bool // the fields above are set, and the peer may open streams
	proven  waiter
	spinner spinner
	starved lineup        // their writers have data to send that found no resource
	pieces  lineup        // their writers wait for a piece of carrier.stage
	hurry   chan struct{} // closes the link as soon as it has no stream
	untidy  atomic.Bool   // there may be streams with something to give back

	mu      sync.Mutex
	streams map[uint32]*Conn
	last    uint32             // number of the stream that was opened last
	idle    time.Time          // when the last stream was removed
	slabs   []ibverbx.RemoteMR // the peer's memory
	dirty   []*Conn            // have messages to send that found no resource
	closing bool               // no stream may be opened
	leaving bool               // it is not kept without a stream
	err     error              // why it has failed
	failed  chan struct{}
	pins    sync.WaitGroup // calls that copy from or to registered memory, with no lock held
}

// resetError ends the streams of a link that has failed, or one that the peer has reset.
type resetError struct{ reason error }

func (e *resetError) Error() string {
	if e.reason == nil {
		return syscall.ECONNRESET.Error()
	}
	return syscall.ECONNRESET.Error() + ": " + e.reason.Error()
}

func (e *resetError) Unwrap() []error {
	if e.reason == nil {
		return []error{syscall.ECONNRESET}
	}
	return []error{syscall.ECONNRESET, e.reason}
}

// newLink makes an endpoint over NICs that both ends of a conversation have agreed on. It is not
// connected yet.
func newLink(c *carrier, talk *rendezvous.Conn, cfg *Config, lis *Listener) (*link, error) {
	l := &link{carrier: c, cfg: cfg, talk: talk, lis: lis, local: talk.LocalAddr(), remote: talk.RemoteAddr(),
		ordered: len(c.devices) == 1, streams: map[uint32]*Conn{}, failed: make(chan struct{}),
		idle: time.Now()}
	l.pool.dom, l.pool.budget, l.pool.patience = c.dom, &c.hub.memory, wantTime
	l.proven.wake, l.hurry = make(chan struct{}, 1), make(chan struct{}, 1)
	ep, err := c.w.NewEndpoint(transport.EndpointConfig{Name: talk.RemoteAddr().String(), Value: l,
		OnError: func(_ *transport.Endpoint, err error) { l.fail(err) }, OnReady: l.ready})
	if err != nil {
		return nil, err
	}
	l.ep = ep.NotifyReady()
	return l, nil
}

// prove sends a word and waits for the peer's.
func (l *link) prove(ctx context.Context) error {
	limits := l.ep.Limits()
	l.short, l.bcopy = limits.AMShort-headerBytes, limits.AMBcopy-headerBytes
	l.up.Store(true)
	ctx, cancel := context.WithTimeoutCause(ctx, l.cfg.Proof, errors.New("the queue pair is up, but carried "+
		"no word within Config.Proof"))
	defer cancel()
	var none [headerBytes]byte
	if err := l.ep.AMShort(kindProof, none[:], nil); err != nil {
		return err
	}
	err := l.carrier.w.WaitFor(ctx, 0, l.proven.ready.Load)
	if ctx.Err() != nil && err != nil {
		return context.Cause(ctx)
	}
	return err
}

// handle handles a message of any kind. A message that no peer sends ends the link.
func handle(m *transport.Message) {
	l := m.Endpoint().Value().(*link)
	if err := l.handle(m.ID(), m.Header(), m.Data()); err != nil {
		l.fail(err)
	}
}

func (l *link) handle(kind transport.AMID, header, data []byte) error {
	if len(header) != headerBytes {
		return violation("a header of %d bytes: must be %d", len(header), headerBytes)
	}
	id := binary.LittleEndian.Uint32(header)
	switch {
	case kind == kindProof:
		l.proven.notify()
		return nil
	case !l.up.Load():
		return violation("message %d before the link is proven", kind)
	}
	switch kind {
	case kindSlab:
		return l.addSlab(id, data)
	case kindOpen:
		return l.accept(id)
	}
	l.mu.Lock()
	c := l.streams[id]
	l.mu.Unlock()
	switch {
	case c != nil:
		err := c.handle(kind, data)
		l.grantWaiting()
		return err
	case kind == kindSpace || kind == kindReset || kind == kindGrant || kind == kindShrink:
		return nil // it was sent before the peer learnt that the stream had ended
	}
	return violation("message %d for stream %d, which is not open", kind, id)
}

// addSlab takes the location of more of the peer's memory.
func (l *link) addSlab(n uint32, text []byte) error {
	var mr ibverbx.RemoteMR
	if err := json.Unmarshal(text, &mr); err != nil {
		return violation("slab %d: %s", n, peertext.Excerpt(err.Error(), 200))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if uint64(n) != uint64(len(l.slabs)) || n == maxSlabs || mr.Len() != slabBytes {
		return violation("slab %d of %d bytes in place of slab %d of %d", n, mr.Len(), len(l.slabs),
			slabBytes)
	}
	l.slabs = append(l.slabs, mr)
	return nil
}

// accept takes a stream that the peer opens, or refuses it.
func (l *link) accept(id uint32) error {
	l.mu.Lock()
	_, exists := l.streams[id]
	l.mu.Unlock()
	if l.lis == nil || exists {
		return violation("stream %d is opened at the wrong end or twice", id)
	}
	var why string
	switch {
	case !l.carrier.hub.memory.take(firstWindow):
		why = "no memory for another stream: Config.Memory"
	default:
		c := l.newConn(id)
		c.mu.Lock()
		c.out.open = true
		c.due.accept = true
		if !l.add(c) {
			why = "the link is closing"
		} else if why = l.lis.offer(c); why == "" {
			counters.rdma.Add(1)
			c.control(l.ep)
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		l.remove(c)
		l.carrier.hub.memory.give(firstWindow)
	}
	c := l.newConn(id) // it lives until the refusal is sent
	c.mu.Lock()
	c.refusal, c.closed = why, true
	c.control(l.ep)
	c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.dirty) > len(l.streams)+maxUntaken {
		return violation("more streams are opened than the peer takes refusals for")
	}
	return nil
}

// maxUntaken bounds the refusals that a link keeps for a peer that takes no messages.
const maxUntaken = 256

// add puts a stream into the table, and reports whether the link still takes one.
func (l *link) add(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing || l.err != nil {
		return false
	}
	l.streams[c.id] = c
	return true
}

// remove takes a stream out of the table: both ends have sent all that they will, and the program
// has read what it wants.
func (l *link) remove(c *Conn) {
	l.mu.Lock()
	delete(l.streams, c.id)
	l.idle = time.Now()
	last := l.leaving && len(l.streams) == 0
	l.mu.Unlock()
	if last {
		l.closeSoon()
	}
}

// closeSoon closes the link as soon as it has no stream.
func (l *link) closeSoon() {
	select {
	case l.hurry <- struct{}{}:
	default:
	}
}

// dial opens a stream, and waits until the peer has accepted it.
func (l *link) dial(ctx context.Context) (*Conn, error) {
	if !l.carrier.hub.memory.take(firstWindow) {
		return nil, errNoMemory
	}
	l.mu.Lock()
	if l.last++; l.last == 0 {
		l.closing = true // all numbers are used up
	}
	c := l.newConn(l.last)
	l.mu.Unlock()
	if !l.add(c) {
		l.carrier.hub.memory.give(firstWindow)
		return nil, errLinkClosing
	}
	stop := context.AfterFunc(ctx, c.out.wait.notify)
	defer stop()
	c.mu.Lock()
	c.due.open = true
	c.control(l.ep)
	for !c.out.open && c.out.err == nil && ctx.Err() == nil {
		c.out.wait.ready.Store(false)
		c.mu.Unlock()
		if ctx.Err() == nil {
			l.await(&c.out.wait)
		}
		c.mu.Lock()
	}
	open, err := c.out.open, c.out.err
	c.mu.Unlock()
	switch {
	case open:
		counters.rdma.Add(1)
		return c, nil
	case err == nil:
		err = context.Cause(ctx)
	}
	c.reset()
	return nil, err
}

var (
	errNoMemory = fmt.Errorf("%w: no memory for another stream: raise Config.Memory, or close "+
		"some, and links that are idle (CloseIdle)", syscall.ENOBUFS)
	errLinkClosing = errors.New("the link is closing")
)

// sendText sends a message of the link itself.
func (l *link) sendText(ep *transport.Endpoint, kind transport.AMID, n uint32, text []byte) error {
	var header [headerBytes]byte
	binary.LittleEndian.PutUint32(header[:], n)
	_, err := ep.AMBcopy(kind, header[:], func(dst []byte) int { return copy(dst, text) })
	return err
}

// ready sends what has met ErrNoResource, and then wakes the first writer that has. It runs when
// the endpoint has resources again.
func (l *link) ready(head *transport.Endpoint) {
	for {
		l.mu.Lock()
		if len(l.dirty) == 0 {
			break
		}
		c := l.dirty[0]
		l.mu.Unlock()
		c.mu.Lock()
		done := c.tryControl(head)
		if done {
			l.mu.Lock()
			if len(l.dirty) != 0 && l.dirty[0] == c {
				l.dirty = slices.Delete(l.dirty, 0, 1)
			}
			l.mu.Unlock()
		}
		c.mu.Unlock()
		if !done {
			return // it is called again
		}
	}
	l.mu.Unlock()
	l.starved.next()
}

// addDirty makes ready send the messages of a stream. Conn.mu is held.
func (l *link) addDirty(c *Conn) {
	l.mu.Lock()
	if !slices.Contains(l.dirty, c) {
		l.dirty = append(l.dirty, c)
	}
	l.mu.Unlock()
}

// fail ends the link and all of its streams. The first reason counts.
func (l *link) fail(why error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err, l.closing = why, true
	all := make([]*Conn, 0, len(l.streams))
	for _, c := range l.streams {
		all = append(all, c)
	}
	l.dirty = nil
	l.mu.Unlock()
	for _, c := range all {
		c.linkFailed(why)
	}
	l.proven.notify()
	close(l.failed) // the memory is released next: no stream uses it any more
}

// failure returns why the link has failed; nil if it has not.
func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// errLinkClosed is the reason of a link that was closed in order.
var errLinkClosed = errors.New("the link is closed")

// serve watches a link until it ends, and then releases what it holds.
func (l *link) serve() {
	defer l.carrier.hub.leave()
	l.watch()
	<-l.failed // whoever was the first to end it may still be ending its streams
	switch why := l.failure(); {
	case errors.Is(why, errLinkClosed):
		_ = l.talk.Close()
	default:
		l.talk.Fail(why)
	}
	l.destroy()
}

// destroy closes the endpoint, and then the memory that it was allowed to access. All streams have
// ended.
func (l *link) destroy() {
	l.pins.Wait()
	gone := transport.NewCompletion(1, nil)
	if l.ep.Abort(gone) == nil {
		_ = l.carrier.w.Wait(context.Background(), gone)
	}
	_ = l.pool.close()
	_ = l.carrier.give()
}

// housekeeping is how often a link looks for what is not in use.
const housekeeping = time.Second

// watch returns when the link has failed, its peer has gone, or it has not been used for long.
func (l *link) watch() {
	tick := time.NewTicker(min(housekeeping, max(l.cfg.IdleLinks/4, time.Millisecond)))
	defer tick.Stop()
	var stopped <-chan struct{}
	if l.lis != nil {
		stopped = l.lis.closed
	}
	for {
		select {
		case <-l.failed:
			return
		case <-l.talk.Done():
			l.fail(l.talk.Err())
			return
		case <-stopped:
			stopped = nil
			l.leave()
		case <-l.hurry:
			l.leave()
		case <-tick.C:
		}
		if l.closeIdle() {
			l.fail(errLinkClosed)
			return
		}
		if l.untidy.Swap(false) {
			l.tidy()
		}
	}
}

// leave ends the time for which the link is kept without a stream.
func (l *link) leave() {
	l.mu.Lock()
	l.leaving = true
	l.mu.Unlock()
}

// closeIdle closes the link to new streams if it has none, and has had none for as long as it is
// kept then. It reports whether it did.
func (l *link) closeIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.streams) == 0 && (l.leaving || l.lis == nil && time.Since(l.idle) >= l.cfg.IdleLinks) {
		l.closing = true
		return true
	}
	return false
}

// tidy gives back what the streams have not used for a while.
func (l *link) tidy() {
	l.mu.Lock()
	all := make([]*Conn, 0, len(l.streams))
	for _, c := range l.streams {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		if c.tidy() {
			l.untidy.Store(true)
		}
	}
}
