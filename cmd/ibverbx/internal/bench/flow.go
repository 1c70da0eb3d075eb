package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/rendezvous"
	"ibverbx/verbs"
)

// Failures of a cell.
var (
	// ErrVerify: what arrived is not what was sent, or completions came out of order or in the
	// wrong number.
	ErrVerify = errors.New("verification failed")
	// ErrStalled: nothing completed for so long that nothing more is expected.
	ErrStalled = errors.New("no completion")
	// errFailed: requests completed unsuccessfully; the virtual queue pair says why.
	errFailed = errors.New("requests failed")
)

// flow is the messages of one direction, in rounds. While a latency is measured by events, fields
// of the sending side belong to the goroutine of the end from, those of the receiving side to that
// of the end to. Where another process drives one of the ends, each has its side of the flow.
//
// Invariant: done <= posted <= limit, posted-done <= tx; received <= expected <= limit. The numbers
// count the round's messages.
type flow struct {
	op       Op
	opcode   verbs.Opcode
	size     int
	slots    int // message i of a round goes to slot i modulo slots
	tx       int // outstanding at most
	mem      *memory
	from, to *end             // nil: another process drives it
	src, dst []byte           // what is compared; dst is nil when that is another process's to do
	target   []byte           // atomics: where the counter is, nil likewise
	local    *ibverbx.MR      // of from: what is read or written there
	remote   ibverbx.RemoteMR // of to
	round    uint64
	limit    int

	// Sending side.
	faults  *faultPlan // of the column, on end a only
	before  int        // messages posted in earlier timed rounds of the column
	posted  int
	done    int
	acked   int // of done, those that succeeded
	brake   *atomic.Bool
	closed  bool // nothing more will be posted
	failed  bool
	refused bool   // the NIC has refused the next message for now
	counter uint64 // atomics: what the target's counter holds
	expect  []uint64
	// what this one answers, one message for one, when this process drives the answering end alone
	echoes *flow

	// Receiving side.
	expected int // receives posted
	received int
	notified int  // of received, those that succeeded
	recvMax  int  // receives that may be outstanding
	early    bool // compare each message when its notification comes, which takes time
	total    int  // messages that will come
}

// newFlow makes the messages of one size from one end to the other.
func newFlow(p *Params, r *rig, m *memory, from, to int, size int) *flow {
	opcode, _ := p.Op.opcode() // validated
	ends := [2]*end{r.a, r.b}
	f := &flow{op: p.Op, opcode: opcode, size: size, slots: m.slots(size), mem: m, from: ends[from],
		to: ends[to]}
	fromMem, toMem := &m.ends[from], &m.ends[to]
	f.src, f.dst, f.remote = fromMem.src, toMem.dst, r.regions[to].Dst
	switch {
	case p.Op == Read:
		f.src, f.dst, f.remote = toMem.src, fromMem.dst, r.regions[to].Src
	case p.Op.Atomic():
		f.src, f.dst, f.target = nil, fromMem.dst, toMem.dst
		f.expect = make([]uint64, m.slots(size))
		if f.target != nil {
			f.counter = f.held()
		}
	}
	if f.from != nil {
		f.local = f.from.src
		if p.Op == Read || p.Op.Atomic() {
			f.local = f.from.dst
		}
	}
	f.tx = min(p.TxDepth, m.longest(p, size))
	if !p.unknownSpeed() {
		// software NICs would copy several messages to one place at a time, which is a data race
		f.tx = min(f.tx, f.slots)
	}
	f.recvMax = 2 * f.tx
	if r.here()[0].vqp.DataRails() == 1 {
		f.tx = min(f.tx, p.Depth) // pass-through refuses more
		f.recvMax = p.Depth
	}
	return f
}

// counterAt is where the counter of atomics lies.
func (f *flow) counterAt() int { return f.mem.behind() }

// held is what the counter of atomics holds.
func (f *flow) held() uint64 { return binary.NativeEndian.Uint64(f.target[f.counterAt():]) }

// compares says whether this process has what arrives, and compares it.
func (f *flow) compares() bool { return f.dst != nil }

