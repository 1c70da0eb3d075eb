package soft

import (
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
)

// A request whose sender has seen it fail arrives later, with those behind it, in order: in a
// stepped fabric whenever the caller likes.
func TestArriveLate(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	i := f.Inject(Fault{Kind: ArriveLate, Skip: 1})
	b.recv(verbs.RecvWR{ID: 11, SGL: b.sge(1024, 64)}, verbs.RecvWR{ID: 12})
	copy(a.buf, "0123456789abcdefghijklmnopqrstuv")
	add := verbs.SendWR{ID: 5, Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGL: a.sge(512, 8),
		RemoteAddr: b.mr.Addr() + 2048, RKey: b.mr.RKey(), CompareAdd: 7}
	a.post(a.write(b, 1, 0, 8), a.write(b, 2, 8, 8), a.send(3, 16, 8), a.write(b, 4, 24, 8), add)
	do(t, f, "execute soft0 qp 17 wr 1")
	do(t, f, "execute soft0 qp 17 wr 2")
	allBut(f, Arrive)
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	awaitStatus(t, a.cq, 2, verbs.StatusRetryExcErr)
	for id := range uint64(3) {
		awaitStatus(t, a.cq, 3+id, verbs.StatusWRFlushErr)
	}
	if i.Hits() != 1 || string(b.buf[:32]) != "01234567"+strings.Repeat("\x00", 24) {
		t.Fatalf("%d hits, %q", i.Hits(), b.buf[:32])
	}
	copy(a.buf, strings.Repeat("x", 32)) // its owner has it back
	do(t, f, "arrive soft1 qp 17 wr 2")
	do(t, f, "arrive soft1 qp 17 wr 3")
	nothing(t, b.rcq)
	do(t, f, "reveal soft1 qp 17 recv wr 11")
	if wc := awaitStatus(t, b.rcq, 11, verbs.StatusSuccess); wc.ByteLen != 8 || wc.SrcQP != a.qp.Num() {
		t.Errorf("%+v", wc)
	}
	do(t, f, "arrive soft1 qp 17 wr 4")
	do(t, f, "arrive soft1 qp 17 wr 5")
	if got := string(b.buf[:32]); got != "0123456789abcdef"+strings.Repeat("\x00", 8)+"opqrstuv" ||
		string(b.buf[1024:1032]) != "ghijklmn" || b.buf[2048] != 7 || a.buf[512] != 0 {
		t.Errorf("%q, %q, atomic %d answered with %d", got, b.buf[1024:1032], b.buf[2048], a.buf[512])
	}
	if list := f.Actions(nil); len(list) != 0 || b.qp.State() != verbs.StateRTS {
		t.Error(list, b.qp.State())
	}
}

// actionsOf lists what can happen now of one kind.
func actionsOf(f *Fabric, kind ActionKind) (list []Action) {
	for _, act := range f.Actions(nil) {
		if act.Kind == kind {
			list = append(list, act)
		}
	}
	return list
}

// allBut does all that can happen, but for actions of one kind.
func allBut(f *Fabric, kind ActionKind) {
	for len(actionsOf(f, kind)) < len(f.Actions(nil)) {
		for _, act := range f.Actions(nil) {
			if act.Kind != kind {
				f.Do(act)
			}
		}
	}
}

