package transport_test

import "testing"

// A peer that only receives gives credits back by themselves once half of its buffers are free, and
// not before.
func TestCreditsComeBackByHalves(t *testing.T) {
	for _, buffers := range []int{1, 2, 4, 8, 16, 32} {
		s := shapes()[0]
		s.stepped = true
		s.cfg.AMBuffers = buffers
		l := newLink(t, s)
		for sent := 1; sent <= 2*buffers; sent++ {
			l.send(l.a, nil)
			l.quiet()
			want := buffers - sent%((buffers+1)/2)
			if got := l.a.Stats().Credits; got != want {
				t.Fatalf("%d buffers: %d credits after %d messages, want %d", buffers, got, sent, want)
			}
		}
		if n, want := l.b.w.Stats().Control, uint64(2*buffers/((buffers+1)/2)); n != want {
			t.Errorf("%d buffers: %d messages with credits, want %d", buffers, n, want)
		}
	}
}
