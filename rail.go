package ibverbx

import (
	"ibverbx/verbs"
)

// rail is one physical queue pair of a virtual one: its device, its credit counters, and the batch
// of work requests that the next flush posts on it.
//
// Invariant: 0 <= inUse <= limit; every work request that is staged or on the NIC and not completed
// counts in inUse, so a staged one always finds a free slot. 0 <= recvs <= recvLimit likewise for
// the receive queue.
type rail struct {
	vqp     *VirtualQP
	qp      verbs.QP
	num     uint32 // of qp
	idBits  uint64 // the rail's index, where a work-request id carries it
	device  uint8  // the local DeviceID: picks local keys
	psn     uint32 // first packet sequence number that it sends
	peerDev uint8  // the peer's DeviceID: picks remote keys
	closed  bool
	maxSGE  int // pieces of memory one fragment may have

	inUse int // send slots taken
	limit int // send slots there are, as far as the peer's credits go
	slots int // send slots there are

	// dirty: plain data went out since the last numbered message. A notification must be preceded
	// on this rail by a marker that proves it has arrived.
	dirty bool

	// shut: it has refused a receive for good after the virtual queue pair had failed. It is asked
	// no more.
	shut bool

	listed bool // in the virtual queue pair's list of those that have something staged

	recvs     int // receives posted
	recvLimit int // receives there may be
	owed      int // credits to post again
	credited  uint64
	inbox     creditInbox

	batch sendBatch
	stats railCounters
}

// railCounters are the rail's share of [Stats].
type railCounters struct {
	bytes, fragments, notifies, errors, refused uint64
}

func (r *rail) index() int { return wridRail(r.idBits) }

func (r *rail) hasRoom() bool { return r.inUse < r.limit }

// sendBatch is what waits to be posted on a rail: work requests and their scatter lists, made once
// and reused. What a post refuses for now stays at the front.
//
// Invariant: 0 <= head <= tail <= len(wrs); wrs[head:tail] waits. wrs[i].SGL is empty or lies in
// sges[i*width:(i+1)*width].
type sendBatch struct {
	wrs        []verbs.SendWR
	sges       []verbs.SGE
	width      int
	head, tail int
}

func newSendBatch(size, width int) sendBatch {
	return sendBatch{wrs: make([]verbs.SendWR, size), sges: make([]verbs.SGE, size*width), width: width}
}

// add opens the next work request. Its fields are as their last user left them; setSGL or setInline
// gives it its payload.
func (b *sendBatch) add() *verbs.SendWR {
	if b.tail == len(b.wrs) {
		b.compact()
	}
	wr := &b.wrs[b.tail]
	b.tail++
	return wr
}

// setSGL gives the newest work request a scatter list of n elements, for the caller to fill.
func (b *sendBatch) setSGL(wr *verbs.SendWR, n int) []verbs.SGE {
	if wr.Inline != nil {
		wr.Inline = nil
	}
	// The comparison saves the write barrier of a pointer store in the common case.
	if len(wr.SGL) != n {
		i := (b.tail - 1) * b.width
		wr.SGL = b.sges[i : i+n : i+b.width]
	}
	return wr.SGL
}

// setInline gives the newest work request its payload itself.
func (b *sendBatch) setInline(wr *verbs.SendWR, p []byte) {
	wr.SGL = nil
	wr.Inline = p
}

// compact moves what waits to the front. It is needed only after a post was refused for now.
func (b *sendBatch) compact() {
	if b.head == 0 {
		return
	}
	head, tail := b.head, b.tail
	b.head, b.tail = 0, 0
	for i := head; i < tail; i++ {
		b.move(i)
	}
}

// move makes wrs[i] the newest work request. Its scatter list moves along: list i belongs to
// position i.
func (b *sendBatch) move(i int) {
	to, from := &b.wrs[b.tail], &b.wrs[i]
	b.tail++
	if to == from {
		return
	}
	list := b.sges[(b.tail-1)*b.width : (b.tail-1)*b.width+len(from.SGL) : b.tail*b.width]
	copy(list, from.SGL)
	*to = *from
	to.SGL = list
	from.SGL, from.Inline = nil, nil
}

// drop removes the waiting work requests for which lost returns true.
func (b *sendBatch) drop(lost func(id uint64) bool) {
	head, tail := b.head, b.tail
	b.head, b.tail = 0, 0
	for i := head; i < tail; i++ {
		if !lost(b.wrs[i].ID) {
			b.move(i)
		}
	}
}

// staged is how many work requests wait to be posted. The rest of the rail's inUse is on the NIC.
func (r *rail) staged() int { return r.batch.tail - r.batch.head }

// post hands the batch to the queue pair. A transient refusal (ErrQueueFull, ErrNoMemory) leaves
// the rest staged.
func (r *rail) post() error {
	b := &r.batch
	n, err := r.qp.PostSend(b.wrs[b.head:b.tail])
	b.head += n
	if b.head == b.tail {
		b.head, b.tail = 0, 0
	}
	return err
}

// creditInbox puts the arrivals of one rail back into the order in which its receives were posted,
// which is the order in which the peer sent them. Providers report them in that order anyway, and
// then nothing is kept here.
//
// Invariant: next is the count of the oldest credit not yet handled; slot c&mask holds the arrival
// on credit c, for next < c < next+len(slots).
type creditInbox struct {
	next  uint64
	slots []creditArrival
	mask  uint64
	// pending is a numbered message whose user immediate is still to come, right behind it.
	pending    arrival
	pendingNum uint32
	awaitsImm  bool
}

type creditArrival struct {
	imm, bytes uint32
	taken      bool
}
