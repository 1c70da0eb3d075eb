package lab

import "testing"

// The numbers that queue pairs get follow from the seed and from nothing that the library draws:
// where two queue pairs draw the same number, each gets the one that it would get otherwise.
func TestPSNsFollowFromTheSeed(t *testing.T) {
	apart, same := newPSNs(1), newPSNs(1)
	for i := range uint32(4) {
		want := apart.translate(100+i, 7000*i)
		if got := same.translate(100+i, 7000); got != want {
			t.Errorf("queue pair %d gets %d, and %d where all draw the same", 100+i, want, got)
		}
		if again := apart.translate(100+i, 7000*i); again != want {
			t.Errorf("queue pair %d gets %d, and %d when it asks again", 100+i, want, again)
		}
	}
}
