package soft

import (
	"errors"
	"testing"
	"time"

	"ibverbx/verbs"
)

func TestFaults(t *testing.T) {
	t.Run("fail send", func(t *testing.T) {
		f, a, b := pair(t, Config{}, endConfig{})
		i := f.Inject(Fault{Device: a.dev, QPNum: a.qp.Num(), Kind: FailSend, Skip: 1,
			Status: verbs.StatusLocQPOpErr, VendorErr: 77})
		a.buf[8] = 1
		a.post(a.write(b, 1, 0, 8), a.write(b, 2, 8, 8), a.write(b, 3, 16, 8))
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
		if wc := awaitStatus(t, a.cq, 2, verbs.StatusLocQPOpErr); wc.VendorErr != 77 ||
			wc.QPNum != a.qp.Num() {
			t.Errorf("%+v", wc)
		}
		awaitStatus(t, a.cq, 3, verbs.StatusWRFlushErr)
		if b.buf[8] != 0 || i.Hits() != 1 || a.qp.State() != verbs.StateErr ||
			b.qp.State() != verbs.StateRTS {
			t.Error(b.buf[8], i.Hits(), a.qp.State(), b.qp.State())
		}
	})
	t.Run("nothing follows a failed request", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{})
		f.Inject(Fault{Kind: FailSend})
		a.post(a.write(b, 1, 0, 8), a.write(b, 2, 8, 8))
		do(t, f, "execute soft0 qp 17 wr 1")
		if list := f.Actions(nil); len(list) != 1 || list[0].Kind != Acknowledge {
			t.Error(list)
		}
	})
	t.Run("fail after data", func(t *testing.T) {
		f, a, b := pair(t, Config{}, endConfig{})
		f.Inject(Fault{Kind: FailAfterData})
		copy(a.buf, "landed")
		b.recv(verbs.RecvWR{ID: 4, SGL: b.sge(0, 64)})
		a.post(a.send(1, 0, 6))
		awaitStatus(t, a.cq, 1, verbs.StatusRetryExcErr)
		nothing(t, b.rcq)
		if string(b.buf[:6]) != "landed" {
			t.Error("no data")
		}
	})
	t.Run("fail receive", func(t *testing.T) {
		f, a, b := pair(t, Config{}, endConfig{})
		f.Inject(Fault{Device: b.dev, Kind: FailRecv, Status: verbs.StatusLocQPOpErr,
			Match: func(wr *verbs.SendWR) bool { return wr.ID == 2 }})
		b.recv(verbs.RecvWR{ID: 4, SGL: b.sge(0, 64)}, verbs.RecvWR{ID: 5, SGL: b.sge(0, 64)},
			verbs.RecvWR{ID: 6})
		a.post(a.send(1, 0, 8), a.send(2, 0, 8))
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
		awaitStatus(t, a.cq, 2, verbs.StatusRemOpErr)
		awaitStatus(t, b.rcq, 4, verbs.StatusSuccess)
		awaitStatus(t, b.rcq, 5, verbs.StatusLocQPOpErr)
		awaitStatus(t, b.rcq, 6, verbs.StatusWRFlushErr)
	})
	t.Run("refuse", func(t *testing.T) {
		f, a, b := pair(t, Config{}, endConfig{})
		mine := errors.New("mine")
		f.Inject(Fault{Kind: RefuseSend, Skip: 2})
		f.Inject(Fault{Kind: RefuseRecv, Err: mine})
		n, err := a.qp.PostSend([]verbs.SendWR{a.write(b, 1, 0, 8), a.write(b, 2, 0, 8), a.write(b, 3, 0, 8),
			a.write(b, 4, 0, 8)})
		if n != 2 || !errors.Is(err, verbs.ErrNoMemory) {
			t.Error(n, err)
		}
		if n, err := b.qp.PostRecv([]verbs.RecvWR{{ID: 1}}); n != 0 || !errors.Is(err, mine) {
			t.Error(n, err)
		}
		b.recv(verbs.RecvWR{ID: 1})
		await(t, a.cq, 2)
		nothing(t, a.cq)
	})
	t.Run("stall", func(t *testing.T) {
		f, a, b := pair(t, Config{}, endConfig{})
		i := f.Inject(Fault{Kind: StallQP})
		a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 1<<14))
		time.Sleep(2 * time.Millisecond)
		nothing(t, a.cq)
		i.Remove()
		await(t, a.cq, 2)
	})
	t.Run("delay", func(t *testing.T) {
		f, a, b := pair(t, Config{}, endConfig{})
		f.Inject(Fault{Kind: Delay, Delay: 5 * time.Millisecond})
		start := time.Now()
		a.post(a.write(b, 1, 0, 8))
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
		if d := time.Since(start); d < 5*time.Millisecond {
			t.Error("done after", d)
		}
	})
	t.Run("delay, stepped", func(t *testing.T) {
		f, a, b := pair(t, Config{Stepped: true}, endConfig{})
		f.Inject(Fault{Kind: Delay, Delay: time.Hour})
		a.post(a.write(b, 1, 0, 8))
		do(t, f, "execute")
		do(t, f, "timer")
		f.Run(10)
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	})
	t.Run("for ever, and removed", func(t *testing.T) {
		f, a, b := pair(t, Config{}, endConfig{})
		i := f.Inject(Fault{Kind: RefuseSend, Count: -1})
		for range 3 {
			if n, err := a.qp.PostSend([]verbs.SendWR{a.write(b, 1, 0, 8)}); n != 0 || err == nil {
				t.Error(n, err)
			}
		}
		i.Remove()
		a.post(a.write(b, 1, 0, 8))
		if i.Hits() != 3 {
			t.Error(i.Hits())
		}
		await(t, a.cq, 1)
	})
}

// Fields that the contract leaves undefined are filled with garbage, the same for the same seed.
func TestGarbageInErrors(t *testing.T) {
	run := func(seed uint64) []verbs.WC {
		_, a, b := pair(t, Config{Seed: seed}, endConfig{})
		setState(t, a, verbs.StateErr)
		for i := range uint64(64) {
			a.post(a.write(b, i, 0, 8))
		}
		return await(t, a.cq, 64)
	}
	wcs, wrong := run(1), 0
	for i, wc := range wcs {
		if wc.ID != uint64(i) || wc.Status != verbs.StatusWRFlushErr {
			t.Fatalf("%+v", wc)
		}
		if wc.Opcode.IsRecv() {
			wrong++
		}
	}
	if wrong < 32 || wrong == 64 {
		t.Errorf("%d of 64 opcodes are of the wrong direction", wrong)
	}
	again, other := run(1), run(2)
	same := 0
	for i := range wcs {
		if wcs[i] != again[i] {
			t.Fatal("the same seed gives other garbage")
		}
		if wcs[i] == other[i] {
			same++
		}
	}
	if same > 1 {
		t.Error("another seed gives the same garbage")
	}
}

// A fault in force prints what it does, how often it has, and whether it may again.
func TestInjectionString(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{})
	twice := f.Inject(Fault{Device: a.dev, QPNum: a.qp.Num(), Kind: Delay, Count: 2})
	says := func(want string) {
		t.Helper()
		want = "delay (0s) on soft0 qp 17, requests 1 to 2: " + want
		if got := twice.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	says("0 hits, in force")
	for id, want := range []string{"1 hit, in force", "2 hits, over"} {
		a.post(a.write(b, uint64(id), 0, 8))
		awaitStatus(t, a.cq, uint64(id), verbs.StatusSuccess)
		says(want)
	}
}
