package layers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/tagged"
	"ibverbx/transport"
)

// This file has the layers above virtual queue pairs, each as one end with one connection.

// transportConfig returns the default one, with room for the outstanding messages.
func transportConfig(cfg *Config) transport.Config {
	c := transport.Config{QP: cfg.QP, MaxEndpoints: 1, MaxOutstanding: cfg.Window,
		AMBuffers: min(max(cfg.Window, 64), 1024), BounceBuffers: max(256, 2*cfg.Window)}
	c.QP.MaxMsgCntPerQP = max(c.QP.MaxMsgCntPerQP, c.MaxOutstanding+8, c.AMBuffers+8)
	return c
}

// amID is the measured active message.
const amID transport.AMID = 1

// transportEnd is an end of package transport.
type transportEnd struct {
	base
	worker   *transport.Worker
	ep       *transport.Endpoint
	limits   transport.Limits
	comp     transport.Completion
	flushing bool // comp is in use
	one      [1]ibverbx.Segment
	pack     func(dst []byte) int // copies data, bound once
	data     []byte
}

func newTransport(cfg *Config) (traffic, error) {
	e := &transportEnd{base: base{Config: cfg}}
	e.pack = func(dst []byte) int { return copy(dst, e.data) }
	return e, e.open(e.make)
}

func (e *transportEnd) make(dom *ibverbx.Domain) (err error) {
	if err = e.register(dom); err != nil {
		return err
	}
	if e.worker, err = transport.NewWorker(dom, transportConfig(e.Config)); err != nil {
		return err
	}
	e.onClose(e.worker.Close)
	if err = errors.Join(e.show(e.worker, nil), e.worker.Handle(amID, e.handle)); err != nil {
		return err
	}
	failed := func(_ *transport.Endpoint, err error) { e.broken = err }
	if e.ep, err = e.worker.NewEndpoint(transport.EndpointConfig{OnError: failed}); err == nil {
		e.opened = append(e.opened, e.ep.Close)
	}
	return err
}

func (e *transportEnd) progress() int { return e.worker.Progress() }

func (e *transportEnd) Card() (Card, error) {
	c := e.memoryCard()
	card, err := e.ep.Card()
	c.Transport = &card
	return c, err
}

func (e *transportEnd) Connect(peer *Card) error {
	if peer.Transport == nil {
		return fmt.Errorf("%w: the peer's card has no endpoint", ErrMessages)
	}
	e.remote.src, e.remote.dst = peer.Src, peer.Dst
	err := e.ep.Connect(*peer.Transport)
	e.limits = e.ep.Limits()
	return err
}

func (e *transportEnd) begin(t *Task) error {
	e.next(t)
	e.flushing = false
	return e.broken
}

func (e *transportEnd) post(i, _ int) (int, error) { return one(e.start(i)) }

func (e *transportEnd) start(i int) (err error) {
	if e.broken != nil {
		return e.broken
	}
	from, to, size := e.places(i)
	if e.Shape.Op == AM || e.Shape.Op == Put {
		e.data = e.Src[from : from+size]
	}
	switch e.Shape.Op {
	case AM:
		if size <= e.limits.AMShort {
			return e.ep.AMShort(amID, nil, e.data)
		}
		_, err = e.ep.AMBcopy(amID, nil, e.pack)
	case Put:
		if size <= e.limits.PutShort {
			return e.ep.PutShort(e.data, e.remote.dst.At(uint64(to)))
		}
		e.one[0] = e.src.Slice(uint64(from), uint64(size))
		_, err = e.ep.PutZcopy(nil, e.remote.dst.At(uint64(to)), e.one[:]...)
	case Get:
		e.one[0] = e.dst.Slice(uint64(to), uint64(size))
		_, err = e.ep.GetZcopy(nil, e.remote.src.At(uint64(from)), e.one[:]...)
	case FetchAdd:
		err = e.ep.FetchAdd(nil, &e.olds[i], e.remote.dst.At(uint64(e.Tail)), e.add(i))
	default:
		err = e.unknown()
	}
	return err
}

func (e *transportEnd) flush(remote bool) error {
	kind := transport.FlushLocal
	if remote {
		kind = transport.FlushRemote
	}
	e.comp.Init(1, nil)
	done, err := e.ep.StartFlush(kind, &e.comp)
	e.flushing = err == nil && !done
	return err
}

func (e *transportEnd) completed() (bool, error) {
	if e.broken != nil || !e.flushing {
		return e.broken == nil, e.broken
	}
	return e.comp.Fired(), e.comp.Err()
}

