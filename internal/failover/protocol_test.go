package failover

import (
	"testing"

	"ibverbx/internal/wrid"
)

// However deep queues are, what a peer may have received and lost with its CQ is told apart by
// counts of 16 bits.
func TestLostMessagesAreTellable(t *testing.T) {
	entries := make([]Entry, MaxOutstanding+ControlSlots)
	for i := range entries {
		entries[i].ID = wrid.New(wrid.Numbered, 0, 0, 1)
	}
	for _, lost := range []int{2, MaxOutstanding / 2, MaxOutstanding * 15 / 16, MaxOutstanding} {
		r := Rail{acked: 5, peerArrived: uint16(5 - lost), entries: entries}
		if end, err := r.covered(false); err == nil {
			t.Errorf("%d messages are lost, and %d entries count as arrived", lost, end)
		}
	}
}

// A peer that asks the same again and again, and takes no answer, does not fill the memory.
func TestControlMessagesDoNotPileUp(t *testing.T) {
	p := New([]Role{Data, Data, Sends, Sends})
	p.Begin(Config{Serving: [Roles]int{-1, 2, -1}})
	p.rails[1].stage = Ready
	p.unflushed = 1
	up := control{kind: controlUp, rail: 1, count: 9}
	serve := control{kind: controlServe, rail: 3, epoch: 3, count: 2}
	for range 1000 {
		for _, c := range []control{up, serve} {
			if actions, err := p.HandleControl(p.rails[0], c.bits(), false); err != nil || len(actions) != 0 {
				t.Fatal(actions, err)
			}
		}
	}
	if n, answers := len(p.rails[0].queue), len(p.heldAnswers); n != 1 || answers != 1 {
		t.Errorf("%d controls and %d answers wait, want one of each", n, answers)
	}
	if p.Answer(); len(p.heldAnswers) != 1 {
		t.Error("the follower has answered while a rail is dying")
	}
	p.unflushed = 0
	if p.Answer(); len(p.heldAnswers) != 0 || len(p.rails[0].queue) != 2 {
		t.Error("the follower does not answer when no rail is dying")
	}
}