// Whatever ends the peer's queue pair, or its connection, ends what is on its way there; so do
// requests that it cannot take.
func TestWhatIsLateIsLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		strike func(f *Fabric, a, b *end)
		state  verbs.QPState // of the peer's queue pair afterwards
		first  byte          // 1: the first of two arrives all the same
	}{
		{"the peer fails", func(_ *Fabric, _, b *end) { setState(t, b, verbs.StateErr) }, verbs.StateErr, 0},
		{"the peer's NIC dies", func(f *Fabric, _, _ *end) { f.Device(1).Kill() }, verbs.StateErr, 0},
		{"the peer's link is down", func(f *Fabric, _, _ *end) { f.Device(1).SetLink(false) },
			verbs.StateRTS, 0},
		{"the peer's link was down for a moment", func(f *Fabric, _, _ *end) {
			f.Device(1).SetLink(false)
			do(t, f, "arrive soft1 qp 17 wr 1")
			f.Device(1).SetLink(true)
		}, verbs.StateRTS, 0},
		{"the peer connects anew", func(_ *Fabric, a, b *end) {
			setState(t, b, verbs.StateReset)
			raise(t, b, a, func(c *connection) { c.RQPSN, c.SQPSN = 5000, 5000 })
			b.recv(verbs.RecvWR{ID: 9})
		}, verbs.StateRTS, 0},
		{"no receive is posted", func(f *Fabric, _, _ *end) { do(t, f, "arrive soft1 qp 17 wr 1") },
			verbs.StateRTS, 1},
		{"the region is gone", func(_ *Fabric, _, b *end) { must(t, b.mr.Close()) }, verbs.StateErr, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, a, b := pair(t, Config{Stepped: true}, endConfig{})
			f.Inject(Fault{Kind: ArriveLate})
			a.buf[0], a.buf[8] = 1, 1
			second := a.write(b, 2, 8, 8)
			second.Opcode = verbs.OpRDMAWriteWithImm
			if c.first == 0 {
				b.recv(verbs.RecvWR{ID: 9})
			}
			a.post(a.write(b, 1, 0, 8), second)
			do(t, f, "execute soft0 qp 17 wr 1")
			setState(t, a, verbs.StateReset)
			c.strike(f, a, b)
			for step := 0; len(actionsOf(f, Arrive)) > 0 && step < 10; step++ {
				f.Do(actionsOf(f, Arrive)[0])
			}
			if got := b.qp.State(); b.buf[0] != c.first || b.buf[8] != 0 || got != c.state {
				t.Errorf("the peer is in %v, want %v; what came: %d %d", got, c.state, b.buf[0], b.buf[8])
			}
			if list := actionsOf(f, Arrive); len(list) != 0 {
				t.Error(list)
			}
		})
	}
}

// Only those behind the request that Match chooses as well are on their way.
func TestArriveLateTakesWhatMatches(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	f.Inject(Fault{Kind: ArriveLate, Match: func(wr *verbs.SendWR) bool { return wr.ID < 3 }})
	a.post(a.write(b, 1, 0, 8), a.write(b, 2, 8, 8), a.write(b, 3, 16, 8), a.write(b, 2, 24, 8))
	do(t, f, "execute soft0 qp 17 wr 1")
	do(t, f, "arrive soft1 qp 17 wr 1")
	do(t, f, "arrive soft1 qp 17 wr 2")
	if list := actionsOf(f, Arrive); len(list) != 0 {
		t.Error(list)
	}
}

// What the NIC cannot fetch is not on its way, nor what is behind it.
func TestArriveLateUpToWhatIsWrong(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	f.Inject(Fault{Kind: ArriveLate})
	bad := a.write(b, 2, 8, 8)
	bad.SGL[0].LKey++
	a.post(a.write(b, 1, 0, 8), bad, a.write(b, 3, 16, 8))
	do(t, f, "execute soft0 qp 17 wr 1")
	if list := actionsOf(f, Arrive); len(list) != 1 {
		t.Fatal(list)
	}
	do(t, f, "arrive soft1 qp 17 wr 1")
	if list := actionsOf(f, Arrive); len(list) != 0 {
		t.Error(list)
	}
}

// A read that arrives late changes nothing; what arrives behind a write finds it in memory.
func TestArriveLateBehindWhatIsPlacedLate(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	f.Inject(Fault{Kind: PlaceLate})
	f.Inject(Fault{Kind: ArriveLate, Match: func(wr *verbs.SendWR) bool { return wr.ID == 2 }})
	copy(a.buf, "written!")
	copy(b.buf[64:], "read me!")
	read := a.write(b, 2, 64, 8)
	read.Opcode = verbs.OpRDMARead
	a.post(a.write(b, 1, 0, 8), read)
	do(t, f, "execute soft0 qp 17 wr 1")
	do(t, f, "execute soft0 qp 17 wr 2")
	if b.buf[0] != 0 {
		t.Error("placed at once")
	}
	do(t, f, "arrive soft1 qp 17 wr 2")
	if got := string(b.buf[:8]) + string(b.buf[64:72]); got != "written!read me!" || a.buf[64] != 0 {
		t.Errorf("%q; the reader has %q", got, a.buf[64:72])
	}
}

