package soft

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
)

func TestLinkFlap(t *testing.T) {
	for _, down := range []int{0, 1} {
		// 8 * 67 ms
		f, a, b := pair(t, Config{}, endConfig{}, func(c *connection) { c.Timeout, c.RetryCount = 14, 7 })
		f.Device(down).SetLink(false)
		if p, err := f.Device(down).QueryPort(1); err != nil || p.State != verbs.PortDown {
			t.Error(p.State, err)
		}
		a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 32<<10))
		b.post(b.write(a, 3, 40<<10, 8))
		time.Sleep(5 * time.Millisecond)
		nothing(t, a.cq)
		f.Device(down).SetLink(true)
		awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
		awaitStatus(t, a.cq, 2, verbs.StatusSuccess)
		awaitStatus(t, b.cq, 3, verbs.StatusSuccess)
	}
}

func TestLinkDownTooLong(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{}, func(c *connection) { c.Timeout, c.RetryCount = 8, 3 })
	f.Device(1).SetLink(false)
	start := time.Now()
	a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 8))
	b.post(b.write(a, 3, 0, 8))
	awaitStatus(t, a.cq, 1, verbs.StatusRetryExcErr)
	if d, want := time.Since(start), 4*verbs.AckTimeout(8); d < want {
		t.Errorf("gave up after %v, 4 timeouts are %v", d, want)
	}
	awaitStatus(t, a.cq, 2, verbs.StatusWRFlushErr)
	awaitStatus(t, b.cq, 3, verbs.StatusRetryExcErr)
}

func TestKillAndRestore(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{})
	b.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
	f.Device(1).Kill()
	if _, err := b.qp.PostSend([]verbs.SendWR{b.write(a, 1, 0, 8)}); !errors.Is(err, verbs.ErrDeviceGone) {
		t.Error(err)
	}
	if _, err := b.qp.PostRecv([]verbs.RecvWR{{}}); !errors.Is(err, verbs.ErrDeviceGone) {
		t.Error(err)
	}
	if _, err := f.Device(1).Query(); !errors.Is(err, verbs.ErrDeviceGone) {
		t.Error(err)
	}
	awaitStatus(t, b.rcq, 1, verbs.StatusWRFlushErr)
	awaitStatus(t, b.rcq, 2, verbs.StatusWRFlushErr)
	a.post(a.write(b, 7, 0, 8))
	awaitStatus(t, a.cq, 7, verbs.StatusRetryExcErr)

	f.Device(1).Restore()
	if b.qp.State() != verbs.StateErr {
		t.Error(b.qp.State())
	}
	setState(t, a, verbs.StateReset)
	setState(t, b, verbs.StateReset)
	connect(t, a, b)
	a.post(a.write(b, 8, 0, 8))
	awaitStatus(t, a.cq, 8, verbs.StatusSuccess)
}

// A send that comes before its peer is ready is retried until it is.
func TestPeerBecomesReady(t *testing.T) {
	f := newFabric(t, Config{})
	a, b := newEnd(t, f.Device(0), endConfig{}), newEnd(t, f.Device(1), endConfig{})
	patient := func(c *connection) { c.Timeout, c.RetryCount = 16, 7 }
	raise(t, a, b, patient)
	a.post(a.write(b, 1, 0, 8))
	time.Sleep(time.Millisecond)
	nothing(t, a.cq)
	raise(t, b, a, patient)
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
}

// A side that was reset and connected anew receives nothing from the other, which was not reset.
func TestStaleConnection(t *testing.T) {
	_, a, b := pair(t, Config{}, endConfig{})
	a.post(a.write(b, 1, 0, 8))
	await(t, a.cq, 1)
	setState(t, b, verbs.StateReset)
	raise(t, b, a)
	a.post(a.write(b, 2, 0, 8))
	awaitStatus(t, a.cq, 2, verbs.StatusRetryExcErr)
}

func TestOverrun(t *testing.T) {
	_, a, b := pair(t, Config{}, endConfig{depth: 4})
	for i := range uint64(5) {
		a.post(a.write(b, i, 0, 8))
	}
	var wcs [8]verbs.WC
	if n, err := a.cq.Poll(wcs[:]); n != 4 || err != nil {
		t.Error(n, err)
	}
	if n, err := a.cq.Poll(wcs[:]); n != 0 || !errors.Is(err, verbs.ErrOverrun) {
		t.Error(n, err)
	}
	if a.qp.State() != verbs.StateErr {
		t.Error(a.qp.State())
	}
}