// start begins a round of up to limit messages.
func (f *flow) start(round uint64, limit int, brake *atomic.Bool) {
	f.round, f.limit, f.brake = round, limit, brake
	f.posted, f.done, f.expected, f.received = 0, 0, 0, 0
	f.acked, f.notified = 0, 0
	f.closed, f.failed, f.refused = false, false, false
	f.total = limit
}

// pump posts what may be outstanding. It reports whether it posted anything.
func (f *flow) pump() (bool, error) {
	posted := false
	for !f.closed {
		if f.posted == f.limit || f.brake.Load() {
			f.closed = true
			f.total = f.posted
			break
		}
		n := min(f.limit-f.posted, f.tx-(f.posted-f.done), len(f.from.batch))
		if f.echoes != nil {
			n = min(n, f.echoes.received-f.posted)
		}
		if f.faults != nil {
			if n = f.faults.limit(f.before+f.posted, n); n == 0 && f.posted-f.done < f.tx {
				if err := f.faults.strike(f.before + f.posted); err != nil {
					return posted, err
				}
				continue
			}
		}
		if n <= 0 {
			break
		}
		k, err := f.post(n)
		posted = posted || k > 0
		if err != nil || k < n {
			return posted, err
		}
	}
	return posted, nil
}

// post posts the next n messages, and says how many the NIC has taken. It need not take all at
// once: it is offered the rest when something has moved, or a moment later.
func (f *flow) post(n int) (int, error) {
	batch := f.from.batch[:n]
	for i := range batch {
		f.fill(&batch[i], f.posted+i)
	}
	k, err := f.from.vqp.PostSend(batch...)
	f.posted += k
	f.from.tally.sends.Accepted += uint64(k)
	f.refused = k < n && verbs.IsTransient(err)
	if k < n && f.op.Atomic() {
		f.counter = f.expect[f.posted] // the rest has not counted
	}
	switch {
	case errors.Is(err, ibverbx.ErrFailed) || errors.Is(err, verbs.ErrDeviceGone):
		f.stop()
		return k, nil
	case f.refused:
		return k, nil
	}
	return k, err
}

// stop ends the round after a failure. What is outstanding still completes.
func (f *flow) stop() {
	f.failed, f.closed, f.refused = true, true, false
	f.total = f.posted
}

// fill makes message i of the round.
func (f *flow) fill(wr *ibverbx.SendWR, i int) {
	size, slot := uint64(f.size), f.offset(i)
	wr.ID = uint64(i)
	wr.Opcode = f.opcode
	wr.Flags = verbs.SendSignaled
	wr.Imm = uint32(f.round)<<16 ^ uint32(i)
	switch f.op {
	case Read:
		wr.Local = f.local.Slice(slot, size)
		wr.Remote = f.remote.Slice(uint64(f.mem.source(f.round, i%f.slots, f.size)), size)
	case FetchAdd, CmpSwap:
		wr.Local = f.local.Slice(slot, size)
		wr.Remote = f.remote.Slice(uint64(f.counterAt()), size)
		f.expect[i] = f.counter
		if f.op == FetchAdd {
			wr.CompareAdd = 2*(f.round+uint64(i)) + 1
			f.counter += wr.CompareAdd
		} else {
			wr.CompareAdd, wr.Swap = f.counter, f.counter+2*(f.round+uint64(i))+1
			f.counter = wr.Swap
		}
	default:
		wr.Local = f.local.Slice(uint64(f.mem.source(f.round, i%f.slots, f.size)), size)
		wr.Remote = f.remote.Slice(slot, size)
	}
}

// offset is where in the target message i of the round goes.
func (f *flow) offset(i int) uint64 { return uint64(i%f.slots) * uint64(f.size) }

// sent takes in a completion of the sending side.
func (f *flow) sent(wc *ibverbx.WC) error {
	if wc.ID != uint64(f.done) {
		return fmt.Errorf("%w: end %s: send completion of message %d came in place of %d", ErrVerify,
			f.from.name, wc.ID, f.done)
	}
	f.done++
	if wc.Status == verbs.StatusSuccess {
		f.acked++
	} else {
		f.stop()
	}
	return nil
}