// The memory of a write that is not placed yet is held: its region is deregistered afterwards.
func TestPlacementHoldsItsRegion(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	f.Inject(Fault{Kind: PlaceLate})
	a.buf[0] = 1
	a.post(a.write(b, 1, 0, 8))
	do(t, f, "execute soft0 qp 17 wr 1")
	closed := make(chan error, 1)
	go func() { closed <- b.mr.(*MR).core.Close() }()
	select {
	case err := <-closed:
		t.Error("deregistered while the write waits:", err)
	case <-time.After(20 * time.Millisecond):
	}
	f.mu.Lock()
	f.placeAll(b.qp)
	f.mu.Unlock()
	if err := <-closed; err != nil || b.buf[0] != 1 {
		t.Error(err, b.buf[0])
	}
}

// An acknowledged write is in memory later: before anything else that the same queue pair brings,
// but behind what comes over others.
func TestPlaceLate(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	i := f.Inject(Fault{Kind: PlaceLate, Count: -1})
	acknowledged := func(id string) {
		t.Helper()
		do(t, f, "execute soft0 qp 17 wr "+id)
		do(t, f, "acknowledge soft0 qp 17 wr "+id)
		do(t, f, "reveal soft0 qp 17 send wr "+id)
		if wc := await(t, a.cq, 1)[0]; wc.Status != verbs.StatusSuccess {
			t.Fatalf("%+v", wc)
		}
	}
	at := func(off int) string { return string(b.buf[off : off+2]) }
	copy(a.buf, "1122334455667788")
	a.post(a.write(b, 1, 0, 2), a.write(b, 2, 2, 2))
	acknowledged("1")
	acknowledged("2")
	if at(0) != "\x00\x00" {
		t.Errorf("%q is in memory at once", at(0))
	}
	do(t, f, "place soft1 qp 17 wr 1")
	if at(0) != "11" || at(2) != "\x00\x00" {
		t.Errorf("%q %q", at(0), at(2))
	}
	behind := []struct {
		name string
		wr   verbs.SendWR
	}{
		{"read", verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: a.sge(900, 2)}},
		{"notification", verbs.SendWR{Opcode: verbs.OpRDMAWriteWithImm}},
		{"send", verbs.SendWR{Opcode: verbs.OpSend}},
		{"atomic", verbs.SendWR{Opcode: verbs.OpAtomicFetchAdd, SGL: a.sge(904, 8)}},
	}
	b.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
	for n, c := range behind {
		off := 2 * (n + 2)
		a.post(a.write(b, 3, off, 2))
		acknowledged("3")
		c.wr.ID, c.wr.Flags, c.wr.RemoteAddr, c.wr.RKey = 4, verbs.SendSignaled, b.mr.Addr()+1024, b.mr.RKey()
		a.post(c.wr)
		if at(off) != "\x00\x00" {
			t.Errorf("%q is in memory before the %s", at(off), c.name)
		}
		acknowledged("4")
		if want := string(a.buf[off : off+2]); at(off) != want {
			t.Errorf("behind the %s %q is in memory, want %q", c.name, at(off), want)
		}
	}
	if i.Hits() < 6 {
		t.Error(i.Hits())
	}
}

// A later write does not overtake one that is placed late.
func TestPlaceLateKeepsTheOrder(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	f.Inject(Fault{Kind: PlaceLate})
	copy(a.buf, "old new ")
	second := a.write(b, 2, 4, 4)
	second.RemoteAddr = b.mr.Addr()
	a.post(a.write(b, 1, 0, 4), second)
	do(t, f, "execute soft0 qp 17 wr 1")
	do(t, f, "execute soft0 qp 17 wr 2")
	do(t, f, "place soft1 qp 17 wr 1")
	if got := string(b.buf[:4]); got != "old " {
		t.Errorf("%q", got)
	}
	do(t, f, "place soft1 qp 17 wr 2")
	if got := string(b.buf[:4]); got != "new " {
		t.Errorf("%q", got)
	}
}

// A region that is written to all the time, and late, is deregistered at once.
func TestDeregisteredUnderLateWrites(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{})
	f.Inject(Fault{Kind: PlaceLate, Count: -1, Delay: time.Hour})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for id := uint64(0); ; id++ {
			select {
			case <-stop:
				return
			default:
				_, _ = a.qp.PostSend([]verbs.SendWR{a.write(b, id, 0, 64)})
				_, _ = a.cq.Poll(make([]verbs.WC, 16))
			}
		}
	}()
	time.Sleep(time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- b.mr.Close() }()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(10 * time.Second):
		t.Error("not deregistered while writes wait for an hour")
	}
	close(stop)
	<-stopped
}

