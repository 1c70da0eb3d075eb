package roce

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
	"ibverbx/verbs/verbstest"
)

// Who polls an empty queue again and again does not keep others from the NIC's lock: a goroutine
// that waits for that would get it only when sync.Mutex takes pity, after a millisecond.
func TestPollingLeavesLock(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1")
	n := newNode(t, p.Device(0), 64)
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	wg.Go(func() {
		var wcs [4]verbs.WC
		for !stop.Load() {
			if _, err := n.cq.Poll(wcs[:]); err != nil {
				t.Error(err)
				return
			}
		}
	})
	waits := make([]time.Duration, 300)
	for tries := 1; ; tries++ {
		for i := range waits {
			time.Sleep(50 * time.Microsecond)
			began := time.Now()
			n.qp.State()
			waits[i] = time.Since(began)
		}
		slices.Sort(waits)
		t.Logf("median %v, 90%% %v, longest %v", waits[150], waits[270], waits[299])
		if waits[225] <= 500*time.Microsecond {
			break
		}
		if tries == 10 { // a busy machine does that to some of them
			t.Fatal("a quarter of the calls always waited longer than 500 µs for the lock")
		}
	}
}

// Who polls for nothing for long offers the processor now and then: the peer may need it.
func TestPollingOffersTheProcessor(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1")
	d := p.Device(0)
	n := newNode(t, d, 64)
	offers := 0
	d.recv.offer = func() { offers++ }
	poll := func(times int) {
		var wcs [1]verbs.WC
		for range times {
			_, err := n.cq.Poll(wcs[:])
			must(t, err)
		}
	}
	if poll(patience - 1); offers != 0 {
		t.Errorf("%d offers before patience ends", offers)
	}
	if poll(10 * offerEvery); offers < 9 || offers > 11 {
		t.Errorf("%d offers in %d polls", offers, 10*offerEvery)
	}
}

// On one processor a program that polls one NIC keeps the goroutines of others from it: it does
// their work now and then. Waiting for the scheduler to look took a second a MiB. The peer of this
// test has no goroutine: all that it receives, the polls of the other NIC receive for it.
func TestPollingHelpsOtherNICs(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p := openNICs(t, Config{}, "127.0.0.1")
	peer := deafNIC(t, func(_ *Device, conn link) link { return conn })
	one := p.Device(0)
	one.provider = &Provider{devices: append(slices.Clone(one.provider.devices), peer)}
	a, b := newNode(t, one, 1<<20), newNode(t, peer, 1<<20)
	// The patience of 17 s is never needed, however long others have the processor.
	must(t, verbstest.Connect(a.qp, b.qp, verbstest.ConnectConfig{Port: 1,
		Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.Timeout = 19 }}))
	for i := range a.buf {
		a.buf[i] = byte(i * 7)
	}
	a.post(t, a.write(b, 1, len(a.buf)))
	a.succeed(t)
	if !bytes.Equal(a.buf, b.buf) {
		t.Error("the bytes differ")
	}
}

// failingLink is a socket that fails to receive so many times, and says that it has dropped packets
// that were too long.
type failingLink struct {
	link
	batch
	failures int
}

func (l *failingLink) NewBatch() batch {
	l.batch = l.link.NewBatch()
	return l
}

func (l *failingLink) Recv() (int, error) {
	if l.failures > 0 {
		l.failures--
		return 0, &udp.Error{Op: "receive", Errno: os.ErrInvalid}
	}
	return l.batch.Recv()
}

func (l *failingLink) Stats() udp.Stats {
	s := l.link.Stats()
	s.RecvTruncated = 2
	return s
}

// When the socket does not say what has arrived, it is counted, and the NIC asks again. A socket
// where nothing has arrived, or that is closed, is no such socket.
func TestReceiveErrorsCount(t *testing.T) {
	d := deafNIC(t, func(_ *Device, conn link) link { return &failingLink{link: conn, failures: 3} })
	pair := newNodes(t, d, d, 64)
	a, b := pair[0], pair[1]
	a.post(t, a.write(b, 1, 64))
	a.succeed(t)
	var none [1]verbs.WC
	for range 10 {
		_, err := a.cq.Poll(none[:])
		must(t, err)
	}
	if c := d.Counters(); c.RecvErrors != 3 || c.Malformed != 2 {
		t.Errorf("%+v, want 3 RecvErrors, and 2 Malformed that were too long", c)
	}
}

