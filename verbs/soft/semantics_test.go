package soft

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
)

// What a request ends with at the requester, and the receive posted for it at the responder.
func TestStatuses(t *testing.T) {
	success, flushed := verbs.StatusSuccess, verbs.StatusWRFlushErr
	tests := []struct {
		name    string
		connect func(*connection)
		wr      func(a, b *end, wr *verbs.SendWR) // starts as a write of 64 bytes
		recv    func(b *end, wr *verbs.RecvWR)    // starts as one of 64 bytes
		want    verbs.Status
		wantRcv verbs.Status // what the receive ends with; success: it stays posted, or the message took it
	}{
		{name: "write", wr: func(a, b *end, wr *verbs.SendWR) {}, want: success},
		{name: "wrong lkey", wr: func(a, b *end, wr *verbs.SendWR) { wr.SGL[0].LKey += 2 },
			want: verbs.StatusLocProtErr},
		{name: "rkey as lkey", wr: func(a, b *end, wr *verbs.SendWR) { wr.SGL[0].LKey = a.mr.RKey() },
			want: verbs.StatusLocProtErr},
		{name: "lkey of the other NIC", wr: func(a, b *end, wr *verbs.SendWR) {
			wr.SGL[0].LKey = b.mr.LKey()
		}, want: verbs.StatusLocProtErr},
		{name: "local end", wr: func(a, b *end, wr *verbs.SendWR) { wr.SGL[0].Addr += a.mr.Len() - 63 },
			want: verbs.StatusLocProtErr},
		{name: "before the region", wr: func(a, b *end, wr *verbs.SendWR) { wr.SGL[0].Addr-- },
			want: verbs.StatusLocProtErr},
		{name: "lkey as rkey", wr: func(a, b *end, wr *verbs.SendWR) { wr.RKey = b.mr.LKey() },
			want: verbs.StatusRemAccessErr, wantRcv: flushed},
		{name: "remote end", wr: func(a, b *end, wr *verbs.SendWR) { wr.RemoteAddr += b.mr.Len() - 63 },
			want: verbs.StatusRemAccessErr, wantRcv: flushed},
		{name: "stale rkey", wr: func(a, b *end, wr *verbs.SendWR) {
			mr, _ := b.pd.RegisterMR(b.buf, verbs.AccessAll)
			wr.RKey = mr.RKey()
			mr.Close()
		}, want: verbs.StatusRemAccessErr, wantRcv: flushed},
		{name: "region of another domain", wr: func(a, b *end, wr *verbs.SendWR) {
			pd, _ := b.dev.AllocPD()
			mr, _ := pd.RegisterMR(b.buf, verbs.AccessAll)
			b.t.Cleanup(func() { mr.Close(); pd.Close() })
			wr.RKey = mr.RKey()
		}, want: verbs.StatusRemAccessErr, wantRcv: flushed},
		{name: "no bytes need no keys", wr: func(a, b *end, wr *verbs.SendWR) {
			wr.SGL, wr.RKey,
				wr.RemoteAddr = nil, 0, 0
		}, want: success},
		{name: "queue pair forbids writes",
			connect: func(c *connection) { c.Access = verbs.AccessRemoteRead },
			wr:      func(a, b *end, wr *verbs.SendWR) {}, want: verbs.StatusRemInvReqErr, wantRcv: flushed},
		{name: "no reads served", connect: func(c *connection) { c.MaxDestRDAtomic = 0 },
			wr:   func(a, b *end, wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMARead },
			want: verbs.StatusRemInvReqErr, wantRcv: flushed},
		{name: "no reads asked", connect: func(c *connection) { c.MaxRDAtomic = 0 },
			wr:   func(a, b *end, wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMARead },
			want: verbs.StatusLocQPOpErr},
		{name: "misaligned atomic", wr: func(a, b *end, wr *verbs.SendWR) {
			wr.Opcode, wr.SGL[0].Length = verbs.OpAtomicFetchAdd, 8
			wr.RemoteAddr += 4
		}, want: verbs.StatusRemInvReqErr, wantRcv: flushed},
		{name: "atomic of 16 bytes", wr: func(a, b *end, wr *verbs.SendWR) {
			wr.Opcode, wr.SGL[0].Length = verbs.OpAtomicCmpAndSwp, 16
		}, want: verbs.StatusLocLenErr},
		{name: "send", wr: func(a, b *end, wr *verbs.SendWR) { wr.Opcode = verbs.OpSend }, want: success},
		{name: "send too long", wr: func(a, b *end, wr *verbs.SendWR) {
			wr.Opcode,
				wr.SGL[0].Length = verbs.OpSend, 65
		},
			want: verbs.StatusRemInvReqErr, wantRcv: verbs.StatusLocLenErr},
		{name: "receive with a bad key", wr: func(a, b *end, wr *verbs.SendWR) { wr.Opcode = verbs.OpSend },
			recv: func(b *end, wr *verbs.RecvWR) { wr.SGL[0].LKey++ }, want: verbs.StatusRemOpErr,
			wantRcv: verbs.StatusLocProtErr},
		{name: "write with immediate ignores the receive's memory",
			wr:   func(a, b *end, wr *verbs.SendWR) { wr.Opcode = verbs.OpRDMAWriteWithImm },
			recv: func(b *end, wr *verbs.RecvWR) { wr.SGL[0].LKey++ }, want: success},
		{name: "longer than the NIC allows",
			wr:   func(a, b *end, wr *verbs.SendWR) { wr.SGL[0].Length = 1<<15 + 1 },
			want: verbs.StatusLocLenErr},
	}
	for _, stepped := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				change := tt.connect
				if change == nil {
					change = func(*connection) {}
				}
				f, a, b := pair(t, Config{Stepped: stepped, Device: DeviceConfig{MaxMsgSize: 1 << 15}},
					endConfig{}, change)
				recv := verbs.RecvWR{ID: 2, SGL: b.sge(4096, 64)}
				if tt.recv != nil {
					tt.recv(b, &recv)
				}
				b.recv(recv)
				wr := a.write(b, 1, 0, 64)
				tt.wr(a, b, &wr)
				a.post(wr)
				f.Run(100)
				awaitStatus(t, a.cq, 1, tt.want)
				if want := verbs.StateRTS; (a.qp.State() == want) != (tt.want == success) {
					t.Error("the requester is in", a.qp.State())
				}
				if wc := make([]verbs.WC, 1); tt.wantRcv != success {
					awaitStatus(t, b.rcq, 2, tt.wantRcv)
				} else if n, _ := b.rcq.Poll(wc); n == 1 && wc[0].Status != success {
					t.Error("the receive ended with", wc[0].Status.Name())
				}
				if (b.qp.State() == verbs.StateRTS) != (tt.wantRcv == success) {
					t.Error("the responder is in", b.qp.State())
				}
			})
		}
	}
}

