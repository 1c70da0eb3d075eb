package ibverbx

import "testing"

// Drain of a single queue pair is over where nothing is left, and where the queue pair was
// destroyed, whatever it held: nothing is posted on it any more. Where something is left, two
// requests of Drain's own are.
func TestDrainIsOver(t *testing.T) {
	for _, c := range []struct {
		closed, sends, probes, over bool
	}{
		{false, false, false, true}, {true, false, false, true}, {true, true, false, true},
		{true, false, true, true}, {false, true, false, false}, {false, false, true, false},
	} {
		q := newLone(t, Config{})
		p := q.pass
		p.rail.closed = c.closed
		if c.sends {
			p.sends++
		}
		if c.probes {
			p.probes.posted++
		}
		over, o := p.finishRecvs(), &p.probes
		if over != c.over || o.sendPosted == over || o.recvPosted == over {
			t.Errorf("%+v: over: %v, probes posted: %v, %v", c, over, o.sendPosted, o.recvPosted)
		}
	}
}
