package dqplb

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// numbered is the immediate of a message.
func numbered(num uint32, marks ...uint32) uint32 {
	for _, m := range marks {
		num |= m
	}
	return Swap(num)
}

// arrive hands a message to the receiver and collects the notifications that are due, its own and
// those of messages that waited for it.
func arrive(r *Receiver, box *Inbox, imm, bytes uint32) (due []Notification, err error) {
	n, ok, err := r.Arrive(box, imm, bytes)
	if ok {
		due = append(due, n)
	}
	for r.Ready() {
		if n, ok := r.Take(); ok {
			due = append(due, n)
		}
	}
	return due, err
}

func TestReceiverRefusesWhatCannotBe(t *testing.T) {
	const waits, advances, twice, far = "", "advances", "came twice", "too far ahead"
	for _, start := range []uint32{0, 100, lastNum - 1, lastNum} {
		r, box := NewReceiver(start, false), NewInbox(1)
		at := func(d int64) uint32 { return uint32((int64(start) + d + Mod) % Mod) }
		for _, step := range []struct {
			d    int64
			want string
		}{
			{2, waits}, {2, twice}, {-1, twice}, {-MaxHeld, twice}, {-MaxHeld - 1, far}, {MaxHeld, far},
			{Mod / 2, far}, {MaxHeld - 1, waits}, {1, waits},
		} {
			_, err := arrive(&r, &box, numbered(at(step.d)), 1)
			if step.want == waits && err != nil ||
				step.want != waits && (err == nil || !strings.Contains(err.Error(), step.want)) {
				t.Errorf("from %#x, %+d: error %v, want %q", start, step.d, err, step.want)
			}
		}
		if r.Held() != 3 || r.Next() != start {
			t.Errorf("%d messages held, want 3; next %#x", r.Held(), r.Next())
		}
		if _, err := arrive(&r, &box, numbered(start), 1); err != nil || r.Next() != at(3) || r.Held() != 1 {
			t.Errorf("error %v, next %#x, held %d", err, r.Next(), r.Held())
		}
		if _, err := arrive(&r, &box, numbered(at(2)), 1); err == nil {
			t.Errorf("a number that was taken is taken again")
		}
	}
}

func TestReceiverRefusesWhatIsNoNumber(t *testing.T) {
	for _, c := range []struct {
		name   string
		imm    uint32
		rawImm bool
	}{
		{"the number that is never sent", numbered(Mod), true},
		{"the number that is never sent, marked", numbered(Mod, Last), true},
		{"a reserved bit", numbered(0, 1<<24), true},
		{"an immediate announced by a peer that has none", numbered(0, Last, Raw), false},
		{"an immediate announced before the end", numbered(0, Raw), true},
	} {
		r, box := NewReceiver(0, c.rawImm), NewInbox(1)
		if _, err := arrive(&r, &box, c.imm, 1); err == nil || r.Next() != 0 || r.Held() != 0 {
			t.Errorf("%s: error %v, next %d, held %d", c.name, err, r.Next(), r.Held())
		}
	}
}

// The bytes of a request are those of all its messages, markers and earlier plain ones included;
// each request starts anew. The user's immediate comes behind the last message, on the same rail.
func TestReceiverCountsTheBytesOfARequest(t *testing.T) {
	r, box := NewReceiver(lastNum, true), NewInbox(1)
	type message struct{ imm, bytes uint32 }
	messages := [][]message{
		{{numbered(lastNum), 1 << 31}}, {{numbered(0), 1 << 31}}, {{numbered(1, Last), 1<<32 - 1}},
		{{numbered(2), 0}}, {{numbered(3, Last, Raw), 7}, {9, 0}}, {{numbered(4, Last), 0}},
	}
	var got []Notification
	for _, i := range []int{5, 3, 4, 1, 2, 0} {
		for _, m := range messages[i] {
			due, err := arrive(&r, &box, m.imm, m.bytes)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, due...)
		}
	}
	want := []Notification{{Bytes: 1<<33 - 1, Number: 1}, {Bytes: 7, Imm: 9, Number: 3}, {Number: 4}}
	if !slices.Equal(got, want) {
		t.Errorf("notifications %+v, want %+v", got, want)
	}
}

// refReceiver is Receiver with a map and absolute numbers.
type refReceiver struct {
	next    uint64
	waiting map[uint64]refMessage
	bytes   uint64
}

type refMessage struct {
	bytes uint32
	end   bool
}

