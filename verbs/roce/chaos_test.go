package roce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/verbstest"
)

// harm is a network that loses, repeats, delays, reorders and spoils what a NIC sends, each with
// some probability, from a seed. The NIC's lock guards it.
type harm struct {
	dev  *Device
	rng  *rand.Rand
	odds odds
	next func(destination, []udp.Packet, bool) (int, error)
	late sync.WaitGroup
	done [len(odds{})]int // packets by what was done to them
}

// odds are how probable each harm is.
type odds [5]float64

const (
	lose = iota
	repeat
	delay
	spoil
	refuse
)

// do puts the network between a NIC and its socket until the test ends.
func (h *harm) do(t testing.TB, d *Device, seed uint64) {
	h.dev, h.rng = d, rand.New(rand.NewPCG(seed, uint64(d.id)))
	d.mu.Lock()
	h.next, d.sender.put = d.sender.put, h.put
	d.mu.Unlock()
	t.Cleanup(h.stop)
}

// stop ends it, and waits for what it has delayed.
func (h *harm) stop() {
	h.dev.mu.Lock()
	h.dev.sender.put = h.next
	h.dev.mu.Unlock()
	h.late.Wait()
}

// put carries packets, those that come to no harm as they would leave without it.
func (h *harm) put(to destination, packets []udp.Packet, segment bool) (int, error) {
	whole := 0 // packets before it have left
	for i := range packets {
		what := h.draw()
		if what < 0 {
			continue
		}
		h.done[what]++
		if n, err := h.next(to, packets[whole:i], segment && whole == 0); err != nil {
			return whole + n, err
		}
		whole = i + 1
		alone := []udp.Packet{{Header: slices.Concat(packets[i].Header, packets[i].Payload,
			packets[i].Trailer)}}
		switch what {
		case repeat:
			_, _ = h.next(to, alone, false)
			_, _ = h.next(to, alone, false)
		case delay:
			h.delayed(to, alone)
		case spoil:
			b := alone[0].Header
			b[h.rng.IntN(len(b))] ^= 1 << h.rng.IntN(8)
			_, _ = h.next(to, alone, false)
		case refuse:
			return i, udp.ErrAgain
		}
	}
	n, err := h.next(to, packets[whole:], segment && whole == 0)
	return whole + n, err
}

// draw is what happens to a packet: an index of odds, or -1.
func (h *harm) draw() int {
	x := h.rng.Float64()
	for i, p := range h.odds {
		if x -= p; x < 0 {
			return i
		}
	}
	return -1
}

// delayed sends a packet after those that follow it.
func (h *harm) delayed(to destination, packet []udp.Packet) {
	h.late.Add(1)
	after := time.Duration(h.rng.IntN(3000)) * time.Microsecond
	time.AfterFunc(after, func() {
		defer h.late.Done()
		h.dev.mu.Lock()
		defer h.dev.mu.Unlock()
		_, _ = h.next(to, packet, false)
	})
}

// Whatever the network does, every request completes once, with the bytes that it should have, in
// the order of posting, and nothing else is written to.
func TestHarm(t *testing.T) {
	for name, odds := range map[string]odds{
		"loss":       {lose: 0.05},
		"repeats":    {repeat: 0.2},
		"delay":      {delay: 0.05},
		"corruption": {spoil: 0.05},
		"refusals":   {refuse: 0.1},
		"everything": {lose: 0.02, repeat: 0.05, delay: 0.03, spoil: 0.02, refuse: 0.05},
	} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
				pair := newNodes(t, p.Device(0), p.Device(1), harmSlots*harmSlot)
				var networks [2]harm
				for i, n := range pair {
					networks[i].odds = odds
					networks[i].do(t, n.dev, seed)
				}
				x := &exchange{t: t, rng: rand.New(rand.NewPCG(seed, 99)), from: pair[0], to: pair[1]}
				x.run()
				for i := range networks {
					pair[i].dev.mu.Lock()
					t.Logf("lost, repeated, delayed, spoiled, refused: %v; %+v", networks[i].done,
						pair[i].dev.counts)
					pair[i].dev.mu.Unlock()
				}
			})
		}
	}
}

// BenchmarkLoss writes 1 MiB at a time, four under way, over a network that loses a part of the
// packets, of both directions.
func BenchmarkLoss(b *testing.B) {
	for _, rate := range []float64{0, 0.0001, 0.001, 0.01} {
		b.Run(fmt.Sprintf("%g%%", rate*100), func(b *testing.B) {
			const size, depth = 1 << 20, 4
			p := openNICs(b, Config{}, "127.0.0.1", "127.0.0.2")
			pair := newNodes(b, p.Device(0), p.Device(1), size)
			var networks [2]harm
			for i, n := range pair {
				networks[i].odds = odds{lose: rate}
				networks[i].do(b, n.dev, 1)
			}
			wr := pair[0].write(pair[1], 1, size)
			b.SetBytes(size)
			b.ResetTimer()
			for posted, done := 0, 0; done < b.N; done++ {
				for ; posted < b.N && posted-done < depth; posted++ {
					pair[0].post(b, wr)
				}
				pair[0].succeed(b)
			}
			b.StopTimer()
			c := pair[0].dev.Counters()
			b.ReportMetric(float64(c.Resent)/float64(max(c.Sent, 1))*100, "%resent")
			b.ReportMetric(float64(c.Timeouts), "timeouts")
		})
	}
}

// exchange is requests of every kind from one end to another, and what they have to lead to.
type exchange struct {
	t        *testing.T
	rng      *rand.Rand
	from, to *node
}

// The memory of both ends is slots; the i-th request has the i-th one.
const (
	harmSlots = 24
	harmSlot  = 24 << 10
	harmRound = 2
)