// A slot is free again when a completion of it or of a later request was polled.
func TestSlots(t *testing.T) {
	_, a, b := pair(t, Config{}, endConfig{qp: verbs.QPCap{MaxSendWR: 3, MaxRecvWR: 2}})
	quiet := a.write(b, 1, 0, 8)
	quiet.Flags = 0
	n, err := a.qp.PostSend([]verbs.SendWR{quiet, quiet, a.write(b, 2, 0, 8), quiet})
	if n != 3 || !errors.Is(err, verbs.ErrQueueFull) || !verbs.IsTransient(err) {
		t.Error(n, err)
	}
	awaitStatus(t, a.cq, 2, verbs.StatusSuccess)
	nothing(t, a.cq)
	a.post(quiet, quiet, quiet)
	if n, err := b.qp.PostRecv(make([]verbs.RecvWR, 3)); n != 2 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Error(n, err)
	}
}

// In SQD sends are held, and reset removes completions that were not polled.
func TestDrainAndReset(t *testing.T) {
	_, a, b := pair(t, Config{}, endConfig{})
	setState(t, a, verbs.StateSQD)
	a.post(a.write(b, 1, 0, 8))
	time.Sleep(time.Millisecond)
	nothing(t, a.cq)
	must(t, a.qp.Modify(&verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState))
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
	a.post(a.write(b, 2, 0, 8))
	setState(t, a, verbs.StateReset)
	nothing(t, a.cq)
}

func TestSolicitedEvents(t *testing.T) {
	ch := verbs.NewCompChannel()
	_, a, b := pair(t, Config{}, endConfig{channel: ch})
	event := func() bool {
		select {
		case <-ch.Events():
			return true
		default:
			return false
		}
	}
	for i := range uint64(4) {
		b.recv(verbs.RecvWR{ID: i, SGL: b.sge(0, 8)})
	}
	must(t, b.rcq.Arm(true))
	a.post(a.send(1, 0, 8))
	if event() {
		t.Error("an event for a message that was not solicited")
	}
	loud := a.send(2, 0, 8)
	loud.Flags |= verbs.SendSolicited
	a.post(loud)
	if !event() {
		t.Error("no event for a solicited message")
	}
	a.post(loud)
	if event() {
		t.Error("a second event for one arming")
	}
	must(t, b.rcq.Arm(true))
	go setState(t, b, verbs.StateErr)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := ch.Wait(ctx); err != nil {
		t.Error("no event for a flush:", err)
	}
}

