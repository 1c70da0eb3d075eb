package ibverbx

import (
	"testing"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// credit is a simulated completion of a rail's c-th credit.
func (r *recorded) credit(rail int, c uint64, imm uint32) verbs.WC {
	return verbs.WC{
		ID: wrid.New(wrid.Credit, wrid.BitsOf(rail), 0, c), Opcode: verbs.WCRecvRDMAWithImm,
		Imm: imm, Flags: verbs.WCWithImm, ByteLen: 10, QPNum: r.qps[rail].Num(),
	}
}

func TestInvalidCreditCompletionsAreDropped(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{Credits: 16})
	if _, err := r.PostRecv(RecvWR{ID: 1}, RecvWR{ID: 2}); err != nil {
		t.Fatal(err)
	}
	cq := r.CQ()
	first := r.credit(0, 0, dqplb.Swap(0|dqplb.Last))
	if got := cq.ProcessCompletions(nil, 0, first); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	early := r.credit(0, 5, dqplb.Swap(9))
	cq.ProcessCompletions(nil, 0, early)
	otherRail := r.credit(1, 0, dqplb.Swap(1|dqplb.Last))
	otherRail.QPNum = r.qps[0].Num()
	for i, wc := range []verbs.WC{
		first, // handled already
		early, // waits already
		r.credit(0, 40, dqplb.Swap(1|dqplb.Last)), // never posted
		r.credit(0, wrid.NumberMask, 0),           // beyond all
		otherRail,
	} {
		if got := cq.ProcessCompletions(nil, 0, wc); len(got) != 0 || r.Err() != nil ||
			r.Stats().StaleEvents != uint64(i+1) {
			t.Errorf("completion %d: reported %+v, %v, %d dropped", i, got, r.Err(), r.Stats().StaleEvents)
		}
	}
	if got := cq.ProcessCompletions(nil, 0, r.credit(1, 0, dqplb.Swap(1|dqplb.Last))); len(got) != 1 ||
		got[0].ID != 2 {
		t.Errorf("the next credit is not handled: %+v", got)
	}
}

func TestUsedCreditsArePostedAgain(t *testing.T) {
	const credits = 32
	r := newRecorded(t, 1, 2, Config{Credits: credits})
	posted := func() int { return len(r.qps[0].recvs) }
	if posted() != credits || len(r.qps[1].recvs) != credits {
		t.Fatalf("%d and %d credits at RTR, want %d", posted(), len(r.qps[1].recvs), credits)
	}
	for num := range uint32(1000) {
		if !r.qps[0].CompleteRecv(dqplb.Swap(num), 1, verbs.WCRecvRDMAWithImm) {
			t.Fatalf("no credit for message %d", num)
		}
		pollNow(t, r.CQ())
		if used := int(num) + 1; posted()-used < credits-credits/creditBatch || posted()-used > credits {
			t.Fatalf("%d credits out after %d messages", posted()-used, used)
		}
	}
	for i, id := range r.qps[0].recvs {
		if id != wrid.New(wrid.Credit, 0, 0, uint64(i)) {
			t.Fatalf("credit %d has id %#x", i, id)
		}
	}
}

// With a peer that has SENDs on queue pair 0, as the original has, credits are posted with the
// first receive for a notification: at once where there is one already, and else not before.
func TestCreditsOfAPlainPeerWaitForAReceive(t *testing.T) {
	for _, early := range []bool{false, true} {
		r := newUnconnected(t, 1, 2, Config{MaxMsgCntPerQP: 8, Credits: 16})
		card, err := r.Card()
		if err != nil {
			t.Fatal(err)
		}
		card = Elsewhere(card)
		card.Scheme, card.Credits, card.RawImm = "", 0, false
		init := verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll}
		mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
		if err := r.Modify(init, mask, nil); err != nil {
			t.Fatal(err)
		}
		if early {
			if _, err := r.PostRecv(RecvWR{ID: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Connect(card); err != nil {
			t.Fatal(err)
		}
		if got := len(r.qps[1].recvs) != 0; got != early {
			t.Errorf("a receive is there: %v; credits are posted: %v", early, got)
		}
		if _, err := r.PostRecv(RecvWR{ID: 2}); err != nil {
			t.Fatal(err)
		}
		if len(r.qps[0].recvs) == 0 || len(r.qps[1].recvs) == 0 {
			t.Error("no credits are posted with a receive")
		}
	}
}
