package ibverbx

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// posted is how many work requests the data rails were given.
func (r *recorded) posted() (n int) {
	for _, qp := range r.qps {
		n += len(qp.posts)
	}
	return n
}

// What a NIC takes no more of, although it says nothing, stays with its rail and is posted later.
func TestAcceptedInPart(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{FragmentSize: 1})
	for _, qp := range r.qps {
		qp.single = true
	}
	if n, err := r.PostSend(rawWrite(0, 10), rawWrite(1, 3)); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if got := r.finish(t); len(got) != 2 || r.posted() != 13 {
		t.Errorf("%d fragments posted; %+v", r.posted(), got)
	}
}

// DQPLB has 2^15 numbers on the way at most, however many requests the queue pairs hold; fragments
// and markers beyond wait until the oldest is acknowledged.
func TestNumbersOnTheWay(t *testing.T) {
	const most, rails = 1 << 15, 4
	for _, c := range []struct {
		name string
		// A notification of so many fragments, and perhaps a plain write on every rail and a
		// notification of one fragment, which needs a marker on three rails then.
		fragments int
		second    bool
		atOnce    int // numbers that go out before anything is acknowledged
		another   int // markers more, where another rail than the one planned carries the fragment
	}{
		{"the last number", most, false, most, 0},
		{"a fragment waits", most + 1, false, most, 0},
		{"many wait", 3 * most, false, most, 0},
		{"the markers and the fragment fit", most - 4, true, most, 0},
		{"the fragment waits", most - 3, true, most, 1},
		{"one marker waits", most - 2, true, most, 0},
		{"all markers wait", most, true, most, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRecorded(t, 1, rails, Config{FragmentSize: 1, MaxMsgCntPerQP: most, Credits: most})
			first, last := rawWrite(0, uint64(c.fragments)), rawWrite(2, 1)
			first.Opcode, last.Opcode = verbs.OpRDMAWriteWithImm, verbs.OpRDMAWriteWithImm
			requests, plain, numbers, ends := []SendWR{first}, 0, c.fragments, 1
			if c.second {
				requests = append(requests, rawWrite(1, rails), last)
				plain, numbers, ends = rails, numbers+rails+c.another, 2
			}
			if n, err := r.PostSend(requests...); n != len(requests) || err != nil {
				t.Fatal(n, err)
			}
			if n := r.posted(); n != plain+c.atOnce {
				t.Errorf("%d posted at once, want %d", n, plain+c.atOnce)
			}
			got := r.finish(t)
			if len(got) != len(requests) || got[len(got)-1].Status != verbs.StatusSuccess {
				t.Errorf("%+v", got)
			}
			seen := map[uint32]bool{}
			for _, qp := range r.qps {
				for _, wr := range qp.posts {
					if wr.Opcode != verbs.OpRDMAWriteWithImm {
						continue
					}
					v := dqplb.Swap(wr.Imm)
					if seen[v&0xffffff] {
						t.Fatalf("number %d is there twice", v&0xffffff)
					}
					if seen[v&0xffffff] = true; v&dqplb.Last != 0 {
						ends--
					}
				}
			}
			if len(seen) != numbers || ends != 0 {
				t.Errorf("%d numbers, want %d; %d ends too few", len(seen), numbers, ends)
			}
			if n := r.posted(); n != plain+numbers {
				t.Errorf("%d posted in the end, want %d", n, plain+numbers)
			}
		})
	}
}

