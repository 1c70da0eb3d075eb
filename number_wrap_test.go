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
