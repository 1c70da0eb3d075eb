package ibverbx

import (
	"errors"
	"strings"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// A plain peer sends SENDs to queue pair 0: that one needs room for a credit and a SEND, the others
// do not.
func TestPlainPeerNeedsRoomOnTheFirstQueuePair(t *testing.T) {
	for first, recvs := range [][]int{{1, 64}, {64, 1}} {
		dev := verbstest.NewNull(1).Device(0)
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 1024})
		if err != nil {
			t.Fatal(err)
		}
		var qps []verbs.QP
		for _, n := range append(recvs, 64) { // the last one is the notify QP
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: n}})
			if err != nil {
				t.Fatal(err)
			}
			qps = append(qps, qp)
		}
		vcq, err := NewVirtualCQ(cq)
		if err != nil {
			t.Fatal(err)
		}
		q, err := NewVirtualQP(vcq, qps[:2], qps[2], Config{})
		if err != nil {
			t.Fatal(err)
		}
		card, err := q.Card()
		if err != nil {
			t.Fatal(err)
		}
		card.Scheme, card.Credits = "", 0
		err = q.Connect(Elsewhere(card))
		few := errors.Is(err, verbs.ErrInvalid) && strings.Contains(err.Error(), "Credits of 2 at least")
		if wantFew := first == 0; few != wantFew || !wantFew && err != nil {
			t.Errorf("receive queues of %v: %v", recvs, err)
		}
	}
}
