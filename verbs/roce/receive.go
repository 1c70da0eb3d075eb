package roce

import (
	"errors"
	"sync/atomic"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
)

// receiver takes what arrives at a NIC's socket. Whoever polls an empty completion queue helps;
// when nobody polls, a goroutine that sleeps in Go's poller does it.
type receiver struct {
	dev    *Device
	batch  *udp.Batch
	header wire.Header
	dirty  []*QP // queue pairs that got packets in this round
	ended  chan struct{}

	// polled is when somebody last polled an empty queue, in the NIC's time.
	polled atomic.Int64
}

// While queue pairs are polled, the goroutine keeps out of the way: it looks again after idleAfter,
// and sleeps in the poller only when nobody has polled for so long.
const idleAfter = 200 * time.Microsecond

// rounds bounds how many batches are received with the lock held.
const rounds = 4

func (r *receiver) init(d *Device) {
	r.dev, r.batch, r.ended = d, d.conn.NewBatch(0, 0), make(chan struct{})
}

// wait waits until the goroutine has ended, after the socket was closed.
func (r *receiver) wait() { <-r.ended }

// serve receives until the socket is closed.
func (r *receiver) serve() {
	defer close(r.ended)
	d := r.dev
	for {
		if err := d.conn.WaitReadable(time.Time{}); errors.Is(err, verbs.ErrClosed) {
			return
		}
		for d.now()-r.polled.Load() < int64(idleAfter) {
			time.Sleep(idleAfter)
		}
		d.mu.Lock()
		r.receive()
		d.mu.Unlock()
	}
}

// help receives what there is, unless somebody does.
func (r *receiver) help() {
	d := r.dev
	if !d.mu.TryLock() {
		return
	}
	r.polled.Store(d.now())
	r.receive()
	d.mu.Unlock()
}

// receive receives what there is, and sends what it calls for. Call it locked.
func (r *receiver) receive() {
	for range rounds {
		n, err := r.batch.Recv()
		if err != nil || n == 0 {
			return
		}
		r.take()
	}
}

// take gives the datagrams of the batch to their queue pairs.
func (r *receiver) take() {
	d := r.dev
	packetsOrder()
	now := d.now()
	for i := range r.batch.Datagrams {
		r.packet(now, &r.batch.Datagrams[i])
	}
	for i, q := range r.dirty {
		q.touched = false
		q.transmit()
		r.dirty[i] = nil
	}
	r.dirty = r.dirty[:0]
}

// packet checks a datagram and gives it to its queue pair. What is not for one of them, from its
// peer and whole, is counted and dropped: there is no answer to strangers.
func (r *receiver) packet(now int64, g *udp.Datagram) {
	d, h := r.dev, &r.header
	payload, err := wire.Parse(g.Data, h)
	if err != nil || d.core.Closed != "" || d.down {
		d.counts.Malformed++
		return
	}
	q := d.qps.Find(h.DestQP)
	if q == nil || !q.core.Receptive() || h.PKey&0x7fff != 0x7fff {
		d.counts.NoQP++
		return
	}
	if g.From.Addr() != q.path.peer.Addr() {
		d.counts.Strangers++
		return
	}
	ours := g.From.Port() == q.path.peer.Port()
	if !q.intact(g, ours) {
		d.counts.BadICRC++
		return
	}
	if ours && !q.engine.IsOurs() {
		q.engine.PeerIsOurs() // NICs and rdma_rxe send from the ports 0xc000 and up
	}
	q.engine.Receive(now, h, payload)
	if !q.touched {
		q.touched = true
		r.dirty = append(r.dirty, q)
	}
}

// intact checks the ICRC. The identification of an IPv4 packet cannot be seen. From an end of this
// package it is 0, or the place in a burst; from others it is solved for, which lets one wrong
// packet in 65,536 pass that would otherwise be one in four billion.
func (q *QP) intact(g *udp.Datagram, ours bool) bool {
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
	return ok && (!ours || id < udp.MaxSegments)
}
