package ibverbx

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// lastNum is the highest number that is ever sent; 0 follows.
const lastNum = 0xFFFFFE

func TestNumbersWrapBeforeTheReservedOne(t *testing.T) {
	for _, c := range []struct{ s, next uint32 }{{0, 1}, {lastNum - 1, lastNum}, {lastNum, 0}} {
		if got := seqNext(c.s); got != c.next {
			t.Errorf("after %#x comes %#x, want %#x", c.s, got, c.next)
		}
	}
	for _, c := range []struct{ s, n, sum uint32 }{
		{0, 0, 0}, {0, lastNum, lastNum}, {1, lastNum, 0}, {lastNum, 0, lastNum}, {lastNum, 1, 0},
		{lastNum, lastNum, lastNum - 1}, {lastNum - 5, 10, 4},
	} {
		if got := seqDistance(c.s, c.sum); got != c.n {
			t.Errorf("distance from %#x to %#x = %d, want %d", c.s, c.sum, got, c.n)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		s, n := rng.Uint32N(seqMod), rng.Uint32N(seqMod)
		sum := uint32((uint64(s) + uint64(n)) % seqMod)
		if got := seqDistance(s, sum); got != n {
			t.Fatalf("distance from %#x to %#x = %d, want %d", s, sum, got, n)
		}
		if next := seqNext(s); next > lastNum || seqDistance(s, next) != 1 {
			t.Fatalf("after %#x comes %#x", s, next)
		}
	}
}

// On the wire a number is little-endian, which package verbs sees as swapped.
func TestNumberImmediateIsSwapped(t *testing.T) {
	for _, c := range []struct{ v, imm uint32 }{{0x000001, 0x01000000}, {0x80123456, 0x56341280},
		{1 << 30, 0x40}} {
		if got := seqImm(c.v); got != c.imm || seqImm(got) != c.v {
			t.Errorf("%#x travels as %#x, want %#x", c.v, got, c.imm)
		}
	}
}

func TestNumberSenderHandsOutAndReleases(t *testing.T) {
	s := newNumberSender(3, 0)
	for want := range uint32(3) {
		if !s.room() || s.next() != want {
			t.Fatalf("number %d is not handed out", want)
		}
	}
	if s.room() {
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
		if got := s.ack(step.num); got != step.ok || s.room() != step.room {
			t.Errorf("ack of %d (%s): %v, room %v", step.num, step.says, got, s.room())
		}
	}
	if s.next() != 3 || s.next() != 4 || s.room() {
		t.Error("two numbers were released")
	}
}

// refSender is numberSender with a map and absolute numbers.
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

func TestNumberSenderAgainstReference(t *testing.T) {
	for _, limit := range []int{1, 2, 63, 64, 65, 1000, maxWindow} {
		for _, start := range []uint64{0, seqMod - 500, 3*seqMod - 1, 1<<33 - 700} {
			t.Run(fmt.Sprintf("limit%d/from%d", limit, start), func(t *testing.T) {
				s := newNumberSender(limit, 0)
				s.sent, s.acked = start, start
				ref := &refSender{sent: start, acked: start, limit: uint64(limit), done: map[uint64]bool{}}
				rng := rand.New(rand.NewPCG(uint64(limit), start))
				for range 20_000 {
					if room := ref.sent-ref.acked < ref.limit; s.room() != room {
						t.Fatalf("room %v with %d open of %d", s.room(), ref.sent-ref.acked, ref.limit)
					} else if room && rng.IntN(2) == 0 {
						want := uint32(ref.sent % seqMod)
						ref.sent++
						if got := s.next(); got != want || got > lastNum {
							t.Fatalf("number %#x, want %#x", got, want)
						}
						continue
					}
					// From a little behind the window to a little beyond, most often close to the
					// oldest.
					n := max(ref.acked, 5) - 5 + rng.Uint64N(12+(ref.sent-ref.acked)>>rng.UintN(10))
					if got, want := s.ack(uint32(n%seqMod)), ref.ack(n); got != want {
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
func TestNumberSenderGoesRoundAndRound(t *testing.T) {
	if testing.Short() {
		t.Skip("34 million numbers")
	}
	s := newNumberSender(64, 0)
	want := uint32(0)
	for n := range uint64(2*seqMod + 100) {
		num := s.next()
		if num != want || num > lastNum {
			t.Fatalf("number %d is %#x, want %#x", n, num, want)
		}
		if want++; want == seqMod {
			want = 0
		}
		// Pairs are acknowledged in reverse.
		if n&1 == 1 && (!s.ack(num) || !s.ack(uint32((n-1)%seqMod)) || s.acked != n+1) {
			t.Fatalf("acknowledging %d: %d", n, s.acked)
		}
	}
}

func TestNumberReceiverVerdicts(t *testing.T) {
	for _, start := range []uint32{0, 100, lastNum - 1, lastNum} {
		r := numberReceiver{next: start}
		at := func(d int64) uint32 { return uint32((int64(start) + d + seqMod) % seqMod) }
		for _, step := range []struct {
			d    int64
			want admitResult
		}{
			{2, admitWaits}, {2, admitDuplicate}, {-1, admitDuplicate}, {-maxArrivals, admitDuplicate},
			{-maxArrivals - 1, admitFar},
			{maxArrivals, admitFar}, {seqMod / 2, admitFar}, {maxArrivals - 1, admitWaits}, {1, admitWaits},
			{0, admitAdvances},
		} {
			if got := r.admit(at(step.d), arrival{bytes: 1}); got != step.want {
				t.Errorf("from %#x, %+d: verdict %d, want %d", start, step.d, got, step.want)
			}
		}
		if r.held != 4 {
			t.Errorf("%d messages held, want 4", r.held)
		}
		taken := 0
		for _, _, ok := r.take(); ok; _, _, ok = r.take() {
			taken++
		}
		if taken != 3 || r.next != at(3) || r.held != 1 {
			t.Errorf("took %d, next %#x, held %d", taken, r.next, r.held)
		}
		if got := r.admit(at(2), arrival{}); got != admitDuplicate {
			t.Errorf("a number that was taken: verdict %d", got)
		}
	}
}

// The bytes of a request are those of all its messages, markers and earlier plain ones included;
// each request starts anew.
func TestNumberReceiverTotals(t *testing.T) {
	r := numberReceiver{next: lastNum}
	end := arrivedEnd
	messages := []arrival{{bytes: 1 << 31}, {bytes: 1 << 31}, {bytes: 1<<32 - 1, state: end}, {bytes: 0},
		{bytes: 7, state: end | arrivedImm, imm: 9}, {state: end}}
	num := uint32(lastNum)
	nums := make([]uint32, len(messages))
	for i := range messages {
		nums[i], num = num, seqNext(num)
	}
	for _, i := range []int{5, 3, 4, 1, 2, 0} {
		r.admit(nums[i], messages[i])
	}
	var totals []uint64
	for {
		a, total, ok := r.take()
		if !ok {
			break
		}
		if a.state&arrivedEnd != 0 {
			totals = append(totals, total)
			if total == 7 && (a.imm != 9 || a.state&arrivedImm == 0) {
				t.Errorf("the immediate is lost: %+v", a)
			}
		}
	}
	if fmt.Sprint(totals) != fmt.Sprint([]uint64{1<<33 - 1, 7, 0}) {
		t.Errorf("totals %v", totals)
	}
}

// refReceiver is numberReceiver with a map and absolute numbers.
type refReceiver struct {
	next    uint64
	waiting map[uint64]arrival
	bytes   uint64
}

func (r *refReceiver) admit(n uint64, a arrival) admitResult {
	_, waits := r.waiting[n]
	switch {
	case n < r.next || waits:
		return admitDuplicate
	case n >= r.next+maxArrivals:
		return admitFar
	}
	r.waiting[n] = a
	if n != r.next {
		return admitWaits
	}
	return admitAdvances
}

func (r *refReceiver) take() (a arrival, total uint64, ok bool) {
	if a, ok = r.waiting[r.next]; !ok {
		return a, 0, false
	}
	delete(r.waiting, r.next)
	r.next++
	r.bytes += uint64(a.bytes)
	total = r.bytes
	if a.state&arrivedEnd != 0 {
		r.bytes = 0
	}
	return a, total, true
}

func TestNumberReceiverAgainstReference(t *testing.T) {
	for _, start := range []uint64{maxArrivals, 2*seqMod - 300, 5*seqMod - 1} {
		for _, span := range []uint64{1, 3, 60, 1000, maxArrivals + 100} {
			t.Run(fmt.Sprintf("from%d/span%d", start, span), func(t *testing.T) {
				r := numberReceiver{next: uint32(start % seqMod)}
				ref := &refReceiver{next: start, waiting: map[uint64]arrival{}}
				rng := rand.New(rand.NewPCG(start, span))
				for range 20_000 {
					n := ref.next - min(3, ref.next) + rng.Uint64N(4+span>>rng.UintN(12))
					a := arrival{bytes: rng.Uint32(), imm: rng.Uint32()}
					if rng.IntN(3) == 0 {
						a.state = arrivedEnd
					}
					want := ref.admit(n, a)
					if got := r.admit(uint32(n%seqMod), a); got != want {
						t.Fatalf("message %d, expecting %d: verdict %d, want %d", n, ref.next, got, want)
					}
					for want == admitAdvances {
						gotA, gotTotal, ok := r.take()
						wantA, wantTotal, wantOK := ref.take()
						if ok != wantOK {
							t.Fatalf("take: %v, want %v", ok, wantOK)
						}
						if !ok {
							break
						}
						if gotA.bytes != wantA.bytes || gotA.imm != wantA.imm ||
							gotA.state&arrivedEnd != wantA.state&arrivedEnd || gotTotal != wantTotal {
							t.Fatalf("took %+v total %d, want %+v total %d", gotA, gotTotal, wantA, wantTotal)
						}
					}
					if r.held != len(ref.waiting) || r.next != uint32(ref.next%seqMod) {
						t.Fatalf("held %d next %d, want %d %d", r.held, r.next, len(ref.waiting),
							ref.next%seqMod)
					}
				}
				if n := len(r.ring); n > maxArrivals || n&(n-1) != 0 {
					t.Errorf("a ring of %d slots", n)
				}
			})
		}
	}
}
