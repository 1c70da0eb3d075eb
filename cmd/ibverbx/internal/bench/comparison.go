package bench

import (
	"context"
	"errors"
	"fmt"
)

// Comparison is what a figure of a layer is measured by: the same messages in the same run in
// another way.
type Comparison struct {
	With         string  `json:"with"` // OneQueuePair or OneEndpoint
	MsgPerSecond float64 `json:"messages_per_second,omitempty"`
	P50          int64   `json:"p50_ns,omitempty"`
	// Ratio is this cell's figure to that one: of rates, more is better; of the medians of
	// latencies, less is.
	Ratio float64 `json:"ratio"`
	// Spread is of the ratios of what was measured in one turn.
	Spread *Spread `json:"spread,omitempty"`
}

// What figures are compared with.
const (
	OneQueuePair = "one queue pair" // without the layer
	OneEndpoint  = "one endpoint"   // instead of several
)

// compareTo makes the comparison of a result with another one.
func (r *Result) compareTo(with string, other *Result) {
	c := &Comparison{With: with, MsgPerSecond: other.MsgPerSecond}
	switch {
	case r.Latency != nil && other.Latency != nil:
		c.MsgPerSecond, c.P50 = 0, other.Latency.P50
		c.Ratio = float64(r.Latency.P50) / max(float64(other.Latency.P50), 1)
	case r.Latency == nil && other.MsgPerSecond > 0:
		c.Ratio = r.MsgPerSecond / other.MsgPerSecond
	default:
		return
	}
	if ratios := r.samples.over(other.samples); len(ratios) > 0 {
		c.Ratio, c.Spread = median(ratios), spreadOf(ratios)
	}
	r.Comparison = c
}

// compare makes the comparison with the same messages without the layer, if there is one.
func (r *Result) compare(below *Result) {
	if below != nil && r.Comparison == nil && r.Err == nil {
		r.compareTo(OneQueuePair, below)
	}
}

// below is one queue pair over NICs of the same kind, and the same memory,
// that a layer is compared with.
type below struct {
	*runner
	pair *pair
}

// openBelow opens what the layer is compared with, if anything.
func (r *runner) openBelow(open OpenFunc) error {
	if !r.p.compared() {
		return nil
	}
	q := r.p.beneath()
	c, err := newPair(q, open, Single, r.mem)
	if err != nil {
		return err
	}
	r.below = &below{newRunnerOver(r.ctx, q, r.mem, nil), c}
	return nil
}

func (b *below) close() error {
	b.stop()
	return b.pair.close()
}

// cellBelow is the cell of the messages of a size without the layer; nil for none.
func (r *runner) cellBelow(size int) *cell {
	if r.below == nil {
		return nil
	}
	return newCell(r.below.runner, r.below.pair, size)
}

// measureBelow takes a sample without the layer.
func (r *runner) measureBelow(c *cell, turn int) error {
	if c == nil || r.interrupted() {
		return nil
	}
	c.measure(turn)
	if err := c.result.Err; err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", OneQueuePair, err)
	}
	return nil
}

// resultBelow is what was measured without the layer; nil where that is no comparison.
func resultBelow(c *cell) *Result {
	if c == nil {
		return nil
	}
	c.close()
	c.result.finish(nil)
	if c.result.Messages == 0 || c.result.Err != nil {
		return nil
	}
	return &c.result
}
