package ibverbx

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"ibverbx/internal/dqplb"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// jumpTo makes num the next number from a to b. Nothing may be in flight.
func jumpTo(a, b *VirtualQP, num uint32) {
	a.send.numbers = dqplb.NewSender(num)
	b.recv.order = dqplb.NewReceiver(num, a.send.rawImm)
}

// softPair is two connected virtual queue pairs, each with a registered buffer and two software
// NICs.
func softPair(t *testing.T, cfg Config) (ends [2]*VirtualQP, mrs [2]*MR) {
	t.Helper()
	fabric, err := soft.New(soft.Config{Devices: 4})
	if err != nil {
		t.Fatal(err)
	}
	var cards [2]BusinessCard
	for i := range ends {
		if ends[i], err = Open([]verbs.Device{fabric.Device(2 * i), fabric.Device(2*i + 1)},
			cfg); err != nil {
			t.Fatal(err)
		}
		if mrs[i], err = ends[i].Domain().Register(make([]byte, 1<<16), verbs.AccessAll); err != nil {
			t.Fatal(err)
		}
		if cards[i], err = ends[i].Card(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(ends[0].Connect(cards[1]), ends[1].Connect(cards[0])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ends[0].Close(), ends[1].Close(), mrs[0].Close(), mrs[1].Close(),
			fabric.Close()); err != nil {
			t.Errorf("leak: %v", err)
		}
	})
	return ends, mrs
}

