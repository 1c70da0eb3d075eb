package layers

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/shmem"
	"ibverbx/transport"
)

// shmemEnd is one of two PEs of this process.
// Its source and its target are blocks of the symmetric heap.
type shmemEnd struct {
	shape    Shape
	world    *shmemWorld
	pe       *shmem.PE
	src, dst shmem.Sym[uint8]
	count    shmem.Sym[uint64] // of atomics
	signal   shmem.Sym[uint64]

	ctx  context.Context // of the round under way, for calls that block
	task Task
	seen int
	olds []uint64
}

// shmemWorld is what both ends share.
type shmemWorld struct {
	world *shmem.World
	doms  []*ibverbx.Domain
	once  sync.Once
	err   error
}

// openPatience is how long the PEs may take to find each other and to share memory out.
const openPatience = 30 * time.Second

// newSHMEM makes two PEs.
func newSHMEM(cfgs *[2]Config) (ends [2]*shmemEnd, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	w := &shmemWorld{}
	fail := func(err error) ([2]*shmemEnd, error) { return [2]*shmemEnd{}, errors.Join(err, w.close(ctx)) }
	src, dst := 1, 1
	for i := range cfgs {
		dom, err := ibverbx.NewDomain(cfgs[i].Devices...)
		if err != nil {
			return fail(err)
		}
		w.doms = append(w.doms, dom)
		src, dst = max(src, len(cfgs[i].Src)), max(dst, len(cfgs[i].Dst))
	}
	cfg := shmem.Config{HeapSize: src + dst + 1<<20, Transport: transport.Config{QP: cfgs[0].QP,
		MaxOutstanding: cfgs[0].Window, Spin: cfgs[0].Spin}}
	cfg.Transport.BounceBuffers = bounceBuffers(&cfgs[0])
	cfg.Transport.QP.MaxMsgCntPerQP = max(cfg.Transport.QP.MaxMsgCntPerQP, cfgs[0].Window+8)
	if w.world, err = shmem.NewLocal(ctx, cfg, w.doms...); err != nil {
		return fail(err)
	}
	err = w.world.Run(ctx, func(ctx context.Context, pe *shmem.PE) (err error) {
		e := &shmemEnd{shape: cfgs[0].Shape, world: w, pe: pe}
		if e.src, err = shmem.Alloc[uint8](ctx, pe, src); err != nil {
			return err
		}
		if e.dst, err = shmem.Alloc[uint8](ctx, pe, dst); err != nil {
			return err
		}
		if e.count, err = shmem.Alloc[uint64](ctx, pe, 1); err != nil {
			return err
		}
		if e.signal, err = shmem.Alloc[uint64](ctx, pe, 1); err != nil {
			return err
		}
		copy(e.src.Local(pe), cfgs[pe.Rank()].Src)
		ends[pe.Rank()] = e
		return pe.Barrier(ctx)
	})
	if err != nil {
		return fail(err)
	}
	return ends, nil
}

func (w *shmemWorld) close(ctx context.Context) error {
	w.once.Do(func() {
		var errs []error
		if w.world != nil {
			errs = append(errs, closing(w.world.Close(ctx)))
		}
		for _, dom := range w.doms {
			errs = append(errs, dom.Close())
		}
		w.err = errors.Join(errs...)
	})
	return w.err
}

// Progress makes progress for the end.
func (e *shmemEnd) Progress() int { return e.pe.Progress() }

// idleTurns is after how many turns that moved nothing an end that waits sleeps for a moment.
const idleTurns = 256

// WaitFor makes progress until done says so, or ctx ends.
func (e *shmemEnd) WaitFor(ctx context.Context, every time.Duration, done func() bool) error {
	for idle := 0; !done(); {
		switch {
		case e.pe.Progress() != 0:
			idle = 0
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if idle++; idle < idleTurns {
			runtime.Gosched()
			continue
		}
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// Stats is what the transport beneath has counted.
func (e *shmemEnd) Stats() transport.Stats { return e.pe.Stats().Transport }

func (e *shmemEnd) bind(ctx context.Context) { e.ctx = ctx }
func (e *shmemEnd) kind(int) Kind            { return "" }
func (e *shmemEnd) longest() int             { return 0 }
func (e *shmemEnd) results() []uint64        { return e.olds }
func (e *shmemEnd) counter() uint64          { return shmem.Load(e.pe, e.count) }
func (e *shmemEnd) target() []byte           { return e.dst.Local(e.pe) }

func (e *shmemEnd) begin(t *Task) error {
	e.task, e.seen = *t, 0
	if e.shape.Atomic && len(e.olds) < t.Send {
		e.olds = make([]uint64, t.Send)
	}
	return nil
}

func (e *shmemEnd) post(i, n int) (int, error) {
	for k := range n {
		if err := e.startOne(i + k); err != nil {
			return k, err
		}
	}
	return n, nil
}

// startOne calls the operation for message i: a stream's are initiated only, where there is such a
// call; one alone is complete when startOne returns.
func (e *shmemEnd) startOne(i int) (err error) {
	r, peer := e.task.Round, 1-e.pe.Rank()
	at, to := r.Source(i), r.Target(i)
	switch e.shape.Op {
	case Put:
		err = shmem.PutNBI(e.ctx, e.pe, e.dst.Slice(to, to+r.Size), e.src.Local(e.pe)[at:at+r.Size], peer)
	case PutSignal:
		return shmem.PutSignalNBI(e.ctx, e.pe, e.dst.Slice(to, to+r.Size), e.src.Local(e.pe)[at:at+r.Size],
			e.signal, e.flag(i), shmem.SignalSet, peer)
	case Get:
		if e.task.Alone {
			return shmem.Get(e.ctx, e.pe, e.dst.Local(e.pe)[to:to+r.Size], e.src.Slice(at, at+r.Size), peer)
		}
		return shmem.GetNBI(e.ctx, e.pe, e.dst.Local(e.pe)[to:to+r.Size], e.src.Slice(at, at+r.Size), peer)
	case FetchAdd:
		e.olds[i], err = shmem.FetchAdd(e.ctx, e.pe, e.count, 1, peer)
		return err
	}
	if err == nil && e.task.Alone {
		err = e.pe.Quiet(e.ctx)
	}
	return err
}

// flag is what the signal holds once message i of the round has come.
func (e *shmemEnd) flag(i int) uint64 { return e.task.Round.Number<<24 | uint64(i+1) }

func (e *shmemEnd) settle() error            { return e.pe.Quiet(e.ctx) }
func (e *shmemEnd) seal() error              { return nil } // Quiet does it
func (e *shmemEnd) completed() (bool, error) { return true, nil }

func (e *shmemEnd) arrived() (int, error) {
	if e.shape.Op == PutSignal && e.seen < e.task.Take && shmem.Load(e.pe, e.signal) == e.flag(e.seen) {
		e.seen++
	}
	return e.seen, nil
}

func (e *shmemEnd) card() (Card, error)             { return Card{}, nil }
func (e *shmemEnd) connect(*Card) error             { return nil }
func (e *shmemEnd) close(ctx context.Context) error { return e.world.close(ctx) }