func (x *exchange) run() {
	t := x.t
	ops := []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp}
	for range harmRound {
		for _, n := range []*node{x.from, x.to} {
			for i := range n.buf {
				n.buf[i] = byte(x.rng.Uint32())
			}
		}
		want := [2][]byte{bytes.Clone(x.from.buf), bytes.Clone(x.to.buf)}
		var recvs []verbs.WC
		var sends []verbs.SendWR
		for i := range harmSlots {
			at := i * harmSlot
			n := x.rng.IntN(harmSlot + 1)
			op := ops[x.rng.IntN(len(ops))]
			if op.IsAtomic() {
				n = 8
			}
			wr := verbs.SendWR{ID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, Imm: x.rng.Uint32(),
				SGL: []verbs.SGE{{Addr: x.from.mr.Addr() + uint64(at), Length: uint32(n),
					LKey: x.from.mr.LKey()}},
				RemoteAddr: x.to.mr.Addr() + uint64(at), RKey: x.to.mr.RKey(), CompareAdd: x.rng.Uint64(),
				Swap: x.rng.Uint64()}
			if op == verbs.OpAtomicCmpAndSwp && i%2 == 0 {
				wr.CompareAdd = word(want[1], at)
			}
			sends = append(sends, wr)
			mine, theirs := want[0][at:at+n], want[1][at:at+n]
			switch op {
			case verbs.OpRDMARead:
				copy(mine, theirs)
			case verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp:
				old := word(want[1], at)
				copy(mine, theirs)
				switch {
				case op == verbs.OpAtomicFetchAdd:
					putWord(theirs, old+wr.CompareAdd)
				case old == wr.CompareAdd:
					putWord(theirs, wr.Swap)
				}
			default:
				copy(theirs, mine)
			}
			if op.IsSend() || op.HasImm() {
				wc := verbs.WC{ID: uint64(i), ByteLen: uint32(n)}
				if op.HasImm() {
					wc.Imm = wr.Imm
				}
				recvs = append(recvs, wc)
				_, err := x.to.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{
					{Addr: x.to.mr.Addr() + uint64(at), Length: harmSlot, LKey: x.to.mr.LKey()}}}})
				must(t, err)
			}
		}
		_, err := x.from.qp.PostSend(sends)
		must(t, err)
		for i := range sends {
			if wc := x.from.succeed(t); wc.ID != uint64(i) {
				t.Fatalf("completion of %d in place of %d", wc.ID, i)
			}
		}
		for _, w := range recvs {
			if wc := x.to.succeed(t); wc.ID != w.ID || wc.ByteLen != w.ByteLen || wc.Imm != w.Imm {
				t.Fatalf("received %+v, want %+v", wc, w)
			}
		}
		if !bytes.Equal(x.from.buf, want[0]) || !bytes.Equal(x.to.buf, want[1]) {
			t.Fatal("the bytes differ")
		}
	}
}

// A peer that vanishes is noticed when the timeout has passed as often as there are retries, and
// once more; and the next connection works. Time is virtual.
func TestPeerVanishes(t *testing.T) {
	const timeout, retries = 13, 3 // 34 ms
	adjust := func(_ verbs.QP, attr *verbs.QPAttr) { attr.Timeout, attr.RetryCount = timeout, retries }
	n := openVirtual(t, Config{})
	a, b := newNode(t, n.nics[0].Device, 64), newNode(t, n.nics[1].Device, 64)
	for _, met := range []bool{false, true} {
		must(t, verbstest.Connect(a.qp, b.qp, verbstest.ConnectConfig{Port: 1, Adjust: adjust}))
		if met {
			a.post(t, a.write(b, 1, 64))
			if wc := n.await(t, a); wc.Status != verbs.StatusSuccess {
				t.Errorf("the one before: %v", wc.Status)
			}
		}
		b.dev.SetLink(false)
		began := n.now
		a.post(t, a.write(b, 2, 64))
		a.post(t, a.write(b, 3, 64))
		wc := n.await(t, a)
		took, least := time.Duration(n.now-began), verbs.AckTimeout(timeout)*(retries+1)
		if wc.Status != verbs.StatusRetryExcErr || wc.ID != 2 {
			t.Errorf("completion of %d: %v", wc.ID, wc.Status)
		}
		if took < least || took > least+least/4 {
			t.Errorf("after %v, want %v", took, least)
		}
		if wc := n.await(t, a); wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("the one behind it: %v", wc.Status)
		}
		b.dev.SetLink(true)
		for _, n := range []*node{a, b} {
			must(t, n.qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState))
		}
	}
	if c := b.dev.Counters(); c.LinkDown == 0 || c.Malformed != 0 {
		t.Errorf("counted %+v", c)
	}
}

// Two providers have one address: the second takes another port, says so in its GID, and both talk.
func TestTwoProvidersOneAddress(t *testing.T) {
	at := ownAddr(1)
	first, second := openNICs(t, Config{}, at), openNICs(t, Config{}, at)
	a, b := first.Device(0), second.Device(0)
	if a.local.Port() != Port || b.local.Port() == Port || b.gid[0] != 0xfd {
		t.Fatalf("ports %d and %d, GID %v", a.local.Port(), b.local.Port(), b.gid)
	}
	pair := newNodes(t, a, b, harmSlots*harmSlot)
	for _, i := range []int{0, 1} {
		x := &exchange{t: t, rng: rand.New(rand.NewPCG(1, 2)), from: pair[i], to: pair[1-i]}
		x.run()
	}
	third := openNICs(t, Config{}, at).Device(0)
	pair = newNodes(t, third, b, 64)
	pair[0].post(t, pair[0].write(pair[1], 1, 64))
	pair[0].succeed(t)
}

func word(b []byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

func putWord(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }
