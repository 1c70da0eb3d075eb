package dqplb

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestSenderHandsOutAndReleases(t *testing.T) {
	s := newSender(3, 0)
	for want := range uint32(3) {
		if !s.Room() || s.Next() != want {
			t.Fatalf("number %d is not handed out", want)
		}
	}
	if s.Room() {
		t.Fatal("room beyond the limit")
	}
	for _, step := range []struct {
		num  uint32
		ok   bool
		room bool // afterwards
		says string
	}{
		{3, false, false, "a number that was not handed out"},
		{lastNum, false, false, "a number behind the start"},
		{1, true, false, "out of order: the oldest is still open"},
		{1, false, false, "a duplicate beyond the oldest"},
		{0, true, true, "the oldest, which takes 1 along"},
		{0, false, true, "a duplicate behind"},
		{1, false, true, "a duplicate behind, that came out of order"},
	} {
		if got := s.Ack(step.num); got != step.ok || s.Room() != step.room {
			t.Errorf("ack of %d (%s): %v, room %v", step.num, step.says, got, s.Room())
		}
	}
	if s.Next() != 3 || s.Next() != 4 || s.Room() {
		t.Error("two numbers were released")
	}
}

// refSender is Sender with a map and absolute numbers.
type refSender struct {
	sent, acked, limit uint64
	done               map[uint64]bool
}

func (r *refSender) ack(n uint64) bool {
	if n < r.acked || n >= r.sent || r.done[n] {
		return false
	}
	r.done[n] = true
	for r.done[r.acked] {
		delete(r.done, r.acked)
		r.acked++
	}
	return true
}

func TestSenderAgainstReference(t *testing.T) {
	for _, limit := range []int{1, 2, 63, 64, 65, 1000, MaxInFlight} {
		for _, start := range []uint64{0, Mod - 500, 3*Mod - 1, 1<<33 - 700} {
			t.Run(fmt.Sprintf("limit%d/from%d", limit, start), func(t *testing.T) {
				s := newSender(limit, 0)
				s.sent, s.acked = start, start
				ref := &refSender{sent: start, acked: start, limit: uint64(limit), done: map[uint64]bool{}}
				rng := rand.New(rand.NewPCG(uint64(limit), start))
				for range 20_000 {
					if room := ref.sent-ref.acked < ref.limit; s.Room() != room {
						t.Fatalf("room %v with %d open of %d", s.Room(), ref.sent-ref.acked, ref.limit)
					} else if room && rng.IntN(2) == 0 {
						want := uint32(ref.sent % Mod)
						ref.sent++
						if got := s.Next(); got != want || got > lastNum {
							t.Fatalf("number %#x, want %#x", got, want)
						}
						continue
					}
					// From a little behind the window to a little beyond, most often close to the
					// oldest.
					n := max(ref.acked, 5) - 5 + rng.Uint64N(12+(ref.sent-ref.acked)>>rng.UintN(10))
					if got, want := s.Ack(uint32(n%Mod)), ref.ack(n); got != want {
						t.Fatalf("ack of %d: %v, want %v (acked %d, sent %d)", n, got, want, ref.acked,
							ref.sent)
					}
					if s.sent != ref.sent || s.acked != ref.acked {
						t.Fatalf("acked %d sent %d, want %d %d", s.acked, s.sent, ref.acked, ref.sent)
					}
				}
			})
		}
	}
}

// All numbers, more than twice round.
func TestSenderGoesRoundAndRound(t *testing.T) {
	if testing.Short() {
		t.Skip("34 million numbers")
	}
	s := newSender(64, 0)
	want := uint32(0)
	for n := range uint64(2*Mod + 100) {
		num := s.Next()
		if num != want || num > lastNum {
			t.Fatalf("number %d is %#x, want %#x", n, num, want)
		}
		if want++; want == Mod {
			want = 0
		}
		// Pairs are acknowledged in reverse.
		if n&1 == 1 && (!s.Ack(num) || !s.Ack(uint32((n-1)%Mod)) || s.acked != n+1) {
			t.Fatalf("acknowledging %d: %d", n, s.acked)
		}
	}
}

