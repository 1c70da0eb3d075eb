package roce

import (
	"errors"
	"math"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
)

// receiver takes the packets that arrive at a NIC's socket. A caller that polls an empty completion
// queue helps; when nobody polls, a goroutine that sleeps in Go's poller receives.
//
// It has its own lock, taken before the NIC's. A caller that polls in vain never takes the NIC's
// lock, so it keeps nobody from posting.
type receiver struct {
	dev   *Device
	ended chan struct{}

	mu      sync.Mutex // guards what follows
	batch   batch
	header  wire.Header
	dirty   []*QP // queue pairs that got packets in this round
	delayed bool  // acknowledgements were delayed in the round before
	empty   int   // polls in a row that found nothing

	offer func() // offers the processor; tests count it

	// polled is the NIC's time at which somebody last polled an empty queue and is likely to poll
	// again; it is pollsNow during such a poll or post.
	polled  atomic.Int64
	napping atomic.Bool // the goroutine keeps out of the way
	wake    chan struct{}
	nap     *time.Timer

	// failed counts errors of the socket: [Counters].RecvErrors.
	failed atomic.Uint64
}

const (
	// While queues are polled, the goroutine keeps out of the way: it looks again after idleAfter,
	// and sleeps in the poller only when nobody has polled for so long.
	idleAfter = 200 * time.Microsecond
	// afterError is the goroutine's pause after an error of the socket; it prevents spinning.
	afterError = 10 * time.Millisecond
	// rounds bounds how many batches are received in a row.
	rounds = 4
	// After patience polls in a row that found nothing, some fifty microseconds, the caller may be
	// keeping the processor from the peer it waits for, so at every offerEvery-th poll it offers
	// the processor. An offer that nobody takes costs less than a microsecond. Without offers, a
	// host with more work than processors loses four fifths of the bandwidth.
	patience   = 100
	offerEvery = 4
	// Other goroutines get the processor less often: Go wakes a thread each time, and the caller
	// may continue on that thread.
	goroutinesEvery = 16 * offerEvery
	// longPost is the duration, in nanoseconds, of a post that sends about a window.
	longPost = int64(idleAfter) / 4
	// pollsNow is later than any time.
	pollsNow = math.MaxInt64
	// In a round of up to fewPackets packets the acknowledgements wait for the program's answer.
	// They leave with the answer or at the next poll; if neither comes, the goroutine sends them.
	// Sending them first would delay the answer by a microsecond or two.
	fewPackets = 4
)

func (r *receiver) init(d *Device) {
	r.dev, r.batch, r.ended = d, d.link.NewBatch(), make(chan struct{})
	r.offer = d.link.Yield
	r.wake, r.nap = make(chan struct{}, 1), time.NewTimer(idleAfter)
	r.stopKeepingOut()
}

// wait waits until the goroutine has ended, after the socket was closed.
func (r *receiver) wait() { <-r.ended }

// serve receives until the socket is closed.
func (r *receiver) serve() {
	defer close(r.ended)
	for {
		err := r.dev.link.WaitReadable(time.Time{})
		if err == nil {
			r.keepOut()
			err = r.receiveUntilPolled()
		}
		switch {
		case err == nil, errors.Is(err, udp.ErrAgain):
		case errors.Is(err, verbs.ErrClosed):
			return
		default:
			time.Sleep(afterError)
		}
	}
}

// keepOut waits until nobody polls.
func (r *receiver) keepOut() {
	r.napping.Store(true)
	for r.isPolled() {
		r.nap.Reset(idleAfter)
		select {
		case <-r.wake:
		case <-r.nap.C:
		}
	}
	r.napping.Store(false)
}

// isPolled reports whether a polling program receives the packets.
func (r *receiver) isPolled() bool { return r.dev.now()-r.polled.Load() < int64(idleAfter) }

