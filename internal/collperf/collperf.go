// Package collperf measures the collective calls of package shmem, with the figures that nccl-tests
// defines, so that they can be compared with those of other libraries.
//
// The size of a call is the length of its longest vector: of all-reduce and broadcast that of each
// PE, of all-gather that of the result, of reduce-scatter and all-to-all that of the source. The
// algorithm bandwidth is the size divided by the time. The bus bandwidth is that times a factor,
// which is such that the hardware's bandwidth bounds it for any number of PEs: it is what one link
// carries in one direction if every PE has one, and the algorithm is the best.
package collperf

import (
	"context"
	"fmt"
	"time"

	"ibverbx/shmem"
)

// Op is a collective call by the name that perf gives it.
type Op string

// operation is a call that can be measured.
type operation struct {
	name   Op
	blocks bool                 // vectors have a block for each PE
	bus    func(n int) float64  // bus bandwidth / algorithm bandwidth
	call   func(r *round) error // one call
	want   func(r *round, i int) float32
}

// operationTable has all, in the order in which they are listed.
var operationTable = [...]operation{
	{"all-reduce", false, func(n int) float64 { return 2 * others(n) },
		func(r *round) error { return shmem.Reduce(r.ctx, r.pe, r.dst, r.src, shmem.OpSum) }, (*round).sum},
	{"reduce-scatter", true, others, func(r *round) error {
		return shmem.ReduceScatter(r.ctx, r.pe, r.own(r.dst), r.src, shmem.OpSum)
	}, (*round).sum},
	{"all-gather", true, others,
		func(r *round) error { return shmem.AllGather(r.ctx, r.pe, r.dst, r.own(r.src)) }, (*round).gathered},
	{"all-to-all", true, others,
		func(r *round) error { return shmem.AllToAll(r.ctx, r.pe, r.dst, r.src) }, (*round).exchanged},
	{"broadcast", false, func(int) float64 { return 1 }, func(r *round) error {
		return shmem.Broadcast(r.ctx, r.pe, r.dst, 0)
	}, func(_ *round, i int) float32 { return value(0, i) }},
}

// others is the part of a vector that the other PEs have.
func others(n int) float64 { return float64(n-1) / float64(n) }

// Ops returns the operations that can be measured.
func Ops() []Op {
	list := make([]Op, len(operationTable))
	for i := range operationTable {
		list[i] = operationTable[i].name
	}
	return list
}

// find returns an operation; nil if there is none of the name.
func find(name Op) *operation {
	for i := range operationTable {
		if operationTable[i].name == name {
			return &operationTable[i]
		}
	}
	return nil
}

// Known reports whether there is such an operation.
func (o Op) Known() bool { return find(o) != nil }

// Config says what to measure. All PEs pass the same.
type Config struct {
	Op    Op
	Sizes []int // bytes; each is rounded down to what blocks of float32 make, but to one of each
	// Duration is about how long to measure each size, and Calls how often to call; 0 for as many
	// as Duration allows.
	Duration time.Duration
	Calls    int
}

// Figure is what a size has taken, the mean of all PEs.
type Figure struct {
	Bytes   int     `json:"size_bytes"`
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds_per_call"`
	Alg     float64 `json:"algorithm_gb_per_second"` // 10⁹ bytes a second
	Bus     float64 `json:"bus_gb_per_second"`
}

// warm is how many calls are made before a time counts.
const warm = 5

// round measures one size at one PE.
type round struct {
	ctx      context.Context
	pe       *shmem.PE
	block    int // elements of a PE's block
	dst, src []float32
}

// Run measures all sizes, and calls report with each figure, which all PEs have alike. Every PE of
// a job or world runs it.
func Run(ctx context.Context, pe *shmem.PE, cfg Config, report func(Figure) error) error {
	op := find(cfg.Op)
	if op == nil {
		return fmt.Errorf("collective calls that can be measured are %v, not %q", Ops(), cfg.Op)
	}
	for _, size := range cfg.Sizes {
		n := pe.Size()
		r := round{ctx: ctx, pe: pe}
		elements := max(size/4, 1)
		if op.blocks {
			r.block = max(elements/n, 1)
			elements = r.block * n
		}
		r.dst, r.src = make([]float32, elements), make([]float32, elements)
		f, err := r.measure(op, &cfg)
		if err == nil {
			err = report(f)
		}
		if err != nil {
			return fmt.Errorf("%s of %d bytes: %w", cfg.Op, 4*elements, err)
		}
	}
	return nil
}

// measure measures one size.
func (r *round) measure(op *operation, cfg *Config) (f Figure, err error) {
	if _, err := r.time(op, warm); err != nil { // schedules are made, connections grow
		return f, err
	}
	each, err := r.time(op, warm)
	if err != nil {
		return f, err
	}
	calls := []int64{int64(cfg.Calls)}
	if cfg.Calls == 0 {
		calls[0] = int64(min(max(cfg.Duration.Seconds()/each, 1), 1e6))
	}
	if err := shmem.Broadcast(r.ctx, r.pe, calls, 0); err != nil {
		return f, err
	}
	r.fill()
	if err := op.call(r); err != nil {
		return f, err
	}
	if err := r.compare(op); err != nil {
		return f, err
	}
	if each, err = r.time(op, int(calls[0])); err != nil {
		return f, err
	}
	sum := []float64{each}
	if err := shmem.Reduce(r.ctx, r.pe, sum, sum, shmem.OpSum); err != nil {
		return f, err
	}
	n := r.pe.Size()
	f = Figure{Bytes: 4 * len(r.src), Calls: int(calls[0]), Seconds: sum[0] / float64(n)}
	f.Alg = float64(f.Bytes) / f.Seconds / 1e9
	f.Bus = f.Alg * op.bus(n)
	return f, nil
}

// time returns how long one of several calls takes, in seconds.
func (r *round) time(op *operation, calls int) (float64, error) {
	if err := r.pe.Sync(r.ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	for range calls {
		if err := op.call(r); err != nil {
			return 0, err
		}
	}
	return max(time.Since(start).Seconds(), 1e-9) / float64(calls), nil
}

// value is element i of a PE's vector. Sums of some thousand are exact.
func value(pe, i int) float32 { return float32((pe*31 + i) % 1021) }

// fill fills the vectors.
func (r *round) fill() {
	for i := range r.src {
		r.src[i] = value(r.pe.Rank(), i)
	}
	copy(r.dst, r.src) // for a broadcast; the other calls write over all that is compared
}

// own is this PE's block of a vector.
func (r *round) own(v []float32) []float32 { return v[r.pe.Rank()*r.block:][:r.block] }

// compare compares the result with what it must be.
func (r *round) compare(op *operation) error {
	for i, v := range r.dst {
		if op.name == "reduce-scatter" && i/r.block != r.pe.Rank() {
			continue // not of this PE's result
		}
		if want := op.want(r, i); v != want {
			return fmt.Errorf("PE %d: element %d is %v, want %v", r.pe.Rank(), i, v, want)
		}
	}
	return nil
}

// sum is an element of the sum of all vectors.
func (r *round) sum(i int) (all float32) {
	for pe := range r.pe.Size() {
		all += value(pe, i)
	}
	return all
}

func (r *round) gathered(i int) float32 { return value(i/r.block, i) }
func (r *round) exchanged(i int) float32 {
	return value(i/r.block, r.pe.Rank()*r.block+i%r.block)
}