// credit posts the receives that the round still needs.
func (f *flow) credit() error {
	if !f.op.notifies() || f.to == nil {
		return nil
	}
	for {
		n := min(f.limit-f.expected, f.recvMax-(f.expected-f.received), len(f.to.recvs))
		if n <= 0 || n < min(len(f.to.recvs), f.limit-f.expected, f.recvMax)/2 {
			return nil // not worth a post yet
		}
		for i := range n {
			wr := ibverbx.RecvWR{ID: recvBit | uint64(f.expected+i)}
			if f.op == Send {
				wr.Local = f.to.dst.Slice(f.offset(f.expected+i), uint64(f.size))
			}
			f.to.recvs[i] = wr
		}
		k, err := f.to.vqp.PostRecv(f.to.recvs[:n]...)
		f.expected += k
		f.to.tally.recvs.Accepted += uint64(k)
		if errors.Is(err, ibverbx.ErrFailed) {
			return errFailed
		}
		if err != nil {
			return err
		}
	}
}

// arrived takes in a completion of the receiving side.
func (f *flow) arrived(wc *ibverbx.WC) error {
	i := f.received
	switch {
	case wc.ID != recvBit|uint64(i):
		return fmt.Errorf("%w: end %s: receive completion %d came in place of %d", ErrVerify, f.to.name,
			wc.ID&^recvBit, i)
	case wc.Status != verbs.StatusSuccess:
		f.received++
		return errFailed
	case f.op == WriteImm && (wc.Flags&verbs.WCWithImm == 0 || wc.Imm != uint32(f.round)<<16^uint32(i)):
		return fmt.Errorf("%w: end %s: message %d came with immediate %#x, sent was %#x", ErrVerify,
			f.to.name, i, wc.Imm, uint32(f.round)<<16^uint32(i))
	case f.op == Send && wc.ByteLen != uint64(f.size):
		return fmt.Errorf("%w: end %s: message %d has %d bytes, sent were %d", ErrVerify, f.to.name, i,
			wc.ByteLen, f.size)
	}
	f.received++
	f.notified++
	if f.early {
		return f.mem.verifySlot(f.dst, f.src, f.round, i, f.size)
	}
	return nil
}

// announced takes in how many messages the other process has sent in the round. There will be no
// more.
func (f *flow) announced(n int) error {
	if n < f.received || n > f.limit {
		return fmt.Errorf("%w: an end says that it sent %d messages in a round of %d, %d of which came",
			rendezvous.ErrProtocol, n, f.limit, f.received)
	}
	f.posted, f.total, f.closed = n, n, true
	return nil
}

// drained says whether every request posted was reported to the sender.
func (f *flow) drained() bool { return f.closed && f.done == f.posted }

// complete says whether the receiver has seen all that it will see.
func (f *flow) complete() bool {
	return !f.op.notifies() || f.received >= f.total
}

// verify compares what the round's messages brought. Both ends are at rest.
func (f *flow) verify() error {
	if f.op.Atomic() {
		return f.verifyAtomics()
	}
	return f.mem.verify(f.dst, f.src, f.round, f.posted, f.size)
}

// verifyAtomics compares each result, which is what the counter held before, and the counter
// itself.
func (f *flow) verifyAtomics() error {
	for i := range f.posted {
		if err := f.verifyAtomic(i); err != nil {
			return err
		}
	}
	if f.target == nil {
		return nil // the other process says what it holds
	}
	return f.checkCounter(f.held())
}

// checkCounter compares what the target's counter holds with what it must.
func (f *flow) checkCounter(got uint64) error {
	if got != f.counter {
		return fmt.Errorf("%w: after round %d the target's counter holds %#x, want %#x", ErrVerify, f.round,
			got, f.counter)
	}
	return nil
}

func (f *flow) verifyAtomic(i int) error {
	if got := binary.NativeEndian.Uint64(f.dst[i*8:]); got != f.expect[i] {
		return fmt.Errorf("%w: %s %d of round %d brought %#x, the counter held %#x", ErrVerify, f.op, i,
			f.round, got, f.expect[i])
	}
	return nil
}