// stopKeepingOut tells the goroutine that nobody polls any more.
func (r *receiver) stopKeepingOut() {
	r.polled.Store(-int64(idleAfter))
	if r.napping.Load() {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// help receives the waiting packets, unless another caller does. goesOn says that the caller will
// poll again soon.
func (r *receiver) help(goesOn bool) {
	if !r.mu.TryLock() {
		if goesOn {
			r.polled.Store(r.dev.now())
		}
		return
	}
	if goesOn {
		r.polled.Store(pollsNow)
	}
	// One batch: after it the caller's queue has completions, or the caller polls again soon.
	err := r.receiveLocked(1, goesOn && r.napping.Load())
	if goesOn { // unless a caller has begun to wait meanwhile
		r.polled.CompareAndSwap(pollsNow, r.dev.now())
	}
	r.empty++
	if err == nil {
		r.empty = 0
	}
	empty := r.empty
	r.mu.Unlock()
	if empty >= patience && empty%offerEvery == 0 {
		r.offer()
		if empty%goroutinesEvery == 0 {
			runtime.Gosched()
			r.dev.helpOthers()
		}
	}
}

// helpOthers receives for the provider's other NICs if the process has a single processor. Go polls
// the network only when it has nothing else to run, and every ten milliseconds, so the other NICs'
// goroutines would wait that long while this goroutine polls.
func (d *Device) helpOthers() {
	if d.provider == nil || runtime.GOMAXPROCS(0) > 1 {
		return
	}
	for _, other := range d.provider.devices {
		if other != d && other.recv.mu.TryLock() {
			_ = other.recv.receiveLocked(1, false)
			other.recv.mu.Unlock()
		}
	}
}

// posting carries the findings of beginPost to endPost.
type posting struct {
	polled, began int64 // when the program last polled, and when it began to post
	polls         bool  // the program polls
}

// beginPost records that a program posts. If the program polls, the goroutine keeps out until
// endPost is called, because posting may take longer than idleAfter.
func (r *receiver) beginPost() posting {
	p := posting{polled: r.polled.Load(), began: r.dev.now()}
	p.polls = p.began-p.polled < int64(idleAfter) && r.polled.CompareAndSwap(p.polled, pollsNow)
	return p
}

// endPost ends a post. A long post, which has sent much, counts as a poll. Short ones do not: a
// program that posts and never polls would keep out the goroutine that receives for it.
func (r *receiver) endPost(p posting) {
	if !p.polls {
		return
	}
	if now := r.dev.now(); now-p.began >= longPost {
		p.polled = now
	}
	r.polled.CompareAndSwap(pollsNow, p.polled)
}

// receive receives the waiting packets, and sends the replies. It locks.
func (r *receiver) receive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.receiveLocked(rounds, false)
}

// receiveUntilPolled is receive for the goroutine: it stops when somebody polls again.
func (r *receiver) receiveUntilPolled() error {
	for range rounds {
		r.mu.Lock()
		err, more := r.receiveLocked(1, false), r.batch.More()
		r.mu.Unlock()
		if err != nil || !more || r.isPolled() {
			return err
		}
	}
	return nil
}

// receiveLocked receives up to the given number of batches, until nothing is left. With hold, the
// acknowledgements of the last batch may be delayed until the next call.
func (r *receiver) receiveLocked(batches int, hold bool) error {
	for range batches {
		if _, err := r.batch.Recv(); err != nil {
			if err != udp.ErrAgain && !errors.Is(err, verbs.ErrClosed) { //nolint:errorlint // as it is
				r.failed.Add(1)
			}
			r.sendDelayed()
			return err
		}
		r.dev.mu.Lock()
		r.take(hold)
		r.dev.mu.Unlock()
		if !r.batch.More() {
			break
		}
	}
	return nil
}

// sendDelayed sends the delayed acknowledgements.
func (r *receiver) sendDelayed() {
	if r.delayed {
		r.dev.mu.Lock()
		r.dev.sender.sendDelayed()
		r.dev.mu.Unlock()
		r.delayed = false
	}
}

// take gives the datagrams of the batch to their queue pairs. Call it with both locks.
func (r *receiver) take(hold bool) {
	d := r.dev
	packetsOrder()
	now := d.now()
	beginLanding()
	received := r.batch.Received()
	for i := range received {
		r.packet(now, &received[i])
	}
	endLanding()
	d.sender.sendDelayed()
	r.delayed = false
	for i, q := range r.dirty {
		q.touched = false
		if hold && len(received) <= fewPackets && q.engine.OwesAckAlone() {
			d.sender.delayAck(q)
			r.delayed = true
		} else {
			q.transmit()
		}
		r.dirty[i] = nil
	}
	r.dirty = r.dirty[:0]
	d.sender.servePostponed()
}

// packet checks a datagram and gives it to its queue pair. A datagram that is broken, or not from
// the queue pair's peer, is counted and dropped. Strangers get no answer.
func (r *receiver) packet(now int64, g *udp.Datagram) {
	d, h := r.dev, &r.header
	if d.down {
		d.counts.LinkDown++
		return
	}
	payload, err := wire.Parse(g.Data, h)
	if err != nil {
		d.counts.Malformed++
		return
	}
	h.Marked = g.ECN == udp.CE
	q := d.qps.Find(h.DestQP)
	if q == nil || !q.core.Receptive() || h.PKey&0x7fff != 0x7fff {
		d.counts.NoQP++
		return
	}
	if !q.isPeer(g.From) {
		d.counts.Strangers++
		return
	}
	if !q.intact(g) {
		d.counts.BadICRC++
		return
	}
	if h.Opcode.IsRequest() && q.engine.IsNear(h) {
		d.arrived(q.path.share, now, max(len(payload), leastCost))
	}
	q.engine.Receive(now, h, payload)
	if granted, ok := q.engine.Granted(); ok {
		q.path.share.grant(q, now, granted)
	}
	if q.peerPort == 0 && q.engine.IsOurs() { // this packet has revealed it
		q.peerPort = g.From.Port()
	}
	if !q.touched {
		q.touched = true
		r.dirty = append(r.dirty, q)
	}
}

// isPeer reports whether a packet comes from the peer. A peer that receives at RoCEv2's port may
// send from any port. An end of this package keeps its source port: once the peer is known to be
// one, a packet from another port comes from another process of its host. If the peer's GID names a
// port, that holds from the start.
func (q *QP) isPeer(from netip.AddrPort) bool {
	peer := q.path.peer
	switch {
	case from.Addr() != peer.Addr():
		return false
	case peer.Port() != Port:
		return from.Port() == peer.Port()
	}
	return q.peerPort == 0 || from.Port() == q.peerPort
}

// intact checks the ICRC, which covers the identification of an IPv4 packet. Sockets do not show
// that field. From an end of this package it is 0, or the packet's place in a burst. From others it
// is solved for, so one wrong packet in 65,536 passes instead of one in four billion.
//
// A peer on the same host may have left it out before this end knows it as one of this package.
func (q *QP) intact(g *udp.Datagram) bool {
	p := &q.path
	if p.sameHost && !q.dev.cfg.Strict && wire.HasNoICRC(g.Data) {
		return true
	}
	if port := g.From.Port(); port != p.inPort {
		p.in, p.inPort = wire.NewFlow(g.From, q.dev.local), port
	}
	if p.in.Check(uint16(g.Index), g.Data) {
		return true
	}
	if !g.From.Addr().Is4() {
		return false
	}
	id, ok := p.in.SolveID(g.Data)
	return ok && (id < udp.MaxSegments || !q.engine.IsOurs())
}
