package soft

import (
	"testing"
	"time"

	"ibverbx/verbs"
)

func TestLatency(t *testing.T) {
	const latency = 3 * time.Millisecond
	_, a, b := pair(t, Config{Device: DeviceConfig{Latency: latency}}, endConfig{})
	b.recv(verbs.RecvWR{ID: 2, SGL: b.sge(0, 8)})
	start := time.Now()
	a.post(a.send(1, 0, 8))
	awaitStatus(t, b.rcq, 2, verbs.StatusSuccess)
	arrived := time.Since(start)
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	acked := time.Since(start)
	// Late may be due to the machine; early is always an error.
	if arrived < latency || acked < 2*latency || acked > 5*time.Second {
		t.Errorf("arrived after %v, acknowledged after %v, the latency is %v", arrived, acked, latency)
	}
	// What is asked for takes the latency, and the answer takes it again.
	for _, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpAtomicFetchAdd} {
		wr := a.write(b, 3, 0, 8)
		wr.Opcode = op
		start = time.Now()
		a.post(wr)
		awaitStatus(t, a.cq, 3, verbs.StatusSuccess)
		if d := time.Since(start); d < 2*latency { // late may be due to the machine
			t.Errorf("%v took %v, the latency is %v", op, d, latency)
		}
	}
	// Messages overlap: the latency is paid once.
	for tries := 1; ; tries++ {
		start = time.Now()
		for i := range uint64(10) {
			a.post(a.write(b, i, 0, 8))
		}
		await(t, a.cq, 10)
		d := time.Since(start)
		if d < 19*latency { // one after the other they would take 20
			break
		}
		if tries == 20 {
			t.Fatalf("10 messages took %v, and 19 times before as long", d)
		}
	}
}

func TestBandwidth(t *testing.T) {
	const size, count, bandwidth = 256 << 10, 16, 400 << 20
	want := time.Duration(float64(size*count) / bandwidth * float64(time.Second))
	f, a, b := pair(t, Config{Device: DeviceConfig{Bandwidth: bandwidth}}, endConfig{buf: size})
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		start := time.Now()
		for i := range uint64(count) {
			wr := a.write(b, i, 0, size)
			wr.Opcode = op
			a.post(wr)
		}
		await(t, a.cq, count)
		if d := time.Since(start); d < want*99/100 { // late may be due to the machine
			t.Errorf("%v: %v, want %v", op, d, want)
		}
	}
	if p, _ := f.Device(0).QueryPort(1); p.Speed != bandwidth*8 {
		t.Error(p.Speed)
	}
	f.Device(0).SetSpeed(0, 0)
	f.Device(1).SetSpeed(0, 0)
	if a.dev.timed() {
		t.Error("SetSpeed(0, 0) leaves a speed")
	}
	a.post(a.write(b, 1, 0, size))
	await(t, a.cq, 1)
}

// The data of a message takes the wire of the NIC that sends it: that of a read is the peer's.
func TestTheSenderOfTheDataSetsItsSpeed(t *testing.T) {
	const size, slow, fast = 256 << 10, 16 << 20, 16 << 30
	const least = time.Duration(size * int64(time.Second) / slow)
	for _, c := range []struct {
		op           verbs.Opcode
		slowIsPoster bool
		takesLong    bool
	}{
		{verbs.OpRDMAWrite, true, true}, {verbs.OpRDMAWrite, false, false},
		{verbs.OpRDMARead, true, false}, {verbs.OpRDMARead, false, true},
	} {
		f, a, b := pair(t, Config{}, endConfig{buf: size})
		poster, other := f.Device(0), f.Device(1)
		if poster.SetSpeed(fast, 0); c.slowIsPoster {
			poster.SetSpeed(slow, 0)
		}
		if other.SetSpeed(slow, 0); c.slowIsPoster {
			other.SetSpeed(fast, 0)
		}
		wr := a.write(b, 1, 0, size)
		wr.Opcode = c.op
		start := time.Now()
		a.post(wr)
		await(t, a.cq, 1)
		if d := time.Since(start); c.takesLong && d < least { // late may be due to the machine
			t.Errorf("%v, slow end posts %v: %v, the wire takes %v", c.op, c.slowIsPoster, d, least)
		}
		f.mu.Lock()
		posters, others := poster.worker.wireFree != 0, other.worker.wireFree != 0
		f.mu.Unlock()
		if want := c.op == verbs.OpRDMAWrite; posters != want || others == want {
			t.Errorf("%v: over the wire of the poster %v, of its peer %v", c.op, posters, others)
		}
	}
}

