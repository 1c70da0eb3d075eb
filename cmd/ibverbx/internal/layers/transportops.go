package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"ibverbx"
	"ibverbx/transport"
)

// transportRound is the round under way; begin begins it anew.
type transportRound struct {
	task     Task
	use      Kind
	peers    []peerState
	comp     transport.Completion // what is to complete, in the whole round or of the one message
	counts   bool                 // operations count in comp themselves
	flushing int                  // endpoints whose flush was begun
	idle     bool                 // nothing is outstanding: comp is not in use
	// unflushed is where the one message of a series went that needs a flush to show that it has
	// completed; nil where there is none.
	unflushed *transport.Endpoint
	next      int // message that packs
	one       [1]ibverbx.Segment
	word      [8]byte
	seen      int // messages that have come
}

// peerState is what an endpoint counts of what comes.
type peerState struct {
	index int
	came  int // messages of the round
}

func (e *transportEnd) begin(t *Task) error {
	e.task, e.use = *t, e.kind(t.Round.Size)
	for i := range e.peers {
		e.peers[i].came = 0
	}
	e.seen, e.unflushed = 0, nil
	// A zcopy, a get and an atomic report their completion. What is answered has arrived.
	e.counts = e.use == Zcopy && !e.shape.Seen || e.shape.Reads || e.shape.Atomic
	if e.counts && !t.Alone && t.Send > 0 {
		e.comp.Init(t.Send, nil)
		e.idle = false
	}
	if e.shape.Atomic && len(e.olds) < t.Send {
		e.olds = make([]uint64, t.Send)
	}
	return e.broken
}

func (e *transportEnd) post(i, n int) (int, error) {
	for k := range n {
		if err := e.startOne(i + k); err != nil {
			return k, err
		}
	}
	return n, nil
}

// startOne starts message i.
func (e *transportEnd) startOne(i int) error {
	if e.broken != nil {
		return e.broken
	}
	ep := e.eps[i%e.task.Endpoints]
	var comp *transport.Completion
	if e.counts {
		comp = &e.comp
		if e.task.Alone {
			comp.Init(1, nil)
			e.idle = false
		}
	}
	e.next = i
	done, err := e.start(ep, comp, i)
	if err != nil {
		e.idle = e.idle || e.task.Alone
		return err
	}
	if done && comp != nil {
		comp.Done(nil) // the layer has not
	}
	if !e.counts && e.task.Alone && !e.shape.Seen {
		e.unflushed = ep
	}
	return nil
}

// start calls the operation. Done means that comp was not touched.
func (e *transportEnd) start(ep *transport.Endpoint, comp *transport.Completion, i int) (
	done bool, err error) {
	r := e.task.Round
	at, to, size := r.Source(i), uint64(r.Target(i)), uint64(r.Size)
	switch e.shape.Op {
	case AM:
		switch e.use {
		case Short:
			err = ep.AMShort(amID, nil, e.mem.src[at:at+r.Size])
		case Bcopy:
			_, err = ep.AMBcopy(amID, nil, e.pack)
		default:
			e.one[0] = e.src.Slice(uint64(at), size)
			err = ep.AMZcopy(comp, amID, nil, e.one[:]...)
		}
	case PutPoll:
		err = e.putPoll(ep, i)
	case Put:
		return e.put(ep, comp, i)
	case Get:
		if e.use == Bcopy {
			done, err = ep.GetBcopy(comp, e.mem.dst[to:to+size], e.remote.Src.At(uint64(at)))
		} else {
			e.one[0] = e.dst.Slice(to, size)
			done, err = ep.GetZcopy(comp, e.remote.Src.At(uint64(at)), e.one[:]...)
		}
	case FetchAdd:
		err = ep.FetchAdd(comp, &e.olds[i], e.remote.Dst.At(uint64(e.tail+wordCounter)), 1)
	}
	return done, err
}

