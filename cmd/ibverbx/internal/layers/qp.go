package layers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// recvBit distinguishes the IDs of receives from those of sends.
const recvBit = 1 << 63

// QueuePair is an end of one virtual queue pair, without a layer above it.
type QueuePair struct {
	base
	VQP       *ibverbx.VirtualQP
	Succeeded uint64 // sends, in all rounds

	cq      *ibverbx.VirtualCQ
	recvMax int // receives outstanding at most
	closed  bool

	sends []ibverbx.SendWR // reused by posts
	recvs []ibverbx.RecvWR
	wcs   []ibverbx.WC
	qpRound
}

// qpRound is the progress of a queue pair's end in a round. It counts the round's messages.
//
// Invariant: acked <= done <= posted <= done+task.Window;
// notified <= received <= expected <= task.Take.
type qpRound struct {
	failed bool // a request of this end failed: nothing more is posted

	// These count sends. The ID of a request is the number of its message.

	posted int
	done   int // reported
	acked  int // of done, those that succeeded

	// These count receives. Their IDs also have recvBit.

	expected int // receives posted
	received int // of them, those reported
	notified int // of received, those that succeeded
}

const (
	// qpBatch is how many requests are posted in one call.
	qpBatch = 32
	// qpPolled is how many completions are polled in one call.
	qpPolled = 64
)

func newQueuePair(cfg *Config) (*QueuePair, error) {
	vqp, err := ibverbx.Open(cfg.Devices, cfg.QP)
	if err != nil {
		return nil, err
	}
	q := &QueuePair{
		base: base{Config: cfg}, VQP: vqp, cq: vqp.CQ(), recvMax: 2 * cfg.Window,
		sends: make([]ibverbx.SendWR, qpBatch), recvs: make([]ibverbx.RecvWR, qpBatch),
		wcs: make([]ibverbx.WC, qpPolled),
	}
	if vqp.DataRails() == 1 {
		q.recvMax = cfg.QP.MaxMsgCntPerQP // pass-through refuses more
	}
	if err := errors.Join(q.register(vqp.Domain()), q.show(nil, q.cq)); err != nil {
		return nil, errors.Join(err, q.Close(context.Background()))
	}
	return q, nil
}

// Old returns the result of message i's atomic operation.
func (q *QueuePair) Old(i int) uint64              { return binary.NativeEndian.Uint64(q.Dst[q.at(i):]) }
func (q *QueuePair) arm() (<-chan struct{}, error) { return q.cq.Events(), q.cq.Arm() }

// Card returns the argument for the peer's Connect.
func (q *QueuePair) Card() (c Card, err error) {
	c = q.memoryCard()
	c.QP, err = q.VQP.Card()
	return c, err
}

// Connect connects to the queue pair whose Card returned peer.
func (q *QueuePair) Connect(peer *Card) error {
	q.remote.src, q.remote.dst = peer.Src, peer.Dst
	return q.VQP.Connect(peer.QP)
}

func (q *QueuePair) begin(t *Task) error {
	q.next(t)
	q.broken, q.qpRound = nil, qpRound{}
	return q.postReceives()
}

// postReceives posts the receives that the round still needs.
func (q *QueuePair) postReceives() error {
	for {
		n := min(q.task.Take-q.expected, q.recvMax-(q.expected-q.received), len(q.recvs))
		if n <= 0 || n < min(len(q.recvs), q.task.Take-q.expected, q.recvMax)/2 {
			return nil // too few for a post yet
		}
		for i := range n {
			wr := ibverbx.RecvWR{ID: recvBit | uint64(q.expected+i)}
			if q.Shape.Op == Send {
				wr.Local = q.dst.Slice(q.at(q.expected+i), uint64(q.task.Round.Size))
			}
			q.recvs[i] = wr
		}
		k, err := q.VQP.PostRecv(q.recvs[:n]...)
		q.expected += k
		if errors.Is(err, ibverbx.ErrFailed) {
			q.failed = true
			return q.failure()
		}
		if err != nil {
			return err
		}
	}
}

// failure continues an end that has failed: it waits until all its posted requests are reported.
func (q *QueuePair) failure() error {
	if q.done < q.posted {
		return nil
	}
	return ErrRequests
}

// at returns the offset of message i in the target.
func (q *QueuePair) at(i int) uint64 { return uint64(q.task.Round.Target(i)) }

// imm returns the immediate of message i.
func (q *QueuePair) imm(i int) uint32 { return uint32(q.task.Round.Number)<<16 ^ uint32(i) }

// post posts messages, as many as the window and the NIC take. The NIC need not take all at once:
// it gets the rest when something has moved, or a moment later.
func (q *QueuePair) post(i, n int) (int, error) {
	if q.failed {
		if err := q.failure(); err != nil {
			return 0, err
		}
		return 0, transport.ErrNoResource
	}
	n = min(n, q.task.Window-(q.posted-q.done), len(q.sends))
	if n <= 0 {
		return 0, transport.ErrNoResource
	}
	batch := q.sends[:n]
	for k := range batch {
		q.fill(&batch[k], i+k)
	}
	k, err := q.VQP.PostSend(batch...)
	q.posted += k
	if k == n {
		return k, err
	}
	switch {
	case errors.Is(err, ibverbx.ErrFailed) || errors.Is(err, verbs.ErrDeviceGone):
		q.failed = true
	case verbs.IsTransient(err):
	default:
		return k, err
	}
	return k, transport.ErrNoResource
}

