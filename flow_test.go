package ibverbx_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// 100,000 requests posted at once on shallow queues complete in order, each once.
func TestManyRequestsOnShallowQueuesCompleteInOrder(t *testing.T) {
	total := 100_000
	if testing.Short() {
		total = 10_000
	}
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, depth := range []int{1, 16, 128} {
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
				t.Run(fmt.Sprintf("%v/depth%d/%v", scheme, depth, op), func(t *testing.T) {
					l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{Scheme: scheme, QPsPerDevice: 2,
						MaxMsgCntPerQP: depth, FragmentSize: 512}})
					manyRequests(t, l, op, total)
				})
			}
		}
	}
}

func manyRequests(t *testing.T, l *link, op verbs.Opcode, total int) {
	wrs := make([]ibverbx.SendWR, total)
	for i := range wrs {
		wrs[i] = l.a.write(op, uint64(i), uint64(i%1000), 8)
	}
	if op == verbs.OpRDMAWriteWithImm {
		recvs := make([]ibverbx.RecvWR, total)
		for i := range recvs {
			recvs[i].ID = uint64(i)
		}
		if n, err := l.b.PostRecv(recvs...); n != total || err != nil {
			t.Fatal(n, err)
		}
	}
	if n, err := l.a.PostSend(wrs...); n != total || err != nil {
		t.Fatal(n, err)
	}
	for _, e := range []*end{l.a, l.b} {
		if e == l.b && op != verbs.OpRDMAWriteWithImm {
			break
		}
		for i, wc := range e.wait(t, total) {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess {
				t.Fatalf("completion %d: %+v", i, wc)
			}
			if e == l.b && wc.Imm != uint32(i) {
				t.Fatalf("receive %d brought immediate %d", i, wc.Imm)
			}
		}
		if more := e.poll(t); len(more) != 0 {
			t.Fatalf("%d completions too many", len(more))
		}
	}
}

// All operations mixed. In DQPLB, messages without a number neither stall the receiver nor use up
// its credits.
func TestMixedOperationsNeverStallTheReceiver(t *testing.T) {
	eachMode(t, 700, func(t *testing.T, l *link) {
		if l.a.DataRails() == 1 {
			t.Skip("a single queue pair leaves the order of receives to the program")
		}
		ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend,
			verbs.OpAtomicFetchAdd, verbs.OpRDMAWriteWithImm, verbs.OpAtomicCmpAndSwp}
		const rounds = 400
		notes, sends := 0, 0
		for i := range rounds {
			op := ops[i%len(ops)]
			wr := l.a.write(op, uint64(i), uint64(i*8), 8)
			switch {
			case op.IsSend():
				recv := ibverbx.RecvWR{ID: uint64(i), Local: l.b.mr.Slice(1<<19, 64)}
				if _, err := l.b.PostRecv(recv); err != nil {
					t.Fatal(err)
				}
				wr.Remote = ibverbx.RemoteSegment{}
				sends++
			case op == verbs.OpRDMAWriteWithImm:
				l.b.expectRecv(t, uint64(i))
				wr.Local, wr.Remote = l.a.mr.Slice(0, 5000), l.a.peer.Slice(0, 5000)
				notes++
			}
			l.a.send(t, wr)
		}
		for i, wc := range l.a.wait(t, rounds) {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess {
				t.Fatalf("send %d: %+v", i, wc)
			}
		}
		last := int64(-1)
		for i, wc := range l.b.wait(t, notes+sends) {
			if int64(wc.ID) <= last || wc.Status != verbs.StatusSuccess {
				t.Fatalf("receive %d: %+v after id %d", i, wc, last)
			}
			last = int64(wc.ID)
		}
	})
}

// A sender that runs ahead of the receiver's posted receives loses nothing: DQPLB banks
// notifications up to a bound and then withholds credits; Spray waits for a receive.
func TestSenderAheadOfReceivesLosesNothing(t *testing.T) {
	for _, banked := range []int{0, 7} {
		for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
			t.Run(fmt.Sprintf("%v/bank%d", scheme, banked), func(t *testing.T) {
				l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{Scheme: scheme, QPsPerDevice: 2,
					FragmentSize: 512, MaxMsgCntPerQP: 4, MaxBanked: banked}})
				const total = 500
				for i := range uint64(total) {
					l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, i, i, 1000))
				}
				for range 200 {
					l.a.pump(t)
					l.b.pump(t)
				}
				if s := l.b.Stats(); banked != 0 && s.Banked > banked+4*l.b.Config().Credits {
					t.Errorf("%d notifications banked, the bound is %d and what the credits out can bring",
						s.Banked, banked)
				}
				for i := range uint64(total) {
					l.b.expectRecv(t, i)
				}
				for i, wc := range l.b.wait(t, total) {
					if wc.ID != uint64(i) || wc.Imm != uint32(i) || wc.Status != verbs.StatusSuccess {
						t.Fatalf("receive %d: %+v", i, wc)
					}
				}
				ids(t, l.a.wait(t, total), verbs.StatusSuccess)
			})
		}
	}
}

// Promise 4: when the receiver sees a notification, all earlier writes are in its memory, plain
// ones on other rails included.
func TestNotificationMeansThatAllEarlierWritesHaveArrived(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		for round := range 60 {
			fillRandom(l.a.buf[:60000], uint64(round))
			message := round%2 == 1
			if message {
				_, err := l.b.PostRecv(ibverbx.RecvWR{ID: 1, Local: l.b.mr.Slice(100000, 8)})
				if err != nil {
					t.Fatal(err)
				}
			} else {
				l.b.expectRecv(t, 1)
			}
			for i := range uint64(6) {
				l.a.send(t, l.a.write(verbs.OpRDMAWrite, i, i*10000, 10000))
			}
			if message {
				l.a.send(t, ibverbx.SendWR{ID: 6, Opcode: verbs.OpSend, Local: l.a.mr.Slice(0, 8)})
			} else {
				l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 6, 0, 1))
			}
			l.b.wait(t, 1)
			mustEqual(t, fmt.Sprint("round ", round), l.b.buf[:60000], l.a.buf[:60000])
			ids(t, l.a.wait(t, 7), verbs.StatusSuccess)
		}
	})
}
