package ibverbx_test

import (
	"testing"

	"ibverbx"
)

// Virtual queue pairs of different virtual CQs have different numbers, and so have virtual CQs.
func TestNumbersAreUniqueInTheProcess(t *testing.T) {
	qps, cqs := map[uint32]bool{}, map[uint32]bool{}
	for range 3 {
		l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}})
		for _, e := range []*end{l.a, l.b} {
			qps[e.Num()], cqs[e.cq.Num()] = true, true
			if e.cq.Stats().Num != e.cq.Num() {
				t.Errorf("virtual CQ %d, and its statistics say %d", e.cq.Num(), e.cq.Stats().Num)
			}
		}
	}
	if len(qps) != 6 || len(cqs) != 6 || qps[0] || cqs[0] {
		t.Errorf("virtual queue pairs %v, virtual CQs %v", qps, cqs)
	}
}