// A request whose post is refused permanently ends with a status that says what kind of refusal it
// was.
func TestStatusOfARefusedPost(t *testing.T) {
	for want, err := range map[verbs.Status]error{
		verbs.StatusWRFlushErr: &verbs.OpError{Op: "post send", Err: verbs.ErrState},
		verbs.StatusFatalErr:   &verbs.OpError{Op: "post send", Err: verbs.ErrDeviceGone},
		verbs.StatusLocQPOpErr: &verbs.OpError{Op: "post send", Err: verbs.ErrInvalid},
	} {
		r := newRecorded(t, 1, 2, Config{FragmentSize: 10})
		r.qps[0].refuse = err
		if _, err := r.PostSend(rawWrite(1, 5)); err != nil {
			t.Fatal(err)
		}
		got := r.finish(t)
		if len(got) != 1 || got[0].Status != want || got[0].ID != 1 {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

// refWR is the reference for a staged work request.
type refWR struct {
	id     uint64
	sgl    []verbs.SGE
	inline []byte
}

// checkBatch checks that a batch holds what was staged, and every scatter list in its own place.
func checkBatch(t *testing.T, b *sendBatch, want []refWR) {
	t.Helper()
	if b.head < 0 || b.head > b.tail || b.tail > len(b.wrs) || b.tail-b.head != len(want) {
		t.Fatalf("head %d tail %d of %d, want %d waiting", b.head, b.tail, len(b.wrs), len(want))
	}
	for i, w := range want {
		at := b.head + i
		wr := &b.wrs[at]
		if wr.ID != w.id || !slices.Equal(wr.SGL, w.sgl) || !slices.Equal(wr.Inline, w.inline) {
			t.Fatalf("request %d is {%d %v %q}, want {%d %v %q}", i, wr.ID, wr.SGL, wr.Inline, w.id, w.sgl,
				w.inline)
		}
		if len(wr.SGL) != 0 && &wr.SGL[0] != &b.sges[at*b.width] {
			t.Fatalf("request %d: the scatter list is not in place %d", i, at)
		}
	}
}

func TestSendBatchKeepsRequestsWhole(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		size, width := 1+rng.IntN(9), 1+rng.IntN(4)
		b := newSendBatch(1+rng.IntN(size), width)
		var want []refWR
		next := uint64(1)
		for range 5000 {
			switch op := rng.IntN(10); {
			case op < 6 && len(want) < size:
				w := refWR{id: next}
				next++
				wr := b.add()
				wr.ID = w.id
				if rng.IntN(4) == 0 {
					w.inline = []byte(fmt.Sprint("inline ", w.id))
					b.setInline(wr, w.inline)
				} else {
					// A scatter list may become shorter than the room reserved for it.
					b.setSGL(wr, width)
					sgl := b.setSGL(wr, rng.IntN(width+1))
					for i := range sgl {
						sgl[i] = verbs.SGE{Addr: w.id, Length: uint32(i), LKey: rng.Uint32()}
					}
					w.sgl = slices.Clone(sgl)
				}
				want = append(want, w)
			case op < 8:
				n := rng.IntN(len(want) + 1)
				b.posted(n)
				want = want[n:]
			case op < 9:
				b.compact()
				if b.head != 0 && b.tail != 0 {
					t.Fatalf("compacted to %d..%d", b.head, b.tail)
				}
			default:
				lost := func(id uint64) bool { return id%3 == next%3 }
				b.drop(lost)
				want = slices.DeleteFunc(want, func(w refWR) bool { return lost(w.id) })
			}
			checkBatch(t, &b, want)
		}
	}
}

// The pool lends what came back last, never one batch twice, and none whose lists are too short for
// a rail that was added meanwhile.
func TestBatchPoolLends(t *testing.T) {
	p := batchPool{}
	p.fit(2)
	a, b := p.lend(), p.lend()
	if a == b || a.width != 2 {
		t.Fatalf("lent twice: %v; lists of %d", a == b, a.width)
	}
	p.giveBack(a)
	p.giveBack(b)
	if p.lend() != b || p.lend() != a {
		t.Error("what came back last is not lent first")
	}
	p.giveBack(a)
	p.fit(1)
	p.fit(4) // b is still lent
	p.giveBack(b)
	if c := p.lend(); c == a || c == b || c.width != 4 || len(c.sges) != 4*len(c.wrs) {
		t.Errorf("lists of %d", c.width)
	}
}

// jumpTo makes num the next number from a to b. Nothing may be in flight.
func jumpTo(a, b *VirtualQP, num uint32) {
	a.send.numbers = dqplb.NewSender(num)
	b.recv.order = dqplb.NewReceiver(num, a.send.rawImm)
}

// credit is a simulated completion of a rail's c-th credit.
func (r *recorded) credit(rail int, c uint64, imm uint32) verbs.WC {
	return verbs.WC{
		ID: wrid.New(wrid.Credit, wrid.BitsOf(rail), 0, c), Opcode: verbs.WCRecvRDMAWithImm,
		Imm: imm, Flags: verbs.WCWithImm, ByteLen: 10, QPNum: r.qps[rail].Num(),
	}
}

func TestInvalidCreditCompletionsAreDropped(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{Credits: 16})
	if _, err := r.PostRecv(RecvWR{ID: 1}, RecvWR{ID: 2}); err != nil {
		t.Fatal(err)
	}
	cq := r.CQ()
	first := r.credit(0, 0, dqplb.Swap(0|dqplb.Last))
	if got := cq.ProcessCompletions(nil, 0, first); len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	early := r.credit(0, 5, dqplb.Swap(9))
	cq.ProcessCompletions(nil, 0, early)
	otherRail := r.credit(1, 0, dqplb.Swap(1|dqplb.Last))
	otherRail.QPNum = r.qps[0].Num()
	for i, wc := range []verbs.WC{
		first, // handled already
		early, // waits already
		r.credit(0, 40, dqplb.Swap(1|dqplb.Last)), // never posted
		r.credit(0, wrid.NumberMask, 0),           // beyond all
		otherRail,
	} {
		if got := cq.ProcessCompletions(nil, 0, wc); len(got) != 0 || r.Err() != nil ||
			r.Stats().StaleEvents != uint64(i+1) {
			t.Errorf("completion %d: reported %+v, %v, %d dropped", i, got, r.Err(), r.Stats().StaleEvents)
		}
	}
	if got := cq.ProcessCompletions(nil, 0, r.credit(1, 0, dqplb.Swap(1|dqplb.Last))); len(got) != 1 ||
		got[0].ID != 2 {
		t.Errorf("the next credit is not handled: %+v", got)
	}
}

func TestUsedCreditsArePostedAgain(t *testing.T) {
	const credits = 32
	r := newRecorded(t, 1, 2, Config{Credits: credits})
	posted := func() int { return len(r.qps[0].recvs) }
	if posted() != credits || len(r.qps[1].recvs) != credits {
		t.Fatalf("%d and %d credits at RTR, want %d", posted(), len(r.qps[1].recvs), credits)
	}
	for num := range uint32(1000) {
		if !r.qps[0].CompleteRecv(dqplb.Swap(num), 1, verbs.WCRecvRDMAWithImm) {
			t.Fatalf("no credit for message %d", num)
		}
		pollNow(t, r.CQ())
		if used := int(num) + 1; posted()-used < credits-credits/creditBatch || posted()-used > credits {
			t.Fatalf("%d credits out after %d messages", posted()-used, used)
		}
	}
	for i, id := range r.qps[0].recvs {
		if id != wrid.New(wrid.Credit, 0, 0, uint64(i)) {
			t.Fatalf("credit %d has id %#x", i, id)
		}
	}
}

// With a peer that has SENDs on queue pair 0, as the original has, credits are posted with the
// first receive for a notification: at once where there is one already, and else not before.
func TestCreditsOfAPlainPeerWaitForAReceive(t *testing.T) {
	for _, early := range []bool{false, true} {
		r := newUnconnected(t, 1, 2, Config{MaxMsgCntPerQP: 8, Credits: 16})
		card, err := r.Card()
		if err != nil {
			t.Fatal(err)
		}
		card = Elsewhere(card)
		card.Scheme, card.Credits, card.RawImm = "", 0, false
		init := verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll}
		mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
		if err := r.Modify(init, mask, nil); err != nil {
			t.Fatal(err)
		}
		if early {
			if _, err := r.PostRecv(RecvWR{ID: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Connect(card); err != nil {
			t.Fatal(err)
		}
		if got := len(r.qps[1].recvs) != 0; got != early {
			t.Errorf("a receive is there: %v; credits are posted: %v", early, got)
		}
		if _, err := r.PostRecv(RecvWR{ID: 2}); err != nil {
			t.Fatal(err)
		}
		if len(r.qps[0].recvs) == 0 || len(r.qps[1].recvs) == 0 {
			t.Error("no credits are posted with a receive")
		}
	}
}
