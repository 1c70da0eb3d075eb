package failover

import "testing"

// Of the acknowledged messages that a peer does not count, controls are no loss, nor is the last
// fragment whose immediate is still due, in whatever order they were posted. Any other is.
func TestWhichMessagesAreLostWithACQ(t *testing.T) {
	for _, c := range []struct {
		name     string
		count    uint64   // what the peer has counted of 10
		controls []uint64 // the places of controls among the 10
		immDue   bool
		lost     bool
	}{
		{name: "nothing", count: 10},
		{name: "a message", count: 9, lost: true},
		{name: "a control", count: 9, controls: []uint64{9}},
		{name: "two controls", count: 8, controls: []uint64{8, 9}},
		{name: "a message behind a control", count: 8, controls: []uint64{8}, lost: true},
		{name: "a message ahead of a control", count: 8, controls: []uint64{9}, lost: true},
		{name: "a fragment whose immediate is due", count: 9, immDue: true},
		{name: "such a fragment ahead of a control", count: 8, controls: []uint64{9}, immDue: true},
		{name: "such a fragment between controls", count: 7, controls: []uint64{7, 9}, immDue: true},
		{name: "a message ahead of such a fragment", count: 8, immDue: true, lost: true},
		{name: "a message ahead of such a fragment and a control", count: 7, controls: []uint64{9},
			immDue: true, lost: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, first := range []uint64{0, 1<<16 - 5, 1<<16 - 9} { // the count on the wire wraps
				v := Rail{acked: first + 10, peerArrived: uint16(first + c.count)}
				for _, place := range c.controls {
					v.places = append(v.places, first+place)
				}
				if end, err := v.covered(c.immDue); end != 0 || (err != nil) != c.lost {
					t.Errorf("from %d on: %d entries have arrived, %v", first, end, err)
				}
			}
		})
	}
}

// A control is no excuse for the message that is 65,536 behind it, whose count on the wire is the
// same.
func TestAControlIsNoOtherMessage(t *testing.T) {
	for _, behind := range []uint64{0, 1 << 16, 1 << 32} {
		var v Rail
		v.notePlace(7)
		v.acked, v.peerArrived = 8+behind, 7
		if _, err := v.covered(false); (err != nil) != (behind != 0) {
			t.Errorf("the message %d behind a control is lost: %v", behind, err)
		}
	}
}