// Keys of all NICs differ, change with each registration, and are not those of the other side.
func TestKeys(t *testing.T) {
	f := newFabric(t, Config{Devices: 3})
	buf := make([]byte, 4096)
	seen := map[uint32]bool{}
	for i := range 3 {
		pd, err := f.Device(i).AllocPD()
		must(t, err)
		var addr uint64
		for range 500 {
			mr, err := pd.RegisterMR(buf, verbs.AccessAll)
			must(t, err)
			if seen[mr.LKey()] || seen[mr.RKey()] || mr.LKey() == mr.RKey() {
				t.Fatal("a key came twice")
			}
			seen[mr.LKey()], seen[mr.RKey()] = true, true
			if addr != 0 && mr.Addr() != addr {
				t.Error("the address changed")
			}
			addr = mr.Addr()
			must(t, mr.Close())
		}
		must(t, pd.Close())
	}
}

// can reports whether an action that starts like this can happen now.
func can(f *Fabric, prefix string) bool {
	for _, a := range f.Actions(nil) {
		if strings.HasPrefix(a.String(), prefix) {
			return true
		}
	}
	return false
}

// A queue pair has as many reads and atomics outstanding as MaxRDAtomic says; the next one waits
// for an acknowledgement, and so does what is behind it. Writes are not counted.
func TestReadsWaitForEachOther(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{}, func(c *connection) { c.MaxRDAtomic = 2 })
	read := func(id uint64) verbs.SendWR {
		wr := a.write(b, id, int(8*id), 8)
		wr.Opcode = verbs.OpRDMARead
		return wr
	}
	add := a.write(b, 3, 24, 8)
	add.Opcode, add.CompareAdd = verbs.OpAtomicFetchAdd, 1
	a.post(read(1), a.write(b, 2, 16, 8), add, read(4), a.write(b, 5, 40, 8))
	for range 3 {
		do(t, f, "execute")
	}
	if can(f, "execute") {
		t.Error("a third read is outstanding")
	}
	do(t, f, "acknowledge soft0 qp 17 wr 1")
	do(t, f, "execute soft0 qp 17 wr 4")
	do(t, f, "execute soft0 qp 17 wr 5")
	f.Run(100)
	for i, wc := range await(t, a.cq, 5) {
		if wc.ID != uint64(i+1) || wc.Status != verbs.StatusSuccess {
			t.Errorf("%d: %+v", i, wc)
		}
	}
	// After a reset nothing is outstanding any more.
	a.post(read(1), read(2))
	do(t, f, "execute")
	do(t, f, "execute")
	setState(t, a, verbs.StateReset)
	setState(t, b, verbs.StateReset)
	connect(t, a, b, func(c *connection) { c.MaxRDAtomic = 1 })
	a.post(read(3))
	do(t, f, "execute soft0 qp 17 wr 3")
}

// Packet sequence numbers go round after 2^24-1.
func TestSequenceNumbersGoRound(t *testing.T) {
	_, a, b := pair(t, Config{}, endConfig{}, func(c *connection) { c.SQPSN, c.RQPSN = 1<<24-2, 1<<24-2 })
	for id := range uint64(4) {
		b.recv(verbs.RecvWR{ID: id, SGL: b.sge(0, 8)})
		a.post(a.send(id, 0, 8))
		awaitStatus(t, a.cq, id, verbs.StatusSuccess)
		awaitStatus(t, b.rcq, id, verbs.StatusSuccess)
	}
}

// A message is as long as the NIC's limit, and as the receive that takes it.
func TestLongestMessages(t *testing.T) {
	for _, c := range []struct {
		length, receive int
		want            verbs.Status
	}{
		{4096, 4096, verbs.StatusSuccess}, {4097, 8192, verbs.StatusLocLenErr},
		{64, 64, verbs.StatusSuccess}, {65, 64, verbs.StatusRemInvReqErr}, {0, 0, verbs.StatusSuccess},
	} {
		_, a, b := pair(t, Config{Device: small}, endConfig{}, fewReads)
		b.recv(verbs.RecvWR{ID: 7, SGL: b.sge(0, c.receive)})
		a.post(a.send(1, 0, c.length))
		awaitStatus(t, a.cq, 1, c.want)
		if c.want == verbs.StatusSuccess {
			if wc := awaitStatus(t, b.rcq, 7, c.want); wc.ByteLen != uint32(c.length) {
				t.Errorf("%d bytes arrived of %d", wc.ByteLen, c.length)
			}
		}
	}
}

// What a queue pair in ERR flushes has the vendor's code for it, on either queue.
func TestFlushedHaveTheVendorsCode(t *testing.T) {
	_, a, b := pair(t, Config{Stepped: true}, endConfig{})
	a.post(a.write(b, 1, 0, 8))
	a.recv(verbs.RecvWR{ID: 2})
	setState(t, a, verbs.StateErr)
	a.qp.f.Run(10)
	for cq, id := range map[*CQ]uint64{a.cq: 1, a.rcq: 2} {
		if wc := awaitStatus(t, cq, id, verbs.StatusWRFlushErr); wc.VendorErr != 0xf9 ||
			wc.QPNum != a.qp.Num() {
			t.Errorf("%+v", wc)
		}
	}
}