// Who arms a queue is woken at once, even if it has just polled, as everybody does around Arm: the
// receiving goroutine keeps out of the way of those only that go on polling.
func TestArmedIsNotPolling(t *testing.T) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	channel := verbs.NewCompChannel()
	pair := newNodes(t, p.Device(0), p.Device(1), 64)
	a, b := pair[0], pair[1]
	cq, err := b.dev.CreateCQ(verbs.CQConfig{Channel: channel})
	must(t, err)
	defer cq.Close()
	qp, err := b.pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	must(t, err)
	defer qp.Close()
	from := a.newQP(t)
	defer from.Close()
	must(t, verbstest.Connect(from, qp, verbstest.ConnectConfig{Port: 1}))
	const rounds = 200
	waits := make([]time.Duration, rounds)
	for i := range waits {
		_, err = qp.PostRecv([]verbs.RecvWR{{}})
		must(t, err)
		must(t, cq.Arm(false))
		var wcs [2]verbs.WC
		if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		began := time.Now()
		_, err = from.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
		must(t, err)
		for n := 0; n == 0; {
			err := channel.Wait(t.Context())
			must(t, err)
			if n, err = cq.Poll(wcs[:]); err != nil {
				t.Fatal(err)
			}
		}
		waits[i] = time.Since(began)
		a.succeed(t)
	}
	slices.Sort(waits)
	t.Logf("median %v, longest %v", waits[rounds/2], waits[rounds-1])
	if fast := waits[rounds/20]; fast > idleAfter { // a busy machine is late with some
		t.Errorf("receivers were woken after %v, and one in 20 earlier", fast)
	}
}

// FuzzDatagrams gives a NIC datagrams: as they are, or made whole, for one of its queue pairs, from
// its peer, another process of the peer's host, or a stranger. Nothing panics, another queue pair
// of the NIC is not disturbed, and every datagram is counted.
func FuzzDatagrams(f *testing.F) {
	at := netip.MustParseAddrPort("127.0.0.2:4791")
	for i, h := range []wire.Header{
		{Opcode: wire.SendOnly}, {Opcode: wire.SendFirst, PSN: 1}, {Opcode: wire.WriteOnlyImm, Length: 8},
		{Opcode: wire.WriteMiddle}, {Opcode: wire.ReadRequest, Length: 1 << 31}, {Opcode: wire.FetchAdd},
		{Opcode: wire.Acknowledge, Syndrome: wire.NakSequence}, {Opcode: wire.ReadResponseLast},
		{Opcode: wire.AtomicAcknowledge}, {Opcode: wire.Acknowledge, Syndrome: wire.Ack, PSN: 5},
	} {
		var payload []byte
		if h.Opcode.IsSend() || h.Opcode.IsWrite() || h.Syndrome == wire.NakSequence {
			payload = make([]byte, 8)
		}
		f.Add(uint8(i), seal(at, at, h, payload))
	}
	p := openNICs(f, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(f, p.Device(0), p.Device(1), 64)
	a, b := pair[0], pair[1]
	victims := [2]*QP{a.newQP(f), b.newQP(f)}
	f.Cleanup(func() {
		must(f, victims[0].Close())
		must(f, victims[1].Close())
	})
	froms := []netip.AddrPort{b.dev.local, netip.AddrPortFrom(b.dev.local.Addr(), 0xc123),
		netip.MustParseAddrPort("127.0.0.3:4791")}
	id := uint64(0)
	f.Fuzz(func(t *testing.T, how uint8, packet []byte) {
		for _, qp := range victims {
			must(t, qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState))
		}
		must(t, verbstest.Connect(victims[0], victims[1], verbstest.ConnectConfig{Port: 1,
			Adjust: func(_ verbs.QP, attr *verbs.QPAttr) { attr.SQPSN, attr.RQPSN = 0, 0 }}))
		wr := a.write(b, 0, 64)
		wr.RKey = 0 // so that something is under way, and does not complete
		if how&0x40 != 0 {
			_, err := victims[0].PostSend([]verbs.SendWR{wr})
			must(t, err)
		}
		from := froms[int(how)%len(froms)]
		packet = append([]byte(nil), packet...)
		if how&0x80 == 0 && len(packet) >= 16 {
			binary.BigEndian.PutUint32(packet[4:], victims[0].Num())
			end := len(packet) - wire.ICRCSize
			flow := wire.NewFlow(from, a.dev.local)
			binary.LittleEndian.PutUint32(packet[end:], flow.Sum(0, packet[:end], nil, 0))
		}
		r := &a.dev.recv
		r.mu.Lock()
		a.dev.mu.Lock()
		r.packet(a.dev.now(), &udp.Datagram{Data: packet, From: from, Bundle: 1})
		for i, q := range r.dirty {
			q.touched = false
			q.transmit()
			r.dirty[i] = nil
		}
		r.dirty = r.dirty[:0]
		a.dev.mu.Unlock()
		r.mu.Unlock()
		id++
		a.post(t, a.write(b, id, 64))
		for {
			wc := a.poll(t)
			if wc.QPNum == victims[0].Num() {
				if wc.Status == verbs.StatusSuccess && from == froms[2] {
					t.Fatal("a stranger's packet completes a request")
				}
				continue
			}
			if wc.Status != verbs.StatusSuccess || wc.ID != id {
				t.Fatalf("completion of %d: %v", wc.ID, wc.Status)
			}
			break
		}
		if b.qp.State() != verbs.StateRTS || a.qp.State() != verbs.StateRTS {
			t.Fatal("another connection has ended")
		}
	})
}