// What is in order needs no memory: neither arrivals nor acknowledgements. A program may have
// thousands of connections.
func TestInOrderTakesNoMemory(t *testing.T) {
	if allocs := testing.AllocsPerRun(10, func() {
		box, s, r := NewInbox(256), NewSender(0), NewReceiver(0, false)
		for c := range uint64(1000) {
			num := s.Next()
			if got, ok := box.Resolve(c, 1<<28-1, c+256); !ok || got != c {
				t.Fatal(got, ok)
			}
			if !box.Put(c, Swap(num|Last), 8) {
				t.Fatal("not the next of its rail")
			}
			if _, due, err := r.Arrive(&box, Swap(num|Last), 8); !due || err != nil {
				t.Fatal(due, err)
			}
			if _, _, ok := box.Pop(); ok || !s.Ack(num) || !s.Room() {
				t.Fatal("something is out of order")
			}
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// The bitmap of a sender grows with how far acknowledgements are out of order.
func TestSenderGrowsWithNeed(t *testing.T) {
	s := NewSender(lastNum - 5)
	var nums []uint32
	for range MaxInFlight {
		nums = append(nums, s.Next())
	}
	words := 0
	for i := len(nums) - 1; i > 0; i-- {
		if i == 100 {
			words = len(s.done)
		}
		if !s.Ack(nums[i]) || s.Ack(nums[i]) || s.Room() {
			t.Fatalf("ack of %d", nums[i])
		}
	}
	if words != MaxInFlight/64 || len(s.done) != words {
		t.Errorf("%d words, then %d", words, len(s.done))
	}
	if !s.Ack(nums[0]) || s.Open() != 0 {
		t.Errorf("%d are open", s.Open())
	}
	near := NewSender(0)
	for range 1000 {
		a, b := near.Next(), near.Next()
		if !near.Ack(b) || !near.Ack(a) {
			t.Fatal(a, b)
		}
	}
	if len(near.done) != minDone/64 {
		t.Errorf("%d words for two numbers", len(near.done))
	}
}

// lastNum is the highest number that is ever sent; 0 follows.
const lastNum = 0xFFFFFE

func TestNumbersWrapBeforeTheReservedOne(t *testing.T) {
	for _, c := range []struct{ s, next uint32 }{{0, 1}, {lastNum - 1, lastNum}, {lastNum, 0}} {
		if got := following(c.s); got != c.next {
			t.Errorf("after %#x comes %#x, want %#x", c.s, got, c.next)
		}
	}
	for _, c := range []struct{ s, n, sum uint32 }{
		{0, 0, 0}, {0, lastNum, lastNum}, {1, lastNum, 0}, {lastNum, 0, lastNum}, {lastNum, 1, 0},
		{lastNum, lastNum, lastNum - 1}, {lastNum - 5, 10, 4},
	} {
		if got := Distance(c.s, c.sum); got != c.n {
			t.Errorf("distance from %#x to %#x = %d, want %d", c.s, c.sum, got, c.n)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		s, n := rng.Uint32N(Mod), rng.Uint32N(Mod)
		sum := uint32((uint64(s) + uint64(n)) % Mod)
		if got := Distance(s, sum); got != n {
			t.Fatalf("distance from %#x to %#x = %d, want %d", s, sum, got, n)
		}
		if next := following(s); next > lastNum || Distance(s, next) != 1 {
			t.Fatalf("after %#x comes %#x", s, next)
		}
	}
}

// On the wire a number is little-endian, which package verbs sees as swapped.
func TestNumberImmediateIsSwapped(t *testing.T) {
	for _, c := range []struct{ v, imm uint32 }{{0x000001, 0x01000000}, {0x80123456, 0x56341280},
		{1 << 30, 0x40}} {
		if got := Swap(c.v); got != c.imm || Swap(got) != c.v {
			t.Errorf("%#x travels as %#x, want %#x", c.v, got, c.imm)
		}
	}
}