func TestCloseRefusedWhileInUse(t *testing.T) {
	f, a, _ := pair(t, Config{}, endConfig{})
	for _, c := range []struct {
		close func() error
		names string
	}{
		{a.pd.Close, "1 memory regions and 1 queue pairs"},
		{a.cq.Close, "1 send and receive queues"},
		{f.Close, "2 PD, 2 MR, 4 CQ, 2 QP"},
	} {
		if err := c.close(); !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%v, want busy and %q", err, c.names)
		}
	}
	a.close()
	for _, c := range []func() error{a.qp.Close, a.mr.Close, a.cq.Close, a.pd.Close} {
		if err := c(); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	}
	if f.Objects() != (Objects{PDs: 1, MRs: 1, CQs: 2, QPs: 1}) {
		t.Error(f.Objects())
	}
}

// Closing regions and queue pairs waits for the copies that use them; afterwards the memory is
// untouched.
func TestCloseDuringCopy(t *testing.T) {
	const size = 8 << 20
	for _, victim := range []string{"source region", "target region", "sender", "receiver", "sender reset",
		"receiver error"} {
		t.Run(victim, func(t *testing.T) {
			for range 5 {
				_, a, b := pair(t, Config{}, endConfig{buf: size})
				for i := range uint64(3) {
					a.post(a.write(b, i, 0, size))
				}
				runtime.Gosched()
				switch victim {
				case "source region":
					must(t, a.mr.Close())
				case "target region":
					must(t, b.mr.Close())
				case "sender":
					must(t, a.qp.Close())
				case "receiver":
					must(t, b.qp.Close())
				case "sender reset":
					setState(t, a, verbs.StateReset)
				case "receiver error":
					setState(t, b, verbs.StateErr)
					continue // the memory is the queue pair's until the flush
				}
				// The race detector finds a copy that still goes on.
				if victim != "target region" && victim != "receiver" {
					clear(a.buf)
				}
				if victim != "source region" {
					clear(b.buf)
				}
			}
		})
	}
}

func TestNoGoroutineAfterClose(t *testing.T) {
	before := runtime.NumGoroutine()
	f, err := New(Config{Devices: 4, Device: DeviceConfig{Latency: time.Millisecond}})
	must(t, err)
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines before the first need", n-before)
	}
	a, b := newEnd(t, f.Device(0), endConfig{}), newEnd(t, f.Device(1), endConfig{})
	connect(t, a, b)
	a.post(a.write(b, 1, 0, 8))
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	a.close()
	b.close()
	must(t, f.Close())
	if err := f.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Error(err)
	}
	// Close has waited for them; the runtime may count one that is just returning.
	for end := time.Now().Add(time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines left", runtime.NumGoroutine()-before)
		}
	}
}

// A queue pair that waits for its peer tries again when the time has come that was set first,
// however often the program changes it in the meantime.
func TestNothingPutsOffTheRetry(t *testing.T) {
	f, a, b := pair(t, Config{Device: DeviceConfig{Latency: time.Microsecond}}, endConfig{},
		func(c *connection) { c.Timeout = 24 }) // a minute
	f.Inject(Fault{Kind: CutLink, Skip: 1})
	a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 8))
	when := func() int64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		retry := &a.qp.run.background.timers[timerRetry]
		if !retry.IsArmed() || a.qp.run.wait != waitPeer || a.qp.core.SQ.Acked != 0 {
			return 0
		}
		return retry.When
	}
	for start := time.Now(); when() == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the queue pair does not wait for its peer")
		}
	}
	first := when()
	for i := range uint8(3) {
		time.Sleep(time.Millisecond) // longer than the acknowledgement of the first request takes
		rts := verbs.QPAttr{State: verbs.StateRTS, MinRNRTimer: i}
		must(t, a.qp.Modify(&rts, verbs.QPAttrState|verbs.QPAttrMinRNRTimer))
	}
	if then := when(); then != first {
		t.Errorf("the retry was put off by %v", time.Duration(then-first))
	}
}