// fill fills in the request for message i.
func (q *QueuePair) fill(wr *ibverbx.SendWR, i int) {
	size, from := uint64(q.task.Round.Size), uint64(q.task.Round.Source(i))
	wr.ID = uint64(i)
	wr.Opcode = q.Shape.opcode
	wr.Flags = verbs.SendSignaled
	wr.Imm = q.imm(i)
	switch q.Shape.Op {
	case Read:
		wr.Local = q.dst.Slice(q.at(i), size)
		wr.Remote = q.remote.src.Slice(from, size)
	case FetchAdd, CmpSwap:
		wr.Local = q.dst.Slice(q.at(i), size)
		wr.Remote = q.remote.dst.Slice(uint64(q.Tail), size)
		held, then := q.task.Round.Counter(i), q.task.Round.Counter(i+1)
		if wr.CompareAdd = then - held; q.Shape.Op == CmpSwap {
			wr.CompareAdd, wr.Swap = held, then
		}
	default:
		wr.Local, wr.Inline = q.src.Slice(from, size), nil
		if size <= uint64(q.Inline) {
			wr.Local, wr.Inline = ibverbx.Segment{}, q.Src[from:from+size]
			wr.Flags |= verbs.SendInline
		}
		wr.Remote = q.remote.dst.Slice(q.at(i), size)
	}
}

// sent handles the completion of a message.
func (q *QueuePair) sent(wc *ibverbx.WC) error {
	if wc.ID != uint64(q.done) {
		return fmt.Errorf("%w: end %s: send completion of message %d came in place of %d", ErrVerify,
			q.Name, wc.ID, q.done)
	}
	if wc.Status != verbs.StatusSuccess {
		q.done++
		q.failed = true
		return nil
	}
	if q.acked < q.done {
		return fmt.Errorf("%w: end %s: message %d succeeded behind one that had failed", ErrVerify, q.Name,
			wc.ID)
	}
	q.done++
	q.acked++
	q.Succeeded++
	return nil
}

// came handles the completion of a receive.
func (q *QueuePair) came(wc *ibverbx.WC) error {
	i := q.received
	switch {
	case wc.ID != recvBit|uint64(i):
		return fmt.Errorf("%w: end %s: receive completion %d came in place of %d", ErrVerify, q.Name,
			wc.ID&^recvBit, i)
	case wc.Status != verbs.StatusSuccess:
		q.received++
		q.failed = true
		return nil
	case q.Shape.Op == WriteImm && (wc.Flags&verbs.WCWithImm == 0 || wc.Imm != q.imm(i)):
		return fmt.Errorf("%w: end %s: message %d came with immediate %#x, sent was %#x", ErrVerify,
			q.Name, i, wc.Imm, q.imm(i))
	case q.Shape.Op == Send && wc.ByteLen != uint64(q.task.Round.Size):
		return fmt.Errorf("%w: end %s: message %d has %d bytes, sent were %d", ErrVerify, q.Name, i,
			wc.ByteLen, q.task.Round.Size)
	}
	q.received++
	q.notified++
	return nil
}

func (q *QueuePair) completed() (bool, error) {
	_, err := q.arrived()
	return q.done == q.posted && !q.failed, err
}

func (q *QueuePair) arrived() (int, error) {
	if q.broken != nil {
		return 0, q.broken
	}
	if q.failed {
		return q.notified, q.failure()
	}
	return q.notified, nil
}

// progress polls, and returns how many completions it found.
func (q *QueuePair) progress() int {
	if q.task.Take > q.expected && !q.failed {
		if err := q.postReceives(); err != nil && q.broken == nil {
			q.broken = err
		}
	}
	n, err := q.poll()
	if err != nil && q.broken == nil {
		q.broken = err
	}
	return n
}

// poll handles up to a batch of completions: all of them, even if one is wrong, because each must
// be counted. The error is that of the poll; broken has the error of a completion.
func (q *QueuePair) poll() (int, error) {
	n, err := q.cq.Poll(q.wcs)
	for i := range n {
		handle := q.sent
		if q.wcs[i].ID&recvBit != 0 {
			handle = q.came
		}
		if wrong := handle(&q.wcs[i]); wrong != nil && q.broken == nil {
			q.broken = wrong
		}
	}
	return n, err
}

// Drain handles all waiting completions, outside of a round, and reports whether there were any.
func (q *QueuePair) Drain() (moved bool, err error) {
	q.broken = nil
	for {
		n, polling := q.poll()
		if moved = moved || n > 0; n == 0 || polling != nil {
			return moved, q.broken // an error of the poll means closed and drained, or that a NIC is gone
		}
	}
}

// Close closes the queue pair and its memory: outstanding requests come back as flushed. Afterwards
// each request must have had its completion, in any order.
func (q *QueuePair) Close(ctx context.Context) error {
	if q.closed {
		return nil
	}
	q.closed = true
	closing := q.VQP.Close()
	_, _ = q.Drain()
	closing = errors.Join(closing, q.base.Close(ctx))
	if q.done != q.posted || q.received != q.expected {
		closing = errors.Join(closing, fmt.Errorf("%w: end %s, at its end: of %d sends %d were reported, of "+
			"%d receives %d", ErrVerify, q.Name, q.posted, q.done, q.expected, q.received))
	}
	return closing
}
