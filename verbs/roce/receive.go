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

// receiver takes what arrives at a NIC's socket. Whoever polls an empty completion queue helps;
// when nobody polls, a goroutine that sleeps in Go's poller does it.
//
// It has a lock of its own, which is taken before the NIC's: who polls a queue that stays empty
// never has that one, and so keeps nobody from posting.
type receiver struct {
	dev   *Device
	ended chan struct{}

	mu      sync.Mutex // guards what follows
	batch   batch
	header  wire.Header
	dirty   []*QP // queue pairs that got packets in this round
	delayed bool  // acknowledgements were delayed in the round before
	empty   int   // how often in a row who polls has found nothing

	offer func() // offers the processor; tests count it

	// polled is when somebody last polled an empty queue and is likely to go on, in the NIC's time;
	// pollsNow while what that has begun goes on.
	polled  atomic.Int64
	napping atomic.Bool // the goroutine keeps out of the way
	wake    chan struct{}
	nap     *time.Timer

	// failed is how often the socket has refused to say what has arrived: [Counters].RecvErrors.
	failed atomic.Uint64
}

const (
	// While queues are polled, the goroutine keeps out of the way: it looks again after idleAfter,
	// and sleeps in the poller only when nobody has polled for so long.
	idleAfter = 200 * time.Microsecond
	// afterError is how long it waits when the socket fails, so that it does not spin.
	afterError = 10 * time.Millisecond
	// rounds bounds how many batches are received in a row.
	rounds = 4
	// Who has polled so often in a row for nothing, some fifty microseconds, may keep the processor
	// from the peer that it waits for: it offers it now and then. Where nobody wants it, an offer
	// costs less than a microsecond; on a host with more to do than processors, not to offer cost
	// four fifths of the bandwidth.
	patience   = 100
	offerEvery = 4
	// Other goroutines get the processor less often: Go wakes a thread each time, and the caller
	// may go on on that one.
	goroutinesEvery = 16 * offerEvery
	// longPost is how long a post takes that has sent a window or so, nanoseconds.
	longPost = int64(idleAfter) / 4
	// pollsNow is later than any time.
	pollsNow = math.MaxInt64
	// fewPackets is how many may have arrived in a round whose acknowledgements wait for the
	// program's answer. They leave with that, or when it polls again; if it does neither, the
	// goroutine sends them. In the other order the answer would be a microsecond or two later.
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

// isPolled reports whether somebody polls who receives what arrives.
func (r *receiver) isPolled() bool { return r.dev.now()-r.polled.Load() < int64(idleAfter) }

// stopKeepingOut tells the goroutine that who polled so far waits now.
func (r *receiver) stopKeepingOut() {
	r.polled.Store(-int64(idleAfter))
	if r.napping.Load() {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// help receives what there is, unless somebody does. goesOn says that the caller will be back soon.
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
	// One batch: then the caller's queue is not empty any more, or it is back soon.
	err := r.receiveLocked(1, goesOn && r.napping.Load())
	if goesOn { // unless somebody has begun to wait since
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

// helpOthers receives for the other NICs of the provider where the process has one processor. Go
// looks for what has arrived when it has nothing else to run, and every ten milliseconds: their
// goroutines would wait for that while this one polls.
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

// posting is what endPost has to know of the post that beginPost began.
type posting struct {
	polled, began int64 // when the program had polled last, and began to post
	polls         bool  // it is a program that polls
}

// beginPost notes that a program posts. If it is one that polls, the goroutine keeps out until
// endPost is called: posting may take longer than the goroutine has patience.
func (r *receiver) beginPost() posting {
	p := posting{polled: r.polled.Load(), began: r.dev.now()}
	p.polls = p.began-p.polled < int64(idleAfter) && r.polled.CompareAndSwap(p.polled, pollsNow)
	return p
}

// endPost notes that it has posted. A long post, which has sent much, counts as a poll. Short ones
// do not: whoever posts and never polls would keep out the goroutine that receives for it.
func (r *receiver) endPost(p posting) {
	if !p.polls {
		return
	}
	if now := r.dev.now(); now-p.began >= longPost {
		p.polled = now
	}
	r.polled.CompareAndSwap(pollsNow, p.polled)
}

// receive receives what there is, and sends what it calls for. It locks.
func (r *receiver) receive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.receiveLocked(rounds, false)
}

// receiveUntilPolled is receive for the goroutine: it does not go on when somebody polls again.
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

// receiveLocked receives up to so many batches, until nothing is left. The acknowledgements that
// the last one calls for may be delayed until it is called again.
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
}

// packet checks a datagram and gives it to its queue pair. What is not for one of them, from its
// peer and whole, is counted and dropped: there is no answer to strangers.
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
	q := d.qps.Find(h.DestQP)
	if q == nil || !q.core.Receptive() || h.PKey&0x7fff != 0x7fff {
		d.counts.NoQP++
		return
	}
	if !q.isPeer(g.From, h) {
		d.counts.Strangers++
		return
	}
	if !q.intact(g) {
		d.counts.BadICRC++
		return
	}
	q.engine.Receive(now, h, payload)
	if !q.touched {
		q.touched = true
		r.dirty = append(r.dirty, q)
	}
}

// isPeer reports whether a packet comes from where the peer is. NICs and rdma_rxe send from a port
// of their choice, ends of this package from the one that they receive at: what comes from another
// port announces nothing, and once the peer is known to be such an end, or is where no other can
// be, it is another process of its host.
func (q *QP) isPeer(from netip.AddrPort, h *wire.Header) bool {
	peer := q.path.peer
	if from == peer {
		return true
	}
	h.Reserved = 0
	return from.Addr() == peer.Addr() && peer.Port() == Port && !q.engine.IsOurs()
}

// intact checks the ICRC. The identification of an IPv4 packet cannot be seen. From an end of this
// package it is 0, or the place in a burst; from others it is solved for, which lets one wrong
// packet in 65,536 pass that would otherwise be one in four billion.
func (q *QP) intact(g *udp.Datagram) bool {
	p := &q.path
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
