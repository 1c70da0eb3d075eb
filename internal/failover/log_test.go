package failover

import (
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx/internal/wrid"
)

// A log keeps the order of what is outstanding, in whatever order that is acknowledged, and however
// far behind the oldest is.
func TestLogKeepsTheOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	l, want, next := Log{}, []uint64{}, uint64(0)
	l.Fit(40)
	for range 20_000 {
		if len(want) == 0 || rng.IntN(2) == 0 && len(want) < 40 {
			id := wrid.New(wrid.Data+next%2, 0, 0, next)
			if next++; wrid.Kind(id) == wrid.Data {
				l.Push(id)
			} else {
				l.PushMessage(id)
			}
			want = append(want, id)
			continue
		}
		i := rng.IntN(len(want)) * rng.IntN(2)
		if !l.Complete(want[i]) || len(want) > 1 && l.Complete(want[i]) {
			t.Fatalf("entry %d of %d is not in the log, or twice", i, len(want))
		}
		want = slices.Delete(want, i, i+1)
		var got []uint64
		for at := l.head; at != l.tail; at++ {
			if id := *l.at(at); id > doneMessage {
				got = append(got, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("the log has %x, want %x", got, want)
		}
	}
	l.Push(wrid.New(wrid.Data, 0, 0, next+1))
	if l.Complete(wrid.New(wrid.Data, 0, 0, next)) {
		t.Error("what was never logged is complete")
	}
	if l.messages != next/2 {
		t.Errorf("%d messages of %d entries", l.messages, next)
	}
}

// What was acknowledged behind something that was not stays in the log, and counts as the message
// that it was, or as none.
func TestLogKnowsWhatIsDone(t *testing.T) {
	l := Log{}
	l.Fit(8)
	for n := range uint64(6) {
		if id := wrid.New(wrid.Data+n%2, 0, 0, n); n%2 == 0 {
			l.Push(id)
		} else {
			l.PushMessage(id)
		}
	}
	for _, n := range []uint64{4, 3, 0} {
		l.Complete(wrid.New(wrid.Data+n%2, 0, 0, n))
	}
	for i, e := range l.Take(1) {
		want := [...]EntryState{EntryOut, EntryOut, EntryDone, EntryDone, EntryUnposted}[i]
		if n := i + 1; e.State != want || e.IsMessage() != (n%2 == 1) {
			t.Errorf("entry %d: state %d, want %d; a message: %v", n, e.State, want, e.IsMessage())
		}
	}
}
