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
	r.Comparison = c
}

// compare makes the comparison with the same messages without the layer, if there is one.
func (r *Result) compare(below *Result) {
	if below != nil && r.Comparison == nil && r.Err == nil {
		r.compareTo(OneQueuePair, below)
	}
}

// below is one queue pair over NICs of the same kind, and the same memory, that a layer is compared
// with.
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

// measureBelow measures the messages of a size without the layer. Nil: that is no comparison.
func (r *runner) measureBelow(size int) (*Result, error) {
	if r.below == nil || r.interrupted() {
		return nil, nil
	}
	c := newCell(r.below.runner, r.below.pair, size)
	c.measure()
	c.result.finish(0)
	if err := c.result.Err; err != nil && !errors.Is(err, context.Canceled) {
		return nil, fmt.Errorf("%s: %w", OneQueuePair, err)
	}
	if c.result.Messages == 0 {
		return nil, nil
	}
	return &c.result, nil
}