// The acknowledgement of a message is lost with the link and found again with it, or the sender
// gives up.
func TestLinkDownWhileInFlight(t *testing.T) {
	for _, comesBack := range []bool{true, false} {
		for tries := 1; !linkDownWhileInFlight(t, comesBack); tries++ {
			if tries == 20 {
				t.Fatal("the machine was always too slow to take the link down in time")
			}
		}
	}
}

// linkDownWhileInFlight returns false when it was not quick enough to see anything.
func linkDownWhileInFlight(t *testing.T, comesBack bool) bool {
	const latency, giveUp = 30 * time.Millisecond, 3 * 34 * time.Millisecond
	f, a, b := pair(t, Config{Device: DeviceConfig{Latency: latency}}, endConfig{},
		func(c *connection) { c.Timeout, c.RetryCount = 13, 2 })
	b.recv(verbs.RecvWR{ID: 2, SGL: b.sge(0, 8)})
	start := time.Now()
	a.post(a.send(1, 0, 8))
	awaitStatus(t, b.rcq, 2, verbs.StatusSuccess)
	f.Device(0).SetLink(false)
	if time.Since(start) >= 2*latency {
		return false
	}
	time.Sleep(latency * 7 / 6)
	var wcs [1]verbs.WC
	n, err := a.cq.Poll(wcs[:])
	if time.Since(start) >= 2*latency+giveUp {
		return false
	}
	if n != 0 || err != nil {
		t.Fatalf("poll: %d %+v %v, want nothing", n, wcs[0], err)
	}
	want := verbs.StatusRetryExcErr
	if comesBack {
		f.Device(0).SetLink(true)
		want = verbs.StatusSuccess
		if time.Since(start) >= 2*latency+giveUp {
			return false
		}
	}
	awaitStatus(t, a.cq, 1, want)
	return true
}

// A queue pair in ERR with messages still on their way to it reports them before what is flushed.
func TestErrorKeepsOrderOfArrivals(t *testing.T) {
	_, a, b := pair(t, Config{Device: DeviceConfig{Latency: 5 * time.Millisecond}}, endConfig{})
	for i := range uint64(4) {
		b.recv(verbs.RecvWR{ID: i, SGL: b.sge(0, 8)})
	}
	a.post(a.send(1, 0, 8), a.send(2, 0, 8))
	time.Sleep(2 * time.Millisecond)
	setState(t, b, verbs.StateErr)
	wcs := await(t, b.rcq, 4)
	for i, wc := range wcs {
		if wc.ID != uint64(i) || i >= 2 && wc.Status != verbs.StatusWRFlushErr {
			t.Errorf("%d: %+v", i, wc)
		}
	}
}

// On a wire that is busy for a second messages leave 100 µs before it is free; on one without a
// bandwidth they leave at once, whatever the latency.
func TestDeparture(t *testing.T) {
	for _, c := range []struct {
		nic  DeviceConfig
		busy bool
	}{
		{DeviceConfig{Latency: time.Second}, false}, {DeviceConfig{Bandwidth: 1}, true},
		{DeviceConfig{Bandwidth: 1 << 40, Latency: time.Second}, true},
	} {
		f := newFabric(t, Config{Device: c.nic})
		f.mu.Lock()
		b, d := f.engine.(*background), f.devices[0]
		free := b.now() + int64(time.Second)
		d.worker.wireFree = free
		want := int64(0)
		if c.busy {
			want = free - int64(100*time.Microsecond)
		}
		if got := b.departure(d); got != want {
			t.Errorf("%+v: departure at %d, want %d", c.nic, got, want)
		}
		f.mu.Unlock()
	}
}
