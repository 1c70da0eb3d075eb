package shmem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"ibverbx"
	"ibverbx/internal/errwrap"
	"ibverbx/internal/guard"
	"ibverbx/internal/roster"
)

// World holds the PEs of this process: all PEs, or some of them.
type World struct {
	_   guard.NoCopy
	pes []*PE
}

// NewLocal makes a world of len(doms) PEs in this process, PE i over the NICs of doms[i]; PEs may
// share a domain. It sets Rank, Size and Exchange of cfg itself.
func NewLocal(ctx context.Context, cfg Config, doms ...*ibverbx.Domain) (*World, error) {
	if len(doms) == 0 {
		return nil, invalid("new local", "no domains: one for each PE is needed")
	}
	if err := needContext("new local", ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := len(doms) > runtime.GOMAXPROCS(0)
	meeting := newMeeting(len(doms))
	world := &World{pes: make([]*PE, len(doms))}
	var results results
	var wg sync.WaitGroup
	for i, dom := range doms {
		cfg := cfg
		cfg.Rank, cfg.Size = i, len(doms)
		cfg.Exchange = func(ctx context.Context, mine []byte) ([][]byte, error) {
			return meeting.gather(ctx, i, mine)
		}
		wg.Go(func() {
			var err error
			if world.pes[i], err = join(ctx, dom, cfg, shared); err != nil {
				if !consistsOf(err, isRefusal) { // the PE that it names returns its own error
					results.add(i, err)
				}
				cancel() // so that the others stop waiting
			}
		})
	}
	wg.Wait()
	if err := results.join(); err != nil {
		for _, pe := range world.pes {
			if pe != nil {
				err = errwrap.Join(err, pe.free())
			}
		}
		return nil, err
	}
	return world, nil
}

// NewWorld makes a world of PEs of this process that have joined. It panics if a PE is nil.
func NewWorld(pes ...*PE) *World {
	if i := slices.Index(pes, nil); i >= 0 {
		panic(fmt.Sprintf("shmem: new world: PE %d of %d is nil", i, len(pes)))
	}
	return &World{pes: pes}
}

// PEs returns the PEs of this process.
func (w *World) PEs() []*PE { return w.pes }

// Run calls fn for every PE of this process, each on its own goroutine, and waits for all. When one
// returns an error, the ctx of the others ends, so that they do not wait for it forever. The
// result joins all errors, in the order of the PEs, except those that only say that ctx has ended;
// the first error that was returned is always among them.
//
// When fn returns nil, Run sends the operations that fn has begun: other PEs may wait for them.
func (w *World) Run(ctx context.Context, fn func(ctx context.Context, pe *PE) error) error {
	if err := needContext("run", ctx); err != nil {
		return err
	}
	return w.run(ctx, func(ctx context.Context, pe *PE) error {
		err := fn(ctx, pe)
		if err == nil && !pe.closing.Load() {
			pe.flushBegun(ctx)
		}
		return err
	})
}

// run is Run without sending at the end.
func (w *World) run(ctx context.Context, fn func(ctx context.Context, pe *PE) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var results results
	var wg sync.WaitGroup
	for i, pe := range w.pes {
		wg.Go(func() {
			if err := fn(ctx, pe); err != nil {
				results.add(i, fmt.Errorf("PE %d: %w", pe.id, err))
				cancel()
			}
		})
	}
	wg.Wait()
	return results.join()
}

// Close closes the PEs, all at the same time.
func (w *World) Close(ctx context.Context) error {
	if err := needContext("close", ctx); err != nil {
		return err
	}
	return w.run(context.WithoutCancel(ctx), func(_ context.Context, pe *PE) error { return pe.Close(ctx) })
}

// results collects the errors of PEs that end each other's ctx.
type results struct {
	mu   sync.Mutex
	list []result
}

// result is the return value of one PE.
type result struct {
	pe    int
	first bool // no other PE returned an error earlier
	err   error
}

// add adds the error of a PE.
func (r *results) add(pe int, err error) {
	r.mu.Lock()
	r.list = append(r.list, result{pe: pe, first: len(r.list) == 0, err: err})
	r.mu.Unlock()
}

// join joins the errors in the order of the PEs, without those that only say that ctx has ended.
// The first error is what ended it.
func (r *results) join() error {
	slices.SortFunc(r.list, func(a, b result) int { return cmp.Compare(a.pe, b.pe) })
	var errs []error
	for _, result := range r.list {
		if result.first || !onlyCanceled(result.err) {
			errs = append(errs, result.err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &errwrap.Error{Err: errors.Join(errs...)}
}

// onlyCanceled reports whether an error consists only of canceled contexts.
func onlyCanceled(err error) bool {
	return consistsOf(err, func(leaf error) bool {
		return leaf == context.Canceled //nolint:errorlint // a leaf
	})
}

// consistsOf reports whether an error wraps nothing but leaves of a kind.
func consistsOf(err error, kind func(leaf error) bool) bool {
	switch e := err.(type) { //nolint:errorlint // walks the tree of errors itself
	case interface{ Unwrap() error }:
		return consistsOf(e.Unwrap(), kind)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !consistsOf(err, kind) })
	}
	return kind(err)
}

// meeting is an all-gather among PEs of one process.
type meeting struct {
	mu      sync.Mutex
	entries [][]byte      // by the PEs' numbers
	missing int           // number of entries still missing, which are nil
	full    chan struct{} // closed once none is missing
}

func newMeeting(n int) *meeting {
	return &meeting{entries: make([][]byte, n), missing: n, full: make(chan struct{})}
}

// gather adds PE i's entry and returns all entries once they are there.
func (m *meeting) gather(ctx context.Context, i int, mine []byte) ([][]byte, error) {
	m.mu.Lock()
	m.entries[i] = append([]byte{}, mine...)
	entries, full := m.entries, m.full
	if m.missing--; m.missing == 0 {
		// for the next round
		m.entries, m.missing, m.full = make([][]byte, len(entries)), len(entries), make(chan struct{})
		close(full)
	}
	m.mu.Unlock()
	select {
	case <-full:
		return entries, nil
	case <-ctx.Done():
		m.mu.Lock()
		defer m.mu.Unlock()
		if !slices.ContainsFunc(entries, func(entry []byte) bool { return entry == nil }) {
			return entries, nil // the last entry arrived as ctx ended
		}
		return nil, fmt.Errorf("%w: %s", errwrap.ContextErr(ctx), roster.Late("PE", len(entries),
			func(i int) bool { return entries[i] == nil }, "has not joined", "have not joined"))
	}
}