// What a NIC has acknowledged is in memory before its queue pair has flushed, its region is
// deregistered, or its queue pair is reset or closed.
func TestPlacedAtTheEnd(t *testing.T) {
	for name, end := range map[string]func(b *end){
		"flush":      func(b *end) { setState(t, b, verbs.StateErr) },
		"reset":      func(b *end) { setState(t, b, verbs.StateReset) },
		"close":      func(b *end) { must(t, b.qp.Close()) },
		"deregister": func(b *end) { must(t, b.mr.Close()) },
		"kill":       func(b *end) { b.dev.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			inBothModes(t, func(t *testing.T, cfg Config) {
				f, a, b := pair(t, cfg, endConfig{})
				f.Inject(Fault{Kind: PlaceLate, Count: -1, Delay: time.Hour})
				for i := range 100 {
					a.buf[i] = byte(i + 1)
				}
				a.post(a.write(b, 1, 0, 50), a.write(b, 2, 50, 50))
				allBut(f, Place)
				awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
				awaitStatus(t, a.cq, 2, verbs.StatusSuccess)
				if b.buf[0] != 0 || b.buf[99] != 0 {
					t.Error("placed early")
				}
				end(b)
				if !slices.Equal(a.buf[:100], b.buf[:100]) {
					t.Errorf("% x", b.buf[:100])
				}
			})
		})
	}
}

// In the background what is late comes after its delay, without anybody's help.
func TestLateInTheBackground(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{})
	const delay = 20 * time.Millisecond
	f.Inject(Fault{Kind: PlaceLate, Delay: delay})
	a.buf[0], a.buf[8], a.buf[16] = 1, 1, 1
	start := time.Now()
	a.post(a.write(b, 1, 0, 8))
	a.mustDrain("1 SUCCESS")
	word := func(off int) bool { b.cq.Poll(nil); f.mu.Lock(); defer f.mu.Unlock(); return b.buf[off] == 1 }
	until := func(off int) {
		t.Helper()
		for !word(off) && time.Since(start) < 10*time.Second {
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(start); !word(off) || d < delay {
			t.Errorf("in memory: %v, after %v", word(off), d)
		}
	}
	if word(0) && time.Since(start) < delay {
		t.Error("placed at once")
	}
	until(0)

	f.Inject(Fault{Kind: ArriveLate, Delay: delay})
	start = time.Now()
	b.recv(verbs.RecvWR{ID: 7})
	second := a.write(b, 3, 16, 8)
	second.Opcode = verbs.OpRDMAWriteWithImm
	a.post(a.write(b, 2, 8, 8), second)
	awaitStatus(t, a.cq, 2, verbs.StatusRetryExcErr)
	if word(8) && time.Since(start) < delay {
		t.Error("arrived at once")
	}
	until(8)
	awaitStatus(t, b.rcq, 7, verbs.StatusSuccess)
	if !word(16) {
		t.Error("the notification came without its data")
	}
}

// A message that is still on its way to a queue pair in ERR is reported before what is flushed,
// also where it is the only one.
func TestErrorKeepsTheOnlyArrivalFirst(t *testing.T) {
	_, a, b := pair(t, Config{Device: DeviceConfig{Latency: 5 * time.Millisecond}}, endConfig{})
	b.recv(verbs.RecvWR{ID: 0, SGL: b.sge(0, 8)}, verbs.RecvWR{ID: 1, SGL: b.sge(0, 8)})
	a.post(a.send(1, 0, 8))
	time.Sleep(time.Millisecond)
	setState(t, b, verbs.StateErr)
	for i, wc := range await(t, b.rcq, 2) {
		if wc.ID != uint64(i) {
			t.Errorf("%d: %+v", i, wc)
		}
	}
}

// No timer holds a queue pair that was reset or closed.
func TestNoTimerOfAClosedQueuePair(t *testing.T) {
	f, a, b := pair(t, Config{Device: DeviceConfig{Latency: time.Hour}}, endConfig{})
	b.recv(verbs.RecvWR{ID: 0, SGL: b.sge(0, 8)})
	a.post(a.send(1, 0, 8))
	timers := func() (n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, d := range f.devices {
			n += len(d.worker.timers)
		}
		return n
	}
	for end := time.Now().Add(10 * time.Second); timers() != 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := timers(); n != 2 {
		t.Fatalf("%d timers for a message on its way and its acknowledgement", n)
	}
	setState(t, b, verbs.StateReset)
	must(t, a.qp.Close())
	if n := timers(); n != 0 {
		t.Errorf("%d timers are left", n)
	}
}
