package transport

import "testing"

// Credits that come with a buffer once it is posted again are owed already; the buffers of the
// transport's own messages owe none.
func TestBuffersToPostAgainOweTheirCredits(t *testing.T) {
	p := checkedPeer()
	p.w.bounce = &bouncePool{}
	p.sending.ownBuffers = 1<<ownBuffers - 1
	p.w.endpoints.add(p)
	e := &Endpoint{peer: p}
	if owed := e.Stats().Owed; owed != 0 {
		t.Errorf("%d credits are owed before a message", owed)
	}
	for slot := range uint32(2) { // of active messages
		if !p.credits.Arrive() {
			t.Fatal("no credit")
		}
		p.receiving.messages[slot].returnsCredit = true
		p.receiving.toRepost = append(p.receiving.toRepost, slot)
	}
	p.receiving.toRepost = append(p.receiving.toRepost, 4, 5) // of the transport's own
	if owed := e.Stats().Owed; owed != 2 {
		t.Errorf("%d credits are owed for two active messages", owed)
	}
	p.receiving.messages[0].returnsCredit = false
	p.receiving.toRepost = p.receiving.toRepost[1:]
	p.credits.Free(1)
	if owed := e.Stats().Owed; owed != 2 {
		t.Errorf("%d credits are owed, one of whose buffers is posted", owed)
	}
}
