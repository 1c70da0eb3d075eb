package api_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
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
					l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: scheme,
						QPsPerDevice:   2,
						MaxMsgCntPerQP: depth, FragmentSize: 512}})
					manyRequests(t, l, op, total)
				})
			}
		}
	}
}

func manyRequests(t *testing.T, l *vqptest.Link, op verbs.Opcode, total int) {
	wrs := make([]ibverbx.SendWR, total)
	for i := range wrs {
		wrs[i] = l.A.Write(op, uint64(i), uint64(i%1000), 8)
	}
	if op == verbs.OpRDMAWriteWithImm {
		recvs := make([]ibverbx.RecvWR, total)
		for i := range recvs {
			recvs[i].ID = uint64(i)
		}
		if n, err := l.B.PostRecv(recvs...); n != total || err != nil {
			t.Fatal(n, err)
		}
	}
	if n, err := l.A.PostSend(wrs...); n != total || err != nil {
		t.Fatal(n, err)
	}
	for _, e := range []*vqptest.End{l.A, l.B} {
		if e == l.B && op != verbs.OpRDMAWriteWithImm {
			break
		}
		for i, wc := range e.Wait(t, total) {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess {
				t.Fatalf("completion %d: %+v", i, wc)
			}
			if e == l.B && wc.Imm != uint32(i) {
				t.Fatalf("receive %d brought immediate %d", i, wc.Imm)
			}
		}
		if more := e.Poll(t); len(more) != 0 {
			t.Fatalf("%d completions too many", len(more))
		}
	}
}

// All operations mixed. In DQPLB, messages without a number neither stall the receiver nor use up
// its credits.
func TestMixedOperationsNeverStallTheReceiver(t *testing.T) {
	vqptest.EachMode(t, 700, func(t *testing.T, l *vqptest.Link) {
		if l.A.DataRails() == 1 {
			t.Skip("a single queue pair leaves the order of receives to the program")
		}
		ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend,
			verbs.OpAtomicFetchAdd, verbs.OpRDMAWriteWithImm, verbs.OpAtomicCmpAndSwp}
		const rounds = 400
		notes, sends := 0, 0
		for i := range rounds {
			op := ops[i%len(ops)]
			wr := l.A.Write(op, uint64(i), uint64(i*8), 8)
			switch {
			case op.IsSend():
				recv := ibverbx.RecvWR{ID: uint64(i), Local: l.B.MR.Slice(1<<19, 64)}
				if _, err := l.B.PostRecv(recv); err != nil {
					t.Fatal(err)
				}
				wr.Remote = ibverbx.RemoteSegment{}
				sends++
			case op == verbs.OpRDMAWriteWithImm:
				l.B.ExpectRecv(t, uint64(i))
				wr.Local, wr.Remote = l.A.MR.Slice(0, 5000), l.A.Peer.Slice(0, 5000)
				notes++
			}
			l.A.Send(t, wr)
		}
		for i, wc := range l.A.Wait(t, rounds) {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusSuccess {
				t.Fatalf("send %d: %+v", i, wc)
			}
		}
		last := int64(-1)
		for i, wc := range l.B.Wait(t, notes+sends) {
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
				l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: scheme,
					QPsPerDevice: 2,
					FragmentSize: 512, MaxMsgCntPerQP: 4, MaxBanked: banked}})
				const total = 500
				for i := range uint64(total) {
					l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, i, i, 1000))
				}
				for range 200 {
					l.A.Pump(t)
					l.B.Pump(t)
				}
				if s := l.B.Stats(); banked != 0 && s.Banked > banked+4*l.B.Config().Credits {
					t.Errorf("%d notifications banked, the bound is %d and what the credits out can bring",
						s.Banked, banked)
				}
				for i := range uint64(total) {
					l.B.ExpectRecv(t, i)
				}
				for i, wc := range l.B.Wait(t, total) {
					if wc.ID != uint64(i) || wc.Imm != uint32(i) || wc.Status != verbs.StatusSuccess {
						t.Fatalf("receive %d: %+v", i, wc)
					}
				}
				vqptest.IDs(t, l.A.Wait(t, total), verbs.StatusSuccess)
			})
		}
	}
}

// Promise 4: when the receiver sees a notification, all earlier writes are in its memory, plain
// ones on other rails included.
func TestNotificationMeansThatAllEarlierWritesHaveArrived(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for round := range 60 {
			vqptest.FillRandom(l.A.Buf[:60000], uint64(round))
			message := round%2 == 1
			if message {
				_, err := l.B.PostRecv(ibverbx.RecvWR{ID: 1, Local: l.B.MR.Slice(100000, 8)})
				if err != nil {
					t.Fatal(err)
				}
			} else {
				l.B.ExpectRecv(t, 1)
			}
			for i := range uint64(6) {
				l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, i, i*10000, 10000))
			}
			if message {
				l.A.Send(t, ibverbx.SendWR{ID: 6, Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 8)})
			} else {
				l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 6, 0, 1))
			}
			l.B.Wait(t, 1)
			vqptest.MustEqual(t, fmt.Sprint("round ", round), l.B.Buf[:60000], l.A.Buf[:60000])
			vqptest.IDs(t, l.A.Wait(t, 7), verbs.StatusSuccess)
		}
	})
}
