package processes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx/tagged"
)

// Messages of every length near a threshold go in both directions at the same time, in pieces, from
// and to registered and other memory. First receives are posted before, then after the messages
// have come, in the opposite order. Every byte arrives, and no other byte changes.
func TestTaggedLengths(t *testing.T) {
	eachShape(t, team{program: "lengths", members: 2})
}

func TestTaggedLengthsByTheZeroConfiguration(t *testing.T) {
	team{program: "lengths", members: 2, zero: true}.run(t)
}

// thresholds are lengths around all limits of a configuration.
func thresholds(c tagged.Config) []int {
	all := []int{0, 1, 63, 64, 65, 127, 128, 129}
	for _, limit := range []int{c.Transport.BufferSize, c.EagerLimit, c.Chunk} {
		for d := -32; d <= 32; d += 8 { // about as long as headers
			all = append(all, limit+d)
		}
		all = append(all, limit-1, limit+1)
	}
	return append(all, 3*c.Chunk+17)
}

// parcel is the memory of a message. At its receiver some bytes follow that must not change.
type parcel struct {
	tag    uint64
	mem    []byte
	length int
}

const margin = 7

// parcels are the messages of a phase between two members. Half of them are in memory that is
// registered with the worker.
func parcels(w *tagged.Worker, phase, from, to int) (all []parcel, _ *tagged.Region, _ error) {
	sizes := thresholds(w.Config())
	total := 0
	for _, n := range sizes {
		total += n + margin
	}
	known := make([]byte, total)
	region, err := w.Register(known)
	if err != nil {
		return nil, nil, err
	}
	for i, n := range sizes {
		p := parcel{tag: seed(from, to, phase<<16|i), length: n}
		if i%2 == 0 {
			p.mem, known = known[:n+margin:n+margin], known[n+margin:]
		} else {
			p.mem = make([]byte, n+margin)
		}
		all = append(all, p)
	}
	return all, region, nil
}

func lengths(ctx context.Context, m *member) (err error) {
	cfg := tagged.Config{}
	if !m.Zero {
		cfg.Chunk = 96 << 10
	}
	o, err := newTagMesh(ctx, m, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.w.Close()) }()
	for phase := range 2 {
		if err := o.exchangeParcels(ctx, phase); err != nil {
			return fmt.Errorf("phase %d: %w", phase, err)
		}
	}
	return o.closeAll(ctx)
}

// exchangeParcels sends and receives all lengths. In phase 0 receives are posted first, in phase 1
// last and in the opposite order.
func (o *tagMesh) exchangeParcels(ctx context.Context, phase int) error {
	peer := 1 - o.m.Rank
	out, outRegion, err := parcels(o.w, phase, o.m.Rank, peer)
	if err != nil {
		return err
	}
	in, inRegion, err := parcels(o.w, phase, peer, o.m.Rank)
	if err != nil {
		return err
	}
	var receives, sends []*tagged.Request
	if phase == 0 {
		if receives, err = o.receiveParcels(in); err != nil {
			return err
		}
		if err := o.m.meet(ctx); err != nil {
			return err
		}
	}
	for _, p := range out {
		fill(p.mem[:p.length], p.tag)
		a := p.length / 3
		req, err := o.eps[peer].Send(p.tag, p.mem[:a], nil, p.mem[a:p.length])
		if err != nil {
			return fmt.Errorf("%d bytes: %w", p.length, err)
		}
		sends = append(sends, req)
	}
	if phase == 1 {
		if err := o.expect(ctx, in[len(in)-1]); err != nil {
			return err
		}
		slices.Reverse(in)
		if receives, err = o.receiveParcels(in); err != nil {
			return err
		}
	}
	if err := o.checkParcels(ctx, in, receives, peer); err != nil {
		return err
	}
	if err := o.wait(ctx, sends...); err != nil {
		return fmt.Errorf("sends: %w", err)
	}
	return errors.Join(outRegion.Close(), inRegion.Close())
}

// expect waits until Probe reports a message.
func (o *tagMesh) expect(ctx context.Context, p parcel) error {
	var info tagged.Info
	if err := o.w.Transport().WaitFor(ctx, 0, func() (ok bool) {
		info, ok = o.w.Probe(p.tag, tagged.Exact)
		return ok
	}); err != nil {
		return fmt.Errorf("probe for the last message: %w", err)
	}
	if info.Tag != p.tag || info.Length != p.length {
		return fmt.Errorf("probe tells of tag %#x with %d bytes, want %#x with %d", info.Tag, info.Length,
			p.tag, p.length)
	}
	return nil
}

func (o *tagMesh) receiveParcels(in []parcel) (reqs []*tagged.Request, err error) {
	for _, p := range in {
		for i := range p.mem {
			p.mem[i] = blank
		}
		a := len(p.mem) / 2
		req, err := o.w.Recv(p.tag, tagged.Exact, p.mem[:a], p.mem[a:])
		if err != nil {
			return nil, fmt.Errorf("receive %d bytes: %w", p.length, err)
		}
		reqs = append(reqs, req)
	}
	return reqs, nil
}

func (o *tagMesh) checkParcels(ctx context.Context, in []parcel, reqs []*tagged.Request, peer int) error {
	for i, p := range in {
		if err := reqs[i].Wait(ctx); err != nil {
			return fmt.Errorf("%d bytes: %w", p.length, err)
		}
		if info := reqs[i].Info(); info.Tag != p.tag || info.Length != p.length ||
			info.Source != o.eps[peer] {
			return fmt.Errorf("%d bytes: the request says %+v", p.length, info)
		}
		reqs[i].Free()
		if err := errors.Join(verify(p.mem[:p.length], p.tag),
			untouched(p.mem[p.length:], blank)); err != nil {
			return fmt.Errorf("%d bytes: %w", p.length, err)
		}
	}
	return nil
}