// handle copies an active message to its slot.
func (e *transportEnd) handle(m *transport.Message) {
	data := m.Data()
	if e.seen >= e.task.Take || len(data) != e.task.Round.Size {
		e.broken = fmt.Errorf("%w: message %d of %d bytes; the round has %d of %d bytes", ErrMessages, e.seen,
			len(data), e.task.Take, e.task.Round.Size)
		return
	}
	copy(e.Dst[e.task.Round.Target(e.seen):], data)
	e.seen++
}

// taggedEnd is an end of package tagged. Each message of a round has its own tag.
//
// Invariant: done <= sent <= done+len(sends).
type taggedEnd struct {
	base
	region     *tagged.Region // of the target
	worker     *tagged.Worker
	ep         *tagged.Endpoint
	sends      []*tagged.Request // a ring; nil is done
	sent, done int
	recvs      []*tagged.Request // of the round
}

func newTagged(cfg *Config) (traffic, error) {
	e := &taggedEnd{base: base{Config: cfg}, sends: make([]*tagged.Request, cfg.Window)}
	return e, e.open(e.make)
}

func (e *taggedEnd) make(dom *ibverbx.Domain) (err error) {
	cfg := tagged.Config{Transport: transportConfig(e.Config)}
	if e.worker, err = tagged.NewWorker(dom, cfg); err != nil {
		return err
	}
	e.onClose(e.worker.Close)
	if err = e.show(e.worker.Transport(), nil); err != nil {
		return err
	}
	for _, buf := range []*[]byte{&e.Src, &e.Dst} {
		if len(*buf) == 0 {
			continue
		}
		if e.region, err = e.worker.Alloc(len(*buf)); err != nil {
			return err
		}
		*buf = e.place(*buf, e.region.Bytes(), e.region.Close)
	}
	failed := func(_ *tagged.Endpoint, err error) { e.broken = err }
	if e.ep, err = e.worker.NewEndpoint(tagged.EndpointConfig{OnError: failed}); err == nil {
		e.opened = append(e.opened, e.ep.Close)
	}
	return err
}

func (e *taggedEnd) progress() int { return e.worker.Progress() }

func (e *taggedEnd) Card() (c Card, err error) {
	c.Dst = e.region.MR().Remote() // the other end checks its size
	card, err := e.ep.Card()
	c.Tagged = &card
	return c, err
}

func (e *taggedEnd) Connect(peer *Card) error {
	if peer.Tagged == nil {
		return fmt.Errorf("%w: the peer's card has no endpoint", ErrMessages)
	}
	return e.ep.Connect(*peer.Tagged)
}

// tag returns the tag of message i.
func (e *taggedEnd) tag(i int) uint64 { return e.task.Round.Number<<24 | uint64(i) }

func (e *taggedEnd) begin(t *Task) error {
	e.next(t)
	e.sent, e.done, e.recvs = 0, 0, e.recvs[:0]
	for i := range t.Take {
		_, to, size := e.places(i)
		req, err := e.worker.Recv(e.tag(i), tagged.Exact, e.Dst[to:to+size])
		if err != nil {
			return err
		}
		e.recvs = append(e.recvs, req)
	}
	return e.broken
}

func (e *taggedEnd) arrived() (int, error) {
	for e.seen < len(e.recvs) && e.recvs[e.seen].Done() {
		err, got := e.recvs[e.seen].Err(), e.recvs[e.seen].Info().Length
		if err == nil && got != e.task.Round.Size {
			err = fmt.Errorf("%w: %d bytes in place of %d", ErrMessages, got, e.task.Round.Size)
		}
		if err != nil {
			return e.seen, err
		}
		e.recvs[e.seen].Free()
		e.seen++
	}
	return e.seen, e.broken
}

func (e *taggedEnd) post(i, _ int) (int, error) { return one(e.start(i)) }

func (e *taggedEnd) start(i int) error {
	if e.sent-e.done == len(e.sends) {
		if _, err := e.completed(); err != nil || e.sent-e.done == len(e.sends) {
			return cmp.Or(err, transport.ErrNoResource)
		}
	}
	from, _, size := e.places(i)
	req, err := e.ep.Send(e.tag(i), e.Src[from:from+size])
	if err == nil {
		e.sends[e.sent%len(e.sends)] = req
		e.sent++
	}
	return err
}

func (e *taggedEnd) completed() (bool, error) {
	for ; e.done < e.sent; e.done++ {
		req := e.sends[e.done%len(e.sends)]
		if req == nil {
			continue
		}
		if !req.Done() {
			return false, e.broken
		}
		if err := req.Err(); err != nil {
			return false, err
		}
		req.Free()
	}
	return true, e.broken
}

