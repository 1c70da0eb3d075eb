package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
)

// Virtual queue pairs of different virtual CQs have different numbers, and so have virtual CQs.
func TestNumbersAreUniqueInTheProcess(t *testing.T) {
	qps, cqs := map[uint32]bool{}, map[uint32]bool{}
	for range 3 {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
		for _, e := range []*vqptest.End{l.A, l.B} {
			qps[e.Num()], cqs[e.CQ().Num()] = true, true
			if e.CQ().Stats().Num != e.CQ().Num() {
				t.Errorf("virtual CQ %d, and its statistics say %d", e.CQ().Num(), e.CQ().Stats().Num)
			}
		}
	}
	if len(qps) != 6 || len(cqs) != 6 || qps[0] || cqs[0] {
		t.Errorf("virtual queue pairs %v, virtual CQs %v", qps, cqs)
	}
}
