package ibverbx

import (
	"testing"

	"ibverbx/verbs"
)

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