// shmemEnd is one of two PEs of this process. Source and target are blocks of the symmetric heap.
type shmemEnd struct {
	base
	pe       *shmem.PE
	from, to shmem.Sym[uint8]
	count    shmem.Sym[uint64] // of atomics
	signal   shmem.Sym[uint64]
}

// openPatience is how long the PEs may take to connect and to allocate memory.
const openPatience = 30 * time.Second

func newSHMEM(cfgs *[2]Config) (ends [2]*End, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	pes := [2]*shmemEnd{{base: base{Config: &cfgs[0]}}, {base: base{Config: &cfgs[1]}}}
	err = pes[1].open(func(b *ibverbx.Domain) error {
		return pes[0].open(func(a *ibverbx.Domain) error { return makePEs(ctx, cfgs, &pes, a, b) })
	})
	return [2]*End{{traffic: pes[0]}, {traffic: pes[1]}}, err
}

// makePEs makes both ends. The first one closes the world, before its domain and that of the other.
func makePEs(ctx context.Context, cfgs *[2]Config, pes *[2]*shmemEnd, doms ...*ibverbx.Domain) error {
	src := max(1, len(cfgs[0].Src), len(cfgs[1].Src))
	dst := max(1, len(cfgs[0].Dst), len(cfgs[1].Dst))
	cfg := shmem.Config{HeapSize: src + dst + 1<<20, Transport: transportConfig(&cfgs[0])}
	cfg.Transport.AMBuffers, cfg.Transport.MaxEndpoints = 0, 0 // package shmem sets them
	world, err := shmem.NewLocal(ctx, cfg, doms...)
	if err != nil {
		return err
	}
	pes[0].opened = append(pes[0].opened, world.Close)
	return world.Run(ctx, func(ctx context.Context, pe *shmem.PE) error {
		e := pes[pe.Rank()]
		e.pe = pe
		var errs [4]error
		e.from, errs[0] = shmem.Alloc[uint8](ctx, pe, src)
		e.to, errs[1] = shmem.Alloc[uint8](ctx, pe, dst)
		e.count, errs[2] = shmem.Alloc[uint64](ctx, pe, 1)
		e.signal, errs[3] = shmem.Alloc[uint64](ctx, pe, 1)
		if err := errors.Join(errs[:]...); err != nil {
			return err
		}
		copy(e.from.Local(pe), e.Src)
		return pe.Barrier(ctx)
	})
}

func (e *shmemEnd) Target() []byte      { return e.to.Local(e.pe) }
func (e *shmemEnd) Counter() uint64     { return shmem.Load(e.pe, e.count) }
func (e *shmemEnd) progress() int       { return e.pe.Progress() }
func (e *shmemEnd) Card() (Card, error) { return Card{}, nil }
func (e *shmemEnd) Connect(*Card) error { return nil }

func (e *shmemEnd) begin(t *Task) error {
	e.next(t)
	e.count.Local(e.pe)[0] = t.Round.Counter(0)
	return nil
}

func (e *shmemEnd) post(i, _ int) (int, error) { return one(e.start(i)) }

func (e *shmemEnd) start(i int) (err error) {
	from, to, size := e.places(i)
	ctx, peer := e.task.Ctx, 1-e.pe.Rank()
	switch e.Shape.Op {
	case Put:
		return shmem.PutNBI(ctx, e.pe, e.to.Slice(to, to+size), e.from.Local(e.pe)[from:from+size], peer)
	case PutSignal:
		return shmem.PutSignalNBI(ctx, e.pe, e.to.Slice(to, to+size), e.from.Local(e.pe)[from:from+size],
			e.signal, e.mark(i), shmem.SignalSet, peer)
	case Get:
		return shmem.GetNBI(ctx, e.pe, e.to.Local(e.pe)[to:to+size], e.from.Slice(from, from+size), peer)
	case FetchAdd:
		e.olds[i], err = shmem.FetchAdd(ctx, e.pe, e.count, e.add(i), peer)
		return err
	}
	return e.unknown()
}

// mark returns the value of the signal once message i of the round has come.
func (e *shmemEnd) mark(i int) uint64 { return e.task.Round.Number<<24 | uint64(i+1) }

func (e *shmemEnd) flush(bool) error         { return e.pe.Quiet(e.task.Ctx) }
func (e *shmemEnd) completed() (bool, error) { return true, nil }

func (e *shmemEnd) arrived() (int, error) {
	if e.Shape.Op == PutSignal && e.seen < e.task.Take && shmem.Load(e.pe, e.signal) == e.mark(e.seen) {
		e.seen++
	}
	return e.seen, nil
}
