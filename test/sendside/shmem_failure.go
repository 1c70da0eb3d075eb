package sendside

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"

	"ibverbx/shmem"
	"ibverbx/test/internal/lab"
)

// idle is called where the PE's calls wait. After some rounds it ends the context of a call in
// haste.
func (e *element) idle() {
	if e.haste--; e.haste == 0 {
		e.cancel()
	}
	e.t.idle()
}

// namedCall is a call of the library with its name.
type namedCall struct {
	name string
	call func() error
}

// drawCall draws a call; the first ones are more frequent.
func drawCall(rng *rand.Rand, calls []namedCall) (string, func() error) {
	c := calls[rng.IntN(1+rng.IntN(len(calls)))]
	return c.name, c.call
}

// hurry makes calls whose context ends after some rounds. They return, and the operations that they
// have begun end before Quiet does.
func (e *element) hurry(*rand.Rand) {
	t, own := e.t, e.words.At(7)
	e.barrier()
	for range 1 + e.rng.IntN(12) {
		ctx, cancel := context.WithCancel(t.ctx)
		e.cancel, e.haste = cancel, 1+e.rng.IntN(4)
		name, call := drawCall(e.rng, append(e.callsTo(ctx, e.rng.IntN(len(t.peers))),
			namedCall{"quiet", func() error { return e.pe.Quiet(ctx) }},
			namedCall{"wait until", func() error {
				err := shmem.WaitUntil(ctx, e.pe, own, shmem.NE, shmem.Load(e.pe, own))
				return cmp.Or(err, errNotRefused)
			}}))
		err := call()
		cancel()
		e.haste = 0
		t.Logf("  PE %d: %s in haste: %v", e.id, name, err)
		if !errors.Is(err, context.Canceled) {
			e.must(name, err)
		}
		e.must(name, t.ctx.Err())
	}
	e.barrier()
}

// callsTo returns calls that need one PE. They change memory that no other phase uses.
func (e *element) callsTo(ctx context.Context, to int) []namedCall {
	pe, word, half := e.pe, e.words.At(5), e.halves.At(2)
	there := e.scratch.Slice((scratches+1)*slotSize, (scratches+2)*slotSize)
	here := make([]byte, slotSize>>(e.rng.IntN(3)*e.rng.IntN(5)))
	if e.rng.IntN(2) == 0 {
		here = there.Local(pe)[:len(here)]
	}
	return []namedCall{
		{"put", func() error { return shmem.Put(ctx, pe, there, here, to) }},
		{"get", func() error { return shmem.Get(ctx, pe, here, there, to) }},
		{"put nbi", func() error { return shmem.PutNBI(ctx, pe, there, here, to) }},
		{"p", func() error { return shmem.P(ctx, pe, there, 1, to) }},
		{"put signal", func() error {
			return shmem.PutSignal(ctx, pe, there, here, word, 1, shmem.SignalAdd, to)
		}},
		{"get nbi", func() error { return shmem.GetNBI(ctx, pe, here, there, to) }},
		{"g", func() error { return errorOf(shmem.G(ctx, pe, there, to)) }},
		{"add", func() error { return shmem.Add(ctx, pe, word, 1, to) }},
		{"fetch", func() error { return errorOf(shmem.Fetch(ctx, pe, word, to)) }},
		{"compare swap", func() error { return errorOf(shmem.CompareSwap(ctx, pe, word, 0, 1, to)) }},
		{"set", func() error { return shmem.Set(ctx, pe, half, 1, to) }},
	}
}

func errorOf[T any](_ T, err error) error { return err }

// outlive makes calls after one has failed because a PE is gone. Those that need that PE, or all
// PEs, fail and name a PE, or a barrier says that calls of others did not match; none waits.
func (e *element) outlive() {
	t, pe := e.t, e.pe
	var gone *shmem.PEError
	if !errors.As(e.failed, &gone) || t.ctx.Err() != nil {
		return
	}
	calls := append([]namedCall{{"quiet", func() error { return pe.Quiet(t.ctx) }},
		{"barrier", func() error { return pe.Barrier(t.ctx) }}}, e.callsTo(t.ctx, gone.PE)...)
	for range 8 {
		if e.rng.IntN(2) == 0 {
			pe.Fence()
		}
		name, call := drawCall(e.rng, calls)
		if err := call(); !errors.As(err, new(*shmem.PEError)) &&
			(name != "barrier" || !errors.Is(err, shmem.ErrMismatch)) {
			t.Broken(ruleNoticed, "PE %d has lost PE %d, and then %s returns %v", e.id, gone.PE, name, err)
		}
	}
	// Only this code makes calls of this shape.
	name, call := drawCall(e.rng, e.collectives(make([]uint16, 3), e.rng.IntN(len(t.peers))))
	err := call()
	t.Logf("  PE %d has lost PE %d: %s: %v", e.id, gone.PE, name, err)
	if t.ctx.Err() != nil {
		t.Broken(lab.Liveness, "PE %d has lost PE %d, and waits in %s", e.id, gone.PE, name)
	}
}

// collectives returns calls that all PEs make together, with few numbers.
func (e *element) collectives(few []uint16, root int) []namedCall {
	ctx, pe, many := e.t.ctx, e.pe, make([]uint16, len(few)*len(e.t.peers))
	return []namedCall{
		{"broadcast", func() error { return shmem.Broadcast(ctx, pe, few, root) }},
		{"reduce", func() error { return shmem.Reduce(ctx, pe, few, few, shmem.OpSum) }},
		{"all-gather", func() error { return shmem.AllGather(ctx, pe, many, few) }},
		{"all-to-all", func() error { return shmem.AllToAll(ctx, pe, many, many) }},
		{"alloc", func() error { return errorOf(shmem.Alloc[uint16](ctx, pe, len(few))) }},
		{"free", func() error { return shmem.Free(ctx, pe, e.words) }},
	}
}

// leave makes collective calls on a PE that was closed. They are refused.
func (e *element) leave() {
	ctx, pe := e.t.ctx, e.pe
	for _, c := range append(e.collectives(make([]uint16, 1), 0),
		namedCall{"barrier", func() error { return pe.Barrier(ctx) }},
		namedCall{"sync", func() error { return pe.Sync(ctx) }},
		namedCall{"close", func() error { return pe.Close(ctx) }}) {
		if err := c.call(); !errors.Is(err, shmem.ErrClosed) {
			e.t.Broken(lab.Refusal, "PE %d was closed, and then %s returns %v", e.id, c.name, err)
		}
	}
}