func (r *refReceiver) arrive(n uint64, m refMessage) (due []Notification, err bool) {
	if _, waits := r.waiting[n]; n < r.next || waits || n >= r.next+MaxHeld {
		return nil, true
	}
	r.waiting[n] = m
	for m, ok := r.waiting[r.next]; ok; m, ok = r.waiting[r.next] {
		delete(r.waiting, r.next)
		if r.bytes += uint64(m.bytes); m.end {
			due = append(due, Notification{Bytes: r.bytes, Number: uint32(r.next % Mod)})
			r.bytes = 0
		}
		r.next++
	}
	return due, false
}

func TestReceiverAgainstReference(t *testing.T) {
	for _, start := range []uint64{MaxHeld, 2*Mod - 300, 5*Mod - 1} {
		for _, span := range []uint64{1, 3, 60, 1000, MaxHeld + 100} {
			t.Run(fmt.Sprintf("from%d/span%d", start, span), func(t *testing.T) {
				r, box := NewReceiver(uint32(start%Mod), false), NewInbox(1)
				ref := &refReceiver{next: start, waiting: map[uint64]refMessage{}}
				rng := rand.New(rand.NewPCG(start, span))
				for range 20_000 {
					n := ref.next - min(3, ref.next) + rng.Uint64N(4+span>>rng.UintN(12))
					m := refMessage{bytes: rng.Uint32(), end: rng.IntN(3) == 0}
					imm := numbered(uint32(n % Mod))
					if m.end {
						imm = numbered(uint32(n%Mod), Last)
					}
					want, refused := ref.arrive(n, m)
					got, err := arrive(&r, &box, imm, m.bytes)
					if (err != nil) != refused || !slices.Equal(got, want) {
						t.Fatalf("message %d, expecting %d: %+v, error %v, want %+v, refused %v", n, ref.next,
							got, err, want, refused)
					}
					if r.Held() != len(ref.waiting) || r.Next() != uint32(ref.next%Mod) {
						t.Fatalf("held %d next %d, want %d %d", r.Held(), r.Next(), len(ref.waiting),
							ref.next%Mod)
					}
				}
				if n := len(r.ring); n > MaxHeld || n&(n-1) != 0 {
					t.Errorf("a ring of %d slots", n)
				}
			})
		}
	}
}

// check tests the invariant.
func (b *Inbox) check(t *testing.T) {
	t.Helper()
	taken := 0
	for _, s := range b.slots {
		if s.taken {
			taken++
		}
	}
	if b.kept != taken {
		t.Errorf("%d slots are taken, %d are counted", taken, b.kept)
	}
}

// Completions of one rail in any order give its messages in the order of the credits; one that
// comes twice, or on no credit, is known.
func TestInboxKeepsTheOrderOfCredits(t *testing.T) {
	const mask = 1<<28 - 1
	for _, first := range []uint64{0, 5, mask - 2, 1 << 40} {
		box := NewInbox(5)
		box.Restart(first)
		if box.Room(first) != 8 {
			t.Fatalf("room for %d credits, want 8", box.Room(first))
		}
		posted := first + 6
		var order []uint64
		for _, d := range []uint64{2, 0, 1, 5, 4, 3} {
			c, ok := box.Resolve((first+d)&mask, mask, posted)
			if !ok || c != first+d {
				t.Fatalf("credit %d resolves to %d, %v", first+d, c, ok)
			}
			if box.Put(c, uint32(d), 0) {
				order = append(order, d)
				for {
					imm, bytes, ok := box.Pop()
					box.check(t)
					if !ok {
						if imm != 0 || bytes != 0 {
							t.Errorf("%d of %d bytes where nothing is next", imm, bytes)
						}
						break
					}
					order = append(order, uint64(imm))
				}
			}
			if _, ok := box.Resolve((first+d)&mask, mask, posted); ok {
				t.Errorf("credit %d resolves a second time", first+d)
			}
			box.check(t)
		}
		if !slices.Equal(order, []uint64{0, 1, 2, 3, 4, 5}) || box.Room(posted) != 8 {
			t.Errorf("order %v, room %d", order, box.Room(posted))
		}
		if _, ok := box.Resolve(posted&mask, mask, posted); ok {
			t.Error("a credit that was not posted resolves")
		}
		box.Fail(posted)
		if _, ok := box.Resolve(posted&mask, mask, posted+2); ok {
			t.Error("a credit that has failed resolves")
		}
		if box.Put(posted+1, 0, 0) {
			t.Error("a message behind a credit that has failed is in order")
		}
		if imm, bytes, ok := box.Pop(); ok || imm != 0 || bytes != 0 {
			t.Errorf("a credit that has failed brings a message: %d of %d bytes, %v", imm, bytes, ok)
		}
		box.check(t)
		box.Restart(posted + 2)
		box.check(t)
	}
}