// Notifications stay complete and in order when the numbers wrap.
func TestNotificationsAcrossTheWrapOfNumbers(t *testing.T) {
	ends, mrs := softPair(t, Config{QPsPerDevice: 2, FragmentSize: 100, MaxMsgCntPerQP: 8})
	a, b := ends[0], ends[1]
	remote := mrs[1].Remote()
	rng := rand.New(rand.NewPCG(1, 5))
	for range 3 {
		const start = dqplb.Mod - 1000
		jumpTo(a, b, start)
		const total = 800
		lengths := make([]uint64, total)
		for id := range uint64(total) {
			lengths[id] = 1 + rng.Uint64N(600)
			if _, err := b.PostRecv(RecvWR{ID: id}); err != nil {
				t.Fatal(err)
			}
			wrs := []SendWR{
				{ID: 1 << 32, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
					Local: mrs[0].Slice(0, 150), Remote: remote.At(0)},
				{ID: id, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
					Local: mrs[0].Slice(0, lengths[id]), Remote: remote.At(0), Imm: uint32(id)},
			}
			if id%3 != 0 {
				wrs = wrs[1:] // plain writes in between need markers
			}
			if _, err := a.PostSend(wrs...); err != nil {
				t.Fatal(err)
			}
		}
		got := uint64(0)
		for deadline := time.Now().Add(20 * time.Second); got < total; runtime.Gosched() {
			for _, wc := range pollNow(t, b.CQ()) {
				if wc.ID != got || wc.Status != 0 || wc.Imm != uint32(got) || wc.ByteLen != lengths[got] {
					t.Fatalf("receive %d: %+v", got, wc)
				}
				got++
			}
			for _, wc := range pollNow(t, a.CQ()) {
				if wc.Status != 0 {
					t.Fatalf("%+v: %v", wc, a.Err())
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d notifications: %+v, %+v", got, total, a.Stats(), b.Stats())
			}
		}
		for a.Stats().SendWindow != 0 {
			pollNow(t, a.CQ())
		}
		if s := a.Stats(); s.NumbersSent < 1100 || s.NumbersOpen != 0 || s.Markers == 0 {
			t.Fatalf("the numbers did not wrap: %+v", s)
		}
		at := uint32((uint64(start) + a.Stats().NumbersSent) % dqplb.Mod)
		if next := b.recv.order.Next(); next != at {
			t.Fatalf("the sender is at %d, the receiver expects %d", at, next)
		}
	}
}

// The numbers wrap while rails overtake each other at random; every number that is posted is
// checked.
func TestNumbersWrapWhileRailsOvertakeEachOther(t *testing.T) {
	cfg := Config{FragmentSize: 100, MaxMsgCntPerQP: 32}
	a, b := newRecorded(t, 2, 2, cfg), newRecorded(t, 2, 2, cfg)
	jumpTo(a.VirtualQP, b.VirtualQP, dqplb.Mod-300)
	keys := hugeKeys(1)
	rng := rand.New(rand.NewPCG(2, 5))
	const total = 1000
	for id := range uint64(total) {
		if _, err := b.PostRecv(RecvWR{ID: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.PostSend(SendWR{
			ID: id, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(id % 2 * id),
			Local:  Segment{Addr: 1 << 40, Length: 1 + id%500, Keys: keys},
			Remote: RemoteSegment{Addr: 1 << 41, Length: 1 << 20, Keys: keys},
		}); err != nil {
			t.Fatal(err)
		}
	}
	a.finish(t)
	got := uint64(0)
	for tries := 0; got < total; tries++ {
		i := rng.IntN(len(a.qps))
		for range rng.IntN(40) {
			qp := a.qps[i]
			if len(qp.posts) == 0 || !b.qps[i].CompleteRecv(qp.posts[0].Imm, uint32(qp.posts[0].Bytes()),
				verbs.WCRecvRDMAWithImm) {
				break
			}
			if wr := &qp.posts[0]; wr.Bytes() != 0 && dqplb.Swap(wr.Imm)&0xffffff == dqplb.Mod {
				t.Fatal("0xFFFFFF was sent")
			}
			qp.posts = qp.posts[1:]
		}
		for _, wc := range pollNow(t, b.CQ()) {
			if wc.ID != got || wc.Status != 0 || wc.Imm != uint32(got%2*got) || wc.ByteLen != 1+got%500 {
				t.Fatalf("receive %d: %+v; %v", got, wc, b.Err())
			}
			got++
		}
		if tries > 1_000_000 {
			t.Fatalf("stuck at %d: %+v", got, b.Stats())
		}
	}
	if next := b.recv.order.Next(); next > 10_000 {
		t.Errorf("the numbers did not wrap: %d", next)
	}
}

// Two ends that both configure a first number begin there and cross the wrap soon; where only one
// does, both begin at 0.
func TestFirstNumber(t *testing.T) {
	for _, both := range []bool{true, false} {
		fabric, err := soft.New(soft.Config{Devices: 2})
		if err != nil {
			t.Fatal(err)
		}
		cfg := Config{QPsPerDevice: 3, FragmentSize: 16, Testing: Testing{FirstNumber: dqplb.Mod - 5}}
		a, err := Open([]verbs.Device{fabric.Device(0)}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if !both {
			cfg.Testing.FirstNumber = 0
		}
		b, err := Open([]verbs.Device{fabric.Device(1)}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // and again after a reset
			connectFirstNumber(t, a, b, both)
			if err := errors.Join(a.Reset(), b.Reset()); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(a.Close(), b.Close(), fabric.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// connectFirstNumber connects two ends and sends 20 notified messages of three fragments from a to
// b.
func connectFirstNumber(t *testing.T, a, b *VirtualQP, wraps bool) {
	t.Helper()
	cardA, errA := a.Card()
	cardB, errB := b.Card()
	if err := errors.Join(errA, errB, a.Connect(cardB), b.Connect(cardA)); err != nil {
		t.Fatal(err)
	}
	mrA, errA := a.Domain().Register(make([]byte, 48), verbs.AccessAll)
	mrB, errB := b.Domain().Register(make([]byte, 48), verbs.AccessAll)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(20) {
		_, err := b.PostRecv(RecvWR{ID: i})
		if err != nil {
			t.Fatal(err)
		}
		wr := SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Local: mrA.All(),
			Remote: mrB.Remote().At(0), Imm: uint32(i)}
		if _, err := a.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(a.CQ().Wait(t.Context()), b.CQ().Wait(t.Context())); err != nil {
			t.Fatal(err)
		}
		if wc, ok, err := a.CQ().PollOne(); !ok || err != nil || wc.Status != verbs.StatusSuccess {
			t.Fatal(wc, ok, err)
		}
		if wc, ok, err := b.CQ().PollOne(); !ok || err != nil || wc.ID != i || wc.Imm != uint32(i) ||
			wc.ByteLen != 48 {
			t.Fatal(wc, ok, err)
		}
	}
	if sent := a.Stats().NumbersSent; sent < 60 {
		t.Fatalf("%d numbers sent, want 60 or more", sent)
	}
	sent, next := a.Stats().NumbersSent, b.recv.order.Next()
	if wrapped := uint64(next) < sent; wrapped != wraps {
		t.Fatalf("%d numbers sent, receiver at %d: wrapped %v, want %v", sent, next, wrapped, wraps)
	}
	if err := errors.Join(mrA.Close(), mrB.Close()); err != nil {
		t.Fatal(err)
	}
}
