package ibverbx

import (
	"testing"

	"ibverbx/verbs"
)

// Reads and atomics outstanding are as many as both ends allow. A card that does not say how many
// its end serves means one: that is what the C++ original serves, and NICs answer a second with
// "invalid request".
func TestReadsOutstanding(t *testing.T) {
	for _, c := range []struct{ own, peer, want uint8 }{
		{0, 16, 16}, {0, 4, 4}, {3, 16, 3}, {0, 0, 1}, {3, 0, 1}, {0, 255, 16},
	} {
		r := newUnconnected(t, 1, 2, Config{Conn: ConnConfig{MaxRDAtomic: c.own}})
		card, err := r.Card()
		if err != nil {
			t.Fatal(err)
		}
		own := card.RDAtomic
		card.RDAtomic = c.peer
		if err := r.Connect(Elsewhere(card)); err != nil {
			t.Fatal(err)
		}
		rtr, rts := r.step(verbs.StateRTR), r.step(verbs.StateRTS)
		for i := range rts {
			if sends, serves := rts[i].MaxRDAtomic, rtr[i].MaxDestRDAtomic; sends != c.want || serves != own {
				t.Errorf("%d here, %d at the peer: rail %d sends %d and serves %d, want %d and %d", c.own,
					c.peer, i, sends, serves, c.want, own)
			}
		}
	}
}