func (e *transportEnd) put(ep *transport.Endpoint, comp *transport.Completion, i int) (done bool, err error) {
	r := e.task.Round
	at, to := r.Source(i), uint64(r.Target(i))
	switch e.use {
	case Short:
		err = ep.PutShort(e.mem.src[at:at+r.Size], e.remote.Dst.At(to))
	case Bcopy:
		_, err = ep.PutBcopy(e.pack, e.remote.Dst.At(to))
	default:
		e.one[0] = e.src.Slice(uint64(at), uint64(r.Size))
		done, err = ep.PutZcopy(comp, e.remote.Dst.At(to), e.one[:]...)
	}
	return done, err
}

// putPoll puts a message that the peer sees by looking at its memory: a word whose value it
// expects, behind the data where that is not the word itself.
func (e *transportEnd) putPoll(ep *transport.Endpoint, i int) error {
	flag := e.word[:]
	binary.NativeEndian.PutUint64(flag, e.flag(i))
	if e.task.Round.Size != len(flag) {
		if _, err := e.put(ep, nil, i); err != nil {
			return err
		}
		ep.Fence()
	}
	return ep.PutShort(flag, e.remote.Dst.At(uint64(e.tail+wordFlag)))
}

// flag is what the word holds once message i of the round has come.
func (e *transportEnd) flag(i int) uint64 { return e.task.Round.Number<<24 | uint64(i+1) }

// copyNext packs the message that is about to be sent.
func (e *transportEnd) copyNext(dst []byte) int {
	at := e.task.Round.Source(e.next)
	return copy(dst, e.mem.src[at:at+e.task.Round.Size])
}

func (e *transportEnd) settle() error {
	if e.counts || e.task.Alone && !e.shape.Seen || e.task.Send == 0 {
		return nil
	}
	return e.flush(transport.FlushLocal)
}

func (e *transportEnd) seal() error {
	if e.task.Send == 0 || e.shape.Reads || e.shape.Op == AM {
		return nil
	}
	return e.flush(transport.FlushRemote)
}

// flush makes comp fire when what the endpoints in use have outstanding has completed. Where one of
// them has no resource, the next call goes on with it.
func (e *transportEnd) flush(kind transport.FlushKind) error {
	if e.idle {
		e.comp.Init(e.task.Endpoints, nil)
		e.idle, e.flushing = false, 0
	}
	for ; e.flushing < e.task.Endpoints; e.flushing++ {
		done, err := e.eps[e.flushing].StartFlush(kind, &e.comp)
		if err != nil {
			return err
		}
		if done {
			e.comp.Done(nil)
		}
	}
	return nil
}

func (e *transportEnd) completed() (bool, error) {
	if e.broken != nil {
		return false, e.broken
	}
	if ep := e.unflushed; ep != nil {
		e.comp.Init(1, nil)
		done, err := ep.StartFlush(transport.FlushLocal, &e.comp)
		if errors.Is(err, transport.ErrNoResource) {
			return false, nil
		}
		e.unflushed, e.idle = nil, done
		return done, err
	}
	if e.idle || !e.comp.Fired() {
		return e.idle, nil
	}
	e.idle = true
	return true, e.comp.Err()
}

// failed records that an endpoint has failed.
func (e *transportEnd) failed(_ *transport.Endpoint, err error) {
	if e.broken == nil {
		e.broken = err
	}
}

// handle copies an active message to its slot: message i goes over endpoint i modulo their number.
func (e *transportEnd) handle(m *transport.Message) {
	p := m.Endpoint().Value().(*peerState)
	i := p.came*max(e.task.Endpoints, 1) + p.index
	data := m.Data()
	if i >= e.task.Take || len(data) != e.task.Round.Size {
		if e.broken == nil {
			e.broken = fmt.Errorf("%w: message %d of %d bytes; the round has %d of %d bytes", ErrMessages, i,
				len(data), e.task.Take, e.task.Round.Size)
		}
		return
	}
	copy(e.mem.dst[e.task.Round.Target(i):], data)
	p.came++
	e.seen++
}

func (e *transportEnd) arrived() (int, error) {
	if e.shape.Op == PutPoll && e.seen < e.task.Take &&
		atomic.LoadUint64(word(e.mem.dst, e.tail+wordFlag)) == e.flag(e.seen) {
		e.seen++
	}
	return e.seen, e.broken
}

func (e *transportEnd) results() []uint64 { return e.olds }
